"""Sends pipelines until they are answered, or until the deadline."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import redis

from redis_state.backend.connection import final_error, hint, new_connections, refused
from redis_state.backend.replies import failure, is_transient
from redis_state.backend.script import Command, Script
from redis_state.clock import SYSTEM, Clock
from redis_state.config import Config
from redis_state.errors import (
    CommitOutcomeUnknownError,
    FormatError,
    InternalError,
    UnavailableError,
)

_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0
_DOUBLINGS_MAX = 10


class Client:
    """A server of which only idempotent commands are asked, so that each may be sent again.

    Safe to share between threads: each pipeline has a connection of its own while it runs.

    Attributes:
        round_trips: Pipelines that were sent.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock = SYSTEM,
        connect: Callable[[Config], redis.Redis] | None = None,
    ) -> None:
        self._config = config
        self._deadline_s = config.deadline / 1000
        self._clock = clock
        self._redis = (connect or new_connections)(config)
        self.round_trips = 0

    def call(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        """The replies of one pipeline; none of them is an error.

        Raises:
            UnavailableError: The deadline passed.
            RedisStateError: The server refuses a command for good.
        """
        return self._until_answered(
            attempted, lambda: self._checked(attempted, self._exchange(attempted, commands))
        )

    def script(
        self, attempted: str, script: Script, keys: Sequence[str], args: Sequence[str | bytes]
    ) -> list[str]:
        """The words that a script answers, which the server learns where it does not know it.

        Raises:
            UnavailableError: The deadline passed.
            RedisStateError: The server refuses the script for good.
        """

        def once() -> list[Any]:
            replies = self._exchange(attempted, [script.by_hash(keys, *args)])
            if isinstance(replies[0], redis.exceptions.NoScriptError):
                replies = self._exchange(attempted, [script.by_text(keys, *args)])
            return self._checked(attempted, replies)

        return words(attempted, self._until_answered(attempted, once)[0])

    def transaction(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        """The replies of `MULTI` … `EXEC` in one write; none of them is an error.

        A lost reply is resolved by sending the same again, so the commands are idempotent.

        Raises:
            CommitOutcomeUnknownError: The deadline passed, and it may have been applied.
            RedisStateError: The server refuses a command for good.
        """

        def once() -> list[Any]:
            replies = self._exchange(attempted, [("MULTI",), *commands, ("EXEC",)])
            # A command that could not be queued says why; EXEC then only says that it was so.
            self._checked(attempted, replies)
            results = replies[-1]
            if not isinstance(results, list) or len(results) != len(commands):
                raise InternalError(attempted, found="EXEC answered something else than results")
            return self._checked(attempted, results)

        return self._until_answered(attempted, once, late=CommitOutcomeUnknownError)

    def _until_answered(
        self,
        attempted: str,
        once: Callable[[], list[Any]],
        *,
        late: type[UnavailableError] | type[CommitOutcomeUnknownError] = UnavailableError,
    ) -> list[Any]:
        end = self._clock.monotonic_s() + self._deadline_s
        tries = 0
        while True:
            tries += 1
            try:
                return once()
            except _TryAgainError as error:
                left = end - self._clock.monotonic_s()
                if left <= 0:
                    raise late(
                        attempted,
                        found=f"{self._config.url.url} gave no answer in {tries} tries: {error}",
                        advice=f"{late.default_advice} {error.hint}".rstrip(),
                    ) from error.__cause__
                ceiling = _BACKOFF_MIN_S * 2 ** min(tries - 1, _DOUBLINGS_MAX)
                wait = min(_BACKOFF_MAX_S, ceiling) * random.uniform(0.5, 1)
                self._clock.sleep_s(min(left, wait))

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        self.round_trips += 1
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        try:
            replies = pipeline.execute(raise_on_error=False)
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
            final = final_error(attempted, error, self._config)
            if final is not None:
                raise final from error
            if isinstance(error, redis.ResponseError):
                raise _judged(attempted, _message(error)) from error
            raise _TryAgainError(type(error).__name__, hint(error, self._config)) from error
        return replies

    def _checked(self, attempted: str, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, redis.AuthenticationError):
                raise refused(attempted, str(reply))
            if isinstance(reply, redis.RedisError):
                raise _judged(attempted, _message(reply)) from reply
        return replies


def words(attempted: str, reply: object) -> list[str]:
    """What a script answered, as text.

    Raises:
        FormatError: It is no array of ASCII words.
    """
    try:
        if isinstance(reply, list):
            return [word.decode("ascii") for word in reply]
    except (AttributeError, UnicodeDecodeError):
        pass
    raise FormatError(attempted, found="the answer of its script is malformed")


class _TryAgainError(Exception):
    """Sending the same again may help."""

    def __init__(self, found: str, hint: str = "") -> None:
        super().__init__(found)
        self.hint = hint


def _judged(attempted: str, message: str) -> Exception:
    return _TryAgainError(message) if is_transient(message) else failure(attempted, message)


def _message(error: redis.RedisError) -> str:
    """The reply as the server sent it: redis-py cuts the first word off for those it knows."""
    words = {
        redis.exceptions.BusyLoadingError: "LOADING",
        redis.exceptions.NoScriptError: "NOSCRIPT",
        redis.exceptions.ReadOnlyError: "READONLY",
        redis.exceptions.NoPermissionError: "NOPERM",
        redis.exceptions.OutOfMemoryError: "OOM",
        redis.exceptions.TryAgainError: "TRYAGAIN",
        redis.exceptions.ClusterDownError: "CLUSTERDOWN",
        redis.exceptions.MasterDownError: "MASTERDOWN",
        redis.exceptions.AskError: "ASK",
        redis.exceptions.MovedError: "MOVED",
    }
    word = next((word for kind, word in words.items() if type(error) is kind), "")
    text = str(error)
    return text if not word or text.startswith(word) else f"{word} {text}"
