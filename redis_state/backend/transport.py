"""Interface of a transport, which sends pipelines to one or several servers."""

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
    """No server is reachable at the moment; the text has the reason and may be shown."""


class ReplacedError(NoServerError):
    """Another server has replaced this one."""


class Transport(Protocol):
    """Sends pipelines once; the caller decides on repetitions."""

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Writes all commands at once, and reads all replies, including errors of the server.

        Raises:
            redis.RedisError: The connection failed: the commands may or may not be applied.
            RedisStateError: No repetition can help.
        """

    def parts(self) -> Sequence[Transport]:
        """Returns a transport for each server that holds a part of the keys."""

    def owner_known(self, slot: int | None) -> Address | None:
        """Returns the node that has a slot, as far as it is known; asks nobody.

        ``None`` also where all keys are in one place.
        """

    def close(self) -> None:
        """Closes the connections."""


class ServerTransport:
    """Transport to one server.

    Args:
        address: ``None`` means the address in the URL.
        anonymous: Connects without a login, and without choosing a database.
    """

    def __init__(
        self, config: Config, address: Address | None = None, *, anonymous: bool = False
    ) -> None:
        self._connect = partial(new_connections, config, address, anonymous=anonymous)
        self._redis: redis.Redis | None = self._connect()
        tell_after_fork(self)

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Implements `Transport.exchange`, on one connection."""
        pipeline = _Pipeline(self._connections())
        for command in commands:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def parts(self) -> Sequence[Transport]:
        """Returns this transport."""
        return [self]

    def owner_known(self, _slot: int | None) -> None:
        """Implements `Transport.owner_known`."""
        return

    def close(self) -> None:
        """Closes the connections that are not in use; another thread may still wait for a reply."""
        if self._redis is not None:
            self._redis.connection_pool.disconnect(inuse_connections=False)

    def after_fork(self) -> None:
        """Drops the parent's connections, and their pool: a thread may have held its lock."""
        if self._redis is not None:
            let_go(self._redis)
            self._redis = None

    def _connections(self) -> redis.Redis:
        if self._redis is None:
            self._redis = self._connect()
        return self._redis


class _Pipeline(redis.client.Pipeline):
    """A pipeline that closes its connection if replies are still missing.

    redis-py closes it if reading fails, but not after an interrupt between two replies, such as
    Control-C. The next user of the connection would then get the replies of this pipeline. A
    refused `EXEC` leaves the connection inside the transaction, so it is closed, too.

    If the server sent a reason and closed the connection, the reason is the reply to the rest too.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._missing = 0
        self._last_words: redis.ResponseError | None = None
        super().__init__(client.connection_pool, client.response_callbacks, False, None)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Overrides redis-py's method."""
        self._missing = len(self.command_stack)
        return super().execute(raise_on_error)

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """Overrides redis-py's method."""
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
        """Overrides redis-py's method, which returns the connection to the pool."""
        if self._missing and self.connection is not None:
            self.connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py has no types
        self._missing = 0
        super().reset()


def error_word(reply: object) -> str:
    """Returns the first word of an error reply; empty for other replies."""
    return bare(message_of(reply)).partition(" ")[0] if isinstance(reply, redis.RedisError) else ""


def message_of(error: redis.RedisError) -> str:
    """Restores the server's reply: redis-py cuts the first word off for the errors it knows."""
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
