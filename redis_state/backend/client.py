"""The client: sends a pipeline again until it is answered, or until the deadline."""

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
from redis_state.backend.durability import Durability, Waiting
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
# Masters may fail one after the other; more than that is not a fail-over.
_REPLACED_MAX = 5
_WAITS_A_TRY = 6
"""To connect, to log in, to choose a database and to be answered take no longer in one try."""

T = TypeVar("T")


class Client:
    """A client that sends only idempotent commands, so that each may be sent again.

    Safe to share between threads: each pipeline has a connection of its own while it runs.

    Attributes:
        round_trips: Pipelines that were sent.
        durability: What commits wait for.
        signer: Signs blocks that are written and checks those that are read; ``None`` does neither.
        may_lag: Whether a replica may answer: what is not there may not be there yet.
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
        self._waiting = Waiting(self.durability)
        self.signer = config.read_signer()
        self.round_trips = 0
        # Until there was one answer of a Redis, another protocol means that the address is wrong.
        self._was_answered = False

    @property
    def clock(self) -> Clock:
        """The clock by which it waits; who waits between its calls takes the same one."""
        return self._clock

    @property
    def url(self) -> str:
        """Address of the server; it never holds a user name or password."""
        return self._config.url.url

    @property
    def has_user(self) -> bool:
        """Whether it logs in as a user, who may have rights of its own."""
        return self._config.username is not None

    def call(
        self,
        attempted: str,
        commands: Sequence[Command],
        *,
        of_other_type: OtherType | None = None,
    ) -> list[Any]:
        """The replies of one pipeline; none of them is an error.

        Args:
            of_other_type: Takes the place of the reply to a command whose key is of another type:
                for who looks at many keys. ``None``: the call ends with an error.

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
        """The replies of one pipeline, final errors of the server among them.

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
        """The replies of many commands, sent in pipelines of `at_once` as they are taken.

        Args:
            of_other_type: As for `call`.

        Raises:
            RedisStateError: As `call`.
        """
        for start in range(0, len(commands), at_once):
            chunk = commands[start : start + at_once]
            yield from self.call(attempted, chunk, of_other_type=of_other_type)

    def script(
        self, attempted: str, script: Script, keys: Sequence[str], args: Sequence[str | bytes]
    ) -> list[str]:
        """The reply of a script, as words; its text is sent if the server does not know it.

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
        """The replies of `MULTI` … `EXEC` in one write; none of them is an error.

        A lost reply is resolved by sending the same again, so the commands are idempotent. Scripts
        are called by their hash; if the server does not know one, the same is sent again with all
        texts: the others may have been carried out, which does no harm.

        Args:
            counts: Whether these replies are of something that has to last as the option
                `durability` says; then the commands have written, also if they were sent before.

        Raises:
            CommitOutcomeUnknownError: The deadline passed, and it may have been applied, or it was
                and might not last.
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
            # A command that could not be queued says why; EXEC then only says that it was so.
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
        """The server has to answer well before we give the connection up."""
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
                    # This process was stopped meanwhile, and its connection did not outlast that.
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
        """The limits of the server; empty if it does not say."""
        return needs.settings_in(self._asked_aside(needs.ASK_LIMITS))

    def _asked_aside(self, commands: Sequence[Command]) -> list[Any]:
        """What the server answers about a failure; empty if it does not."""
        try:
            # Of a cluster any node: the commands name no keys.
            return self._transport.parts()[0].exchange(commands)
        except (redis.RedisError, RedisStateError):
            return []

    def _too_large(self, attempted: str, commands: Sequence[Command]) -> ConfigError | None:
        """The error for a request that the server never takes; ``None`` if it may take it."""
        _, longest = needs.sizes_of(commands)
        limit = longest > needs.BYTES_ALLOWED_MIN and needs.exceeded(self._limits(), longest)
        if not limit:
            return None
        return ConfigError(
            attempted,
            found=f"{self.url} closes the connection: it has {limit}, and an argument has "
            f"{longest} bytes",
            advice="Raise that limit there, or make the rows smaller.",
        )

    def _not_durable(
        self, attempted: str, tries: int, error: _TryAgainError
    ) -> CommitOutcomeUnknownError:
        return CommitOutcomeUnknownError(
            attempted,
            kind=Kind.NOT_DURABLE,
            found=(
                f"{self._config.url.url} has it, but after {tries} tries it is not as durable as "
                f"durability={self._config.durability} asks: {error}"
            ),
            advice=(
                "Run the same batch again: it waits again. Look at INFO replication and INFO "
                "persistence there: do the replicas follow, does the disk keep up?"
            ),
        )

    def opened(
        self, key: str, fields: Sequence[str], values: list[bytes | None]
    ) -> list[bytes | None]:
        """Blocks as their writer had them, of what the fields of a segment hold.

        Raises:
            FormatError: Blocks are signed, and a signature does not match.
        """
        return values if self.signer is None else self.signer.all_opened(key, fields, values)

    def over_parts(self, attempted: str, work: Callable[[Client], Iterable[T]]) -> Iterator[T]:
        """The results of `work` for each server that holds a part of the keys.

        Args:
            work: Started again with all servers when it raises `ServersChangedError`, or one of
                them was replaced; so some results may come twice.

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
        """A client that neither signs nor checks signatures, on the connections of this one."""
        plain = replace(self._config, signing_key_file=None)
        return Client(plain, clock=self._clock, connect=partial(_same, self._transport))

    def _parts(self) -> list[Any]:
        return list(self._transport.parts())

    def close(self) -> None:
        """Close the connections."""
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
            raise _TryAgainError("what answers there does not speak Redis's protocol") from error
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
    """What was asked of each server has to be asked again: one was replaced, or started anew."""


class _TryAgainError(Exception):
    """Sending the same again may help."""

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
        # What was sent when the server closed the connection.
        self.hung_up = hung_up
        # False: it was done, and a crash might undo it.
        self.lasts = lasts
