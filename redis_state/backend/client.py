"""Client that repeats a pipeline until it is answered, or until the deadline."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import redis

from redis_state.backend import needs
from redis_state.backend.connection import (
    final_error,
    hint,
    in_words,
    is_hung_up,
    no_redis,
    refused,
)
from redis_state.backend.durability import Durability, DurabilityWait
from redis_state.backend.replies import (
    MAXCLIENTS,
    OtherType,
    failure,
    hint_of,
    is_lacking_in_script,
    is_login,
    is_of_other_type,
    is_transient,
    lacking,
    name_of,
    words,
)
from redis_state.backend.script import Command, Script, ScriptCall
from redis_state.backend.transport import NoServerError, ReplacedError, Transport, message_of
from redis_state.backend.transports import transport_to
from redis_state.clock import SYSTEM, Clock
from redis_state.config import Config
from redis_state.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    InternalError,
    Kind,
    RedisStateError,
    UnavailableError,
)
from redis_state.url import ClusterEndpoint

_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0
_DOUBLINGS_MAX = 10
# Allows several masters to fail in turn. More replacements are not a fail-over.
_REPLACED_MAX = 5
_WAITS_A_TRY = 6
"""Most socket timeouts in one try: connect, log in, select a database and read the replies."""

T = TypeVar("T")


class Client:
    """Client for idempotent commands only, so that each may be sent again.

    Safe to share between threads: each pipeline has a connection of its own while it runs.

    Attributes:
        round_trips: Number of pipelines sent.
        durability: What a commit waits for.
        signer: Signs written blocks and verifies read ones; ``None`` does neither.
        may_lag: True if a replica may answer, which may not have the newest keys yet.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock = SYSTEM,
        connect: Callable[[Config], Transport] = transport_to,
        may_lag: bool = False,
    ) -> None:
        self.may_lag = may_lag
        self._config = config
        self.durability = Durability.of(config.durability)
        self._deadline_s = config.deadline / 1000
        self._awake_s_max = max(self._deadline_s, _WAITS_A_TRY * config.socket_timeout / 1000)
        self._clock = clock
        self._transport = connect(config)
        self._waiting = DurabilityWait(self.durability)
        self.signer = config.read_signer()
        self.round_trips = 0
        # Before the first answer of a Redis, another protocol means that the address is wrong.
        self._was_answered = False

    @property
    def clock(self) -> Clock:
        """The clock for waits. Callers that wait between two calls use the same one."""
        return self._clock

    @property
    def url(self) -> str:
        """Address of the server, without user name and password."""
        return self._config.url.url

    @property
    def has_user(self) -> bool:
        """True if the client logs in as a named user, whose rights may be limited."""
        return self._config.username is not None

    def call(
        self,
        attempted: str,
        commands: Sequence[Command],
        *,
        of_other_type: OtherType | None = None,
    ) -> list[Any]:
        """Sends one pipeline, and returns its replies without errors.

        Args:
            of_other_type: Replaces the reply to a command whose key has another type, for callers
                that examine many keys. ``None`` raises an error instead.

        Raises:
            UnavailableError: The deadline passed.
            RedisStateError: The server refuses a command for good.
        """

        def once() -> list[Any]:
            replies = self._exchange(attempted, commands)
            if of_other_type is not None:
                replies = [of_other_type if _is_of_other_type(one) else one for one in replies]
            return self._checked(attempted, replies, commands)

        return self._until_answered(attempted, once)

    def answers(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        """Sends one pipeline, and returns its replies, including final errors of the server.

        Raises:
            UnavailableError: The deadline passed.
            RedisStateError: The server refuses the login.
        """

        def once() -> list[Any]:
            replies = self._exchange(attempted, commands)
            for reply in replies:
                if isinstance(reply, redis.RedisError):
                    judged = self._judged(attempted, message_of(reply))
                    if isinstance(judged, _TryAgainError) or is_login(message_of(reply)):
                        raise judged from reply
            return replies

        return self._until_answered(attempted, once)

    def call_in_pieces(
        self,
        attempted: str,
        commands: Sequence[Command],
        *,
        at_once: int,
        of_other_type: OtherType | None = None,
    ) -> Iterator[Any]:
        """Yields the replies of many commands, which are sent lazily in pipelines of `at_once`.

        Args:
            of_other_type: See `call`.

        Raises:
            RedisStateError: See `call`.
        """
        for start in range(0, len(commands), at_once):
            chunk = commands[start : start + at_once]
            yield from self.call(attempted, chunk, of_other_type=of_other_type)

    def script(
        self, attempted: str, script: Script, keys: Sequence[str], args: Sequence[str | bytes]
    ) -> list[str]:
        """Runs a script, and returns its reply as words; sends its text if the server lacks it.

        Raises:
            UnavailableError: The deadline passed.
            RedisStateError: The server refuses the script for good.
        """

        def once() -> list[Any]:
            sent = [script.by_hash(keys, *args)]
            replies = self._exchange(attempted, sent)
            if isinstance(replies[0], redis.exceptions.NoScriptError):
                sent = [script.by_text(keys, *args)]
                replies = self._exchange(attempted, sent)
            return self._checked(attempted, replies, sent)

        return words(attempted, self._until_answered(attempted, once)[0])

    def transaction(
        self,
        attempted: str,
        commands: Sequence[Command | ScriptCall],
        *,
        counts: Callable[[list[Any]], bool] | None = None,
    ) -> list[Any]:
        """Sends `MULTI` … `EXEC` in one write, and returns the replies without errors.

        A lost reply is resolved by sending the same commands again, so they are idempotent.
        Scripts are called by hash. If the server lacks one, everything is sent again with all
        texts. Commands may then run twice, which does no harm.

        Args:
            counts: Returns whether these replies are of a write for which `durability` demands a
                wait. Such commands have written, also if they were repeated.

        Raises:
            CommitOutcomeUnknownError: The deadline passed. The transaction may be applied, or is
                not yet durable.
            RedisStateError: The server refuses a command for good.
        """
        asks = counts is not None and self.durability.asked

        by_hash = [one.by_hash if isinstance(one, ScriptCall) else one for one in commands]

        def once() -> list[Any]:
            waits = self._waiting.commands(self._wait_ms()) if asks else []
            sent = [("MULTI",), *by_hash, ("EXEC",)]
            replies = self._exchange(attempted, [*sent, *waits])
            if _lacks_script(replies[: len(commands) + 2]):
                by_text = [one.by_text if isinstance(one, ScriptCall) else one for one in commands]
                sent = [("MULTI",), *by_text, ("EXEC",)]
                replies = self._exchange(attempted, [*sent, *waits])
            replies, waited = replies[: len(commands) + 2], replies[len(commands) + 2 :]
            # The reply to a command that was not queued has the reason; EXEC has not.
            self._checked(attempted, replies, sent)
            results = replies[-1]
            if not isinstance(results, list) or len(results) != len(commands):
                raise InternalError(attempted, found="EXEC answered something other than results")
            self._checked(attempted, results, sent[1:-1])
            if counts is not None and waits and counts(results):
                self._check_waits(attempted, waits, waited)
            return results

        return self._until_answered(attempted, once, late=CommitOutcomeUnknownError)

    def _wait_ms(self) -> int:
        """Returns the limit of a wait, short enough for the answer to arrive in time."""
        return min(self._config.socket_timeout // 2, self._config.deadline)

    def _check_waits(self, attempted: str, sent: list[Command], waited: list[Any]) -> None:
        missing = self._waiting.missing(attempted, sent, waited)
        if missing:
            raise _TryAgainError(missing, lasts=False)
        self._checked(attempted, waited, sent)

    def _until_answered(
        self,
        attempted: str,
        once: Callable[[], list[Any]],
        *,
        late: type[UnavailableError] | type[CommitOutcomeUnknownError] = UnavailableError,
    ) -> list[Any]:
        end = self._clock.monotonic_s() + self._deadline_s
        tries, was_asleep = 0, False
        while True:
            tries += 1
            began = self._clock.monotonic_s()
            try:
                return once()
            except _TryAgainError as error:
                now = self._clock.monotonic_s()
                if not was_asleep and now - began > self._awake_s_max:
                    # This process was suspended and lost its connection: restart the deadline,
                    # once.
                    was_asleep, end = True, now + self._deadline_s
                left = end - now
                if left <= 0 and not error.lasts:
                    raise self._not_durable(attempted, tries, error) from error.__cause__
                if left <= 0:
                    raise self._too_late(attempted, tries, error, late) from error.__cause__
                ceiling = _BACKOFF_MIN_S * 2 ** min(tries - 1, _DOUBLINGS_MAX)
                wait = min(_BACKOFF_MAX_S, ceiling) * random.uniform(0.5, 1)
                self._clock.sleep_s(min(left, wait))

    def _too_late(
        self,
        attempted: str,
        tries: int,
        error: _TryAgainError,
        late: type[UnavailableError] | type[CommitOutcomeUnknownError],
    ) -> RedisStateError:
        url, advice, why = self._config.url.url, late.default_advice, error.hint
        if error.hung_up:
            sent, longest = needs.sizes_of(error.hung_up)
            limits = self._limits()
            if limits or self._was_answered or longest > needs.BYTES_ALLOWED_MIN:
                named = needs.hint_of_limits(limits, sent_bytes=sent, argument_bytes=longest)
                why = f"{named} {why}".rstrip()
        if late is UnavailableError and (error.is_answer or why != error.hint):
            advice = "" if why else "Try again when it can."
        did = "refused it" if error.is_answer else "gave no answer"
        return late(
            attempted,
            found=f"{url} {did} in {tries} tries: {error}",
            advice=f"{advice} {why}".strip(),
        )

    def _limits(self) -> dict[str, str]:
        """Asks the server for its limits; empty if it does not answer."""
        return needs.settings_in(self._asked_aside(needs.ASK_LIMITS))

    def _asked_aside(self, commands: Sequence[Command]) -> list[Any]:
        """Asks the server about a failure; empty if it does not answer."""
        try:
            # Any node of a cluster will do, because the commands have no keys.
            return self._transport.parts()[0].exchange(commands)
        except (redis.RedisError, RedisStateError):
            return []

    def _too_large(self, attempted: str, commands: Sequence[Command]) -> ConfigError | None:
        """Returns the error for a request above the server's limits; ``None`` if it is not."""
        _, longest = needs.sizes_of(commands)
        limit = longest > needs.BYTES_ALLOWED_MIN and needs.exceeded(self._limits(), longest)
        if not limit:
            return None
        return ConfigError(
            attempted,
            found=f"{self.url} closes the connection: it has {limit}, and an argument has "
            f"{longest} bytes",
            advice="Raise that limit on the server, or make the rows smaller.",
        )

    def _not_durable(
        self, attempted: str, tries: int, error: _TryAgainError
    ) -> CommitOutcomeUnknownError:
        return CommitOutcomeUnknownError(
            attempted,
            kind=Kind.NOT_DURABLE,
            found=(
                f"{self._config.url.url} has the commit, but after {tries} tries it is not as "
                f"durable as durability={self._config.durability} requires: {error}"
            ),
            advice=(
                "Run the same batch again: the commit then waits again. Check INFO replication "
                "and INFO persistence of the server: do the replicas follow, and does the disk "
                "keep up?"
            ),
        )

    def opened(
        self, key: str, fields: Sequence[str], values: list[bytes | None]
    ) -> list[bytes | None]:
        """Verifies and unwraps the field values of a segment; ``None`` stays ``None``.

        Raises:
            FormatError: Blocks are signed, and a signature does not match.
        """
        return values if self.signer is None else self.signer.all_opened(key, fields, values)

    def over_parts(self, attempted: str, work: Callable[[Client], Iterable[T]]) -> Iterator[T]:
        """Yields the results of `work` for each server that holds a part of the keys.

        Args:
            work: Restarts with all servers if one was replaced, or if it raises
                `ServersChangedError`. Some results may therefore come twice.

        Raises:
            UnavailableError: The deadline passed.
        """
        for left in reversed(range(_REPLACED_MAX)):
            try:
                for part in self._until_answered(
                    attempted, lambda: self._reached(attempted, self._parts)
                ):
                    yield from work(
                        Client(self._config, clock=self._clock, connect=partial(_same, part))
                    )
                return
            except ServersChangedError:
                if not left:
                    raise

    def without_signer(self) -> Client:
        """Returns a client without signatures that shares the connections of this client."""
        plain = replace(self._config, signing_key_file=None)
        return Client(plain, clock=self._clock, connect=partial(_same, self._transport))

    def _parts(self) -> list[Any]:
        return list(self._transport.parts())

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        self.round_trips += 1
        return self._reached(attempted, lambda: self._transport.exchange(commands), commands)

    def _reached(
        self, attempted: str, once: Callable[[], list[Any]], commands: Sequence[Command] = ()
    ) -> list[Any]:
        try:
            replies = once()
            self._was_answered = True
            return replies
        except redis.exceptions.InvalidResponse as error:
            if not self._was_answered:
                raise no_redis(attempted, self._config) from error
            raise _TryAgainError(
                "the program that listens there does not speak the Redis protocol"
            ) from error
        except ReplacedError as error:
            raise ServersChangedError(attempted, found=str(error)) from error
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
            final = final_error(attempted, error, self._config)
            if final is not None:
                raise final from error
            if isinstance(error, redis.ResponseError) or MAXCLIENTS in str(error):
                raise self._judged(attempted, message_of(error)) from error
            if isinstance(error, redis.exceptions.BusyLoadingError):
                raise self._judged(attempted, message_of(error)) from error
            why = hint(error, self._config, was_answered=self._was_answered)
            if isinstance(error, NoServerError):
                raise _TryAgainError(message_of(error), hint_of(str(error)) or why) from error
            shown = in_words(error, self._config)
            hung_up = commands if is_hung_up(error) else ()
            too_large = self._too_large(attempted, hung_up)
            if too_large is not None:
                raise too_large from error
            raise _TryAgainError(shown, why, hung_up=hung_up) from error

    def _checked(
        self, attempted: str, replies: list[Any], commands: Sequence[Command]
    ) -> list[Any]:
        for reply, command in zip(replies, commands, strict=False):
            if isinstance(reply, redis.AuthenticationError):
                raise refused(attempted, str(reply), self._config)
            if isinstance(reply, redis.RedisError):
                raise self._judged(attempted, message_of(reply), name_of(command)) from reply
        return replies

    def _judged(self, attempted: str, message: str, command: str = "") -> Exception:
        url = self._config.url
        if is_login(message):
            return refused(attempted, message, self._config)
        if message.startswith(("MOVED ", "ASK ")) and not isinstance(url, ClusterEndpoint):
            return ConfigError(
                attempted,
                found=f"{url.url} is a node of a cluster, and another node has the key ('"
                f"{message.split(' ')[0]}')",
                advice="Give the cluster's URL: redis+cluster://host:port.",
            )
        if is_lacking_in_script(message):
            names = self._asked_aside(needs.trial())
            return lacking(attempted, needs.absent(names) or ["that a script calls"], at=url.url)
        if not is_transient(message):
            return failure(attempted, message, command)
        return _TryAgainError(message.rstrip("."), hint_of(message), is_answer=True)


def _lacks_script(replies: Sequence[Any]) -> bool:
    results = replies[-1] if isinstance(replies[-1], list) else []
    return any(isinstance(one, redis.exceptions.NoScriptError) for one in (*replies, *results))


def _is_of_other_type(reply: object) -> bool:
    return isinstance(reply, redis.RedisError) and is_of_other_type(message_of(reply))


def _same(transport: Transport, _config: Config) -> Transport:
    return transport


class ServersChangedError(UnavailableError):
    """A server was replaced or restarted, so all servers must be asked again."""


class _TryAgainError(Exception):
    """An error that may disappear if the same commands are sent again."""

    def __init__(
        self,
        found: str,
        hint: str = "",
        *,
        lasts: bool = True,
        is_answer: bool = False,
        hung_up: Sequence[Command] = (),
    ) -> None:
        super().__init__(found)
        self.hint = hint
        self.is_answer = is_answer
        # The commands that were being sent when the server closed the connection.
        self.hung_up = hung_up
        # False: the write is applied, but a crash might undo it.
        self.lasts = lasts
