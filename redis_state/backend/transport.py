"""The interface of a transport: how pipelines reach one server or several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import redis

from redis_state.backend.connection import let_go, new_connections
from redis_state.backend.replies import bare, ends_connection
from redis_state.backend.script import Command
from redis_state.config import Config
from redis_state.process import tell_after_fork
from redis_state.url import Address


class NoServerError(redis.ConnectionError):
    """There is no server to send to at the moment; the text says why and may be shown."""


class ReplacedError(NoServerError):
    """Another server has taken the place of this one."""


class Transport(Protocol):
    """Sends pipelines once; whether they are sent again is for the caller to decide."""

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Write all commands in one go and read all replies, errors of the server among them.

        Raises:
            redis.RedisError: The connection failed: what was sent may or may not be applied.
            RedisStateError: No repetition can help.
        """

    def parts(self) -> Sequence[Transport]:
        """One for each server that holds a part of the keys."""

    def close(self) -> None:
        """Close the connections."""


class ServerTransport:
    """One server.

    Args:
        address: ``None`` means the one of the URL.
        anonymous: Connect without logging in, and without choosing a database.
    """

    def __init__(
        self, config: Config, address: Address | None = None, *, anonymous: bool = False
    ) -> None:
        self._connect = partial(new_connections, config, address, anonymous=anonymous)
        self._redis: redis.Redis | None = self._connect()
        tell_after_fork(self)

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """As `Transport.exchange`, on one connection."""
        pipeline = _Pipeline(self._connections())
        for command in commands:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def parts(self) -> Sequence[Transport]:
        """Itself."""
        return [self]

    def close(self) -> None:
        """Close the connections that are not in use; another thread may wait for an answer."""
        if self._redis is not None:
            self._redis.connection_pool.disconnect(inuse_connections=False)

    def after_fork(self) -> None:
        """The connections are the parent's; one of its threads may hold the lock of their pool."""
        if self._redis is not None:
            let_go(self._redis)
            self._redis = None

    def _connections(self) -> redis.Redis:
        if self._redis is None:
            self._redis = self._connect()
        return self._redis


class _Pipeline(redis.client.Pipeline):
    """A pipeline that closes its connection where replies are still to come.

    redis-py does so when reading fails, and not when it is interrupted between two replies, as by
    Control-C: the next one to use the connection would get the replies of this one. A refused
    `EXEC` leaves the connection inside the transaction, so that one is closed, too.

    Where the server has said why it closes the connection, that is the reply to the rest as well.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._missing = 0
        self._last_words: redis.ResponseError | None = None
        super().__init__(client.connection_pool, client.response_callbacks, False, None)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """As redis-py has it."""
        self._missing = len(self.command_stack)
        return super().execute(raise_on_error)

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """As redis-py has it."""
        if self._last_words is not None:
            raise self._last_words
        try:
            reply = super().parse_response(  # type: ignore[no-untyped-call]  # redis-py has no types
                connection, command_name, **options
            )
        except redis.ResponseError as error:
            if ends_connection(str(error)):
                self._last_words = error
            elif command_name != "EXEC":
                self._missing -= 1
            raise
        self._missing -= 1
        return reply

    def reset(self) -> None:  # type: ignore[override]  # as its own Pipeline overrides it
        """As redis-py has it: the connection goes back into the pool."""
        if self._missing and self.connection is not None:
            self.connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py has no types
        self._missing = 0
        super().reset()


def error_word(reply: object) -> str:
    """First word of an error reply; empty for anything else."""
    return bare(message_of(reply)).partition(" ")[0] if isinstance(reply, redis.RedisError) else ""


def message_of(error: redis.RedisError) -> str:
    """The reply as the server sent it: redis-py cuts the first word off for those it knows."""
    word = next((word for kind, word in _WORDS.items() if type(error) is kind), "")
    text = str(error)
    return text if not word or text.startswith(word) else f"{word} {text}"


_WORDS: dict[type[redis.RedisError], str] = {
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.ExecAbortError: "EXECABORT",
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
