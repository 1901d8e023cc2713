"""Client that repeats a pipeline until it is answered, or until the deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import redis

from redis_state.backend.durability import Durability, DurabilityWait
from redis_state.backend.failures import FailureClassifier, LateError, ServersChangedError
from redis_state.backend.replies import (
    OtherType,
    is_login,
    is_of_other_type,
    words,
)
from redis_state.backend.retry import Retries, TransientError
from redis_state.backend.routing import key_of, slot_of
from redis_state.backend.script import Command, Script, ScriptCall
from redis_state.backend.transport import Transport, message_of
from redis_state.backend.transports import transport_to
from redis_state.clock import SYSTEM, Clock
from redis_state.config import Config
from redis_state.errors import (
    CommitOutcomeUnknownError,
    InternalError,
    RedisStateError,
    UnavailableError,
)

# Allows several masters to fail in turn. More replacements are not a fail-over.
_REPLACED_MAX = 5

_LOOKING = "looking for replicas"
_REPLICATION: Command = ("INFO", "replication")

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
        self._clock = clock
        self._transport = connect(config)
        self._retries = Retries(config, clock)
        self._failures = FailureClassifier(config, self._transport)
        self._waiting = DurabilityWait(self.durability)
        self.signer = config.read_signer()
        self.round_trips = 0

    @property
    def clock(self) -> Clock:
        """The clock for waits. Callers that wait between two calls use the same one."""
        return self._clock

    @property
    def deadline_s(self) -> float:
        """Time for which a call is repeated, in seconds."""
        return self._config.deadline / 1000

    @property
    def url(self) -> str:
        """Address of the server, without user name and password."""
        return self._config.url.url

    @property
    def read_parallel(self) -> int:
        """Most ranges of a file that are read at once."""
        return self._config.read_parallel

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
            return self._failures.checked(attempted, replies, commands)

        return self._until_answered(attempted, once)

    def call_lasting(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        """Sends one pipeline of writes, and waits until a replica of each server has them.

        A server without replicas is not waited for, unless `durability` demands some; nor is such
        a master of a cluster, while the others are.

        Raises:
            UnavailableError: The deadline passed. The writes may be applied.
            RedisStateError: The server refuses a command for good.
        """
        if not commands:
            return []
        parts = self._until_answered(
            _LOOKING, lambda: self._failures.reached(_LOOKING, self._parts)
        )
        # Of a cluster each command has a wait of its own.
        groups = [commands] if len(parts) == 1 else [[one] for one in commands]
        sent: list[Command] = []
        wanted: dict[int, int] = {}
        for group, found in zip(groups, self._replicas_of(groups), strict=True):
            sent += group
            number = max(self.durability.replicas, min(1, found))
            if number:
                wanted[len(sent)] = number
                sent.append(("WAIT", str(number), str(self._wait_ms())))

        def once() -> list[Any]:
            replies = self._failures.checked(attempted, self._exchange(attempted, sent), sent)
            for at, number in wanted.items():
                if replies[at] < number:
                    raise TransientError(f"{replies[at]} of {number} replicas have it")
            return [reply for at, reply in enumerate(replies) if at not in wanted]

        return self._until_answered(attempted, once)

    def _replicas_of(self, groups: Sequence[Sequence[Command]]) -> list[int]:
        """Returns the number of replicas of the server that each group of commands goes to."""
        asked: list[Command] = []
        for group in groups:
            asked += [("EXISTS", key_of(group[0]) or ""), _REPLICATION]

        def once() -> list[int]:
            replies = self._failures.checked(_LOOKING, self._exchange(_LOOKING, asked), asked)
            if any(info.get("role") == "slave" for info in replies[1::2]):
                # A fail-over is under way: a former master has no replicas.
                raise TransientError("the server is a replica")
            return [int(info.get("connected_slaves", 0)) for info in replies[1::2]]

        return self._until_answered(_LOOKING, once)

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
                    judged = self._failures.classified(attempted, message_of(reply))
                    if isinstance(judged, TransientError) or is_login(message_of(reply)):
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
        return self.scripts(attempted, [script.call(keys, *args)])[0]

    def scripts(self, attempted: str, calls: Sequence[ScriptCall]) -> list[list[str]]:
        """Runs scripts in one pipeline, and returns the words of each reply.

        If the server lacks a script, all are run again, by their texts.

        Raises:
            UnavailableError: The deadline passed.
            RedisStateError: The server refuses a script for good.
        """

        def once() -> list[Any]:
            sent = [one.by_hash for one in calls]
            replies = self._exchange(attempted, sent)
            if _lacks_script(replies):
                sent = [one.by_text for one in calls]
                replies = self._exchange(attempted, sent)
            return self._failures.checked(attempted, replies, sent)

        return [words(attempted, one) for one in self._until_answered(attempted, once)]

    def transaction(
        self,
        attempted: str,
        commands: Sequence[Command | ScriptCall],
        *,
        counts: Callable[[list[Any]], bool] | None = None,
        unanswered: LateError = CommitOutcomeUnknownError,
    ) -> list[Any]:
        """Sends `MULTI` … `EXEC` in one write, and returns the replies without errors.

        A lost reply is resolved by sending the same commands again, so they are idempotent.
        Scripts are called by hash. If the server lacks one, everything is sent again with all
        texts. Commands may then run twice, which does no harm.

        Args:
            counts: Returns whether these replies are of a write for which `durability` demands a
                wait. Such commands have written, also if they were repeated.
            unanswered: Error if the deadline passed without an answer.

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
            self._failures.checked(attempted, replies, sent)
            results = replies[-1]
            if not isinstance(results, list) or len(results) != len(commands):
                raise InternalError(attempted, found="EXEC answered something other than results")
            self._failures.checked(attempted, results, sent[1:-1])
            if counts is not None and waits and counts(results):
                self._check_waits(attempted, waits, waited)
            return results

        return self._until_answered(attempted, once, unanswered)

    def _wait_ms(self) -> int:
        """Returns the limit of a wait, short enough for the answer to arrive in time."""
        return min(self._config.socket_timeout // 2, self._config.deadline)

    def _check_waits(self, attempted: str, sent: list[Command], waited: list[Any]) -> None:
        missing = self._waiting.missing(attempted, sent, waited)
        if missing:
            raise TransientError(missing, lasts=False)
        self._failures.checked(attempted, waited, sent)

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
                    attempted, lambda: self._failures.reached(attempted, self._parts)
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

    def server_of(self, key: str) -> str:
        """Returns the name of the server that has a key, as far as it is known; asks nobody."""
        owner = self._transport.owner_known(slot_of(("EXISTS", key)))
        return self.url if owner is None else f"{owner} of {self.url}"

    def answers_once(self, key: str) -> bool:
        """Returns whether the server of a key serves one call, without repetition.

        A call that it refuses for good was answered.
        """
        what = "looking whether a server answers"
        try:
            commands: list[Command] = [("EXISTS", key)]
            self._failures.checked(what, self._exchange(what, commands), commands)
        except TransientError:
            return False
        except RedisStateError as error:
            return not isinstance(error, UnavailableError)
        return True

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def _until_answered(
        self, attempted: str, once: Callable[[], T], late: LateError = UnavailableError
    ) -> T:
        return self._retries.until_answered(
            once, lambda error, tries: self._failures.too_late(attempted, error, tries, late)
        )

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        self.round_trips += 1
        return self._failures.reached(
            attempted, lambda: self._transport.exchange(commands), commands
        )


def _lacks_script(replies: Sequence[Any]) -> bool:
    results = replies[-1] if isinstance(replies[-1], list) else []
    return any(isinstance(one, redis.exceptions.NoScriptError) for one in (*replies, *results))


def _is_of_other_type(reply: object) -> bool:
    return isinstance(reply, redis.RedisError) and is_of_other_type(message_of(reply))


def _same(transport: Transport, _config: Config) -> Transport:
    return transport
