"""The transport to the master that sentinels name."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import redis

from redis_state.backend.script import Command
from redis_state.backend.transport import NoServerError, ServerTransport, Transport, error_word
from redis_state.config import Config
from redis_state.errors import ConfigError
from redis_state.process import tell_after_fork
from redis_state.url import Address, SentinelEndpoint

# What a server answers that is not a master, or none yet.
_NO_MASTER = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
_UNNAMED = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})


class SentinelTransport:
    """Looks the master up again after a failed connection, or a reply of a server that is not one.

    Also where replicas do not acknowledge: they may follow another master by now, of which a server
    that is cut off has not been told.

    Safe to share between threads: no lock is held while a server is asked.
    """

    def __init__(self, config: Config, location: SentinelEndpoint) -> None:
        self._config = config
        self._location = location
        self._lock = threading.Lock()
        tell_after_fork(self)
        self._master: ServerTransport | None = None

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """As `Transport.exchange`, on the server that is the master now."""
        master = self._resolved()
        try:
            replies = master.exchange(commands)
        except redis.RedisError:
            self._forget(master)
            raise
        if any(map(_is_from_no_master, replies)) or any(map(_falls_short, commands, replies)):
            self._forget(master)
        return replies

    def parts(self) -> Sequence[Transport]:
        """Itself: the master holds all keys."""
        return [self]

    def after_fork(self) -> None:
        """A thread of the parent may hold the lock; new connections are made to each server."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            master, self._master = self._master, None
        if master is not None:
            master.close()

    def _resolved(self) -> ServerTransport:
        with self._lock:
            if self._master is not None:
                return self._master
        found = ServerTransport(self._config, self._ask_all())
        try:
            self._verify_role(found)
        except BaseException:
            found.close()
            raise
        with self._lock:
            known, self._master = self._master, self._master or found
        if known is not None:
            found.close()
        return known or found

    def _forget(self, master: ServerTransport) -> None:
        with self._lock:
            if self._master is master:
                self._master = None
        master.close()

    def _verify_role(self, server: ServerTransport) -> None:
        (reply,) = server.exchange([("ROLE",)])
        # A user without the right to ask may still be one that can read and write.
        if error_word(reply) in _UNNAMED:
            return
        if isinstance(reply, redis.RedisError):
            raise NoServerError(str(reply))
        if reply[0] not in (b"master", "master"):
            raise NoServerError("the server that the sentinels name is not a master")

    def _ask_all(self) -> Address:
        failure: redis.RedisError | None = None
        for sentinel in self._location.sentinels:
            try:
                found = self._ask(sentinel)
            except redis.RedisError as error:
                failure = error
                continue
            if found is not None:
                return found
        if failure is None:
            raise ConfigError(
                "asking the sentinels for the master",
                found=f"they watch no master named '{self._location.service}'",
                advice="Put the name from their configuration (sentinel monitor NAME …) into the "
                "URL.",
            )
        raise NoServerError(f"no sentinel names a master ({failure})") from failure

    def _ask(self, sentinel: Address) -> Address | None:
        reply = self._asked(sentinel, anonymous=True)
        # Sentinels have users of their own; most ask for no password.
        if error_word(reply) in _UNNAMED:
            reply = self._asked(sentinel, anonymous=False)
        if isinstance(reply, redis.RedisError):
            raise NoServerError(f"a sentinel answers '{reply}'")
        if reply is None:
            return None
        host, port = (part.decode() if isinstance(part, bytes) else part for part in reply)
        return Address(host, int(port))

    def _asked(self, sentinel: Address, *, anonymous: bool) -> Any:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._location.service)
        with closing(ServerTransport(self._config, sentinel, anonymous=anonymous)) as transport:
            return transport.exchange([question])[0]


def _falls_short(command: Command, reply: Any) -> bool:
    match command[0], reply:
        case "WAIT", int(followed):
            return followed < int(command[1])
        case "WAITAOF", [_, int(followed)]:
            return followed < int(command[2])
    return False


def _is_from_no_master(reply: object) -> bool:
    if isinstance(reply, list):
        return any(error_word(item) in _NO_MASTER for item in reply)
    return error_word(reply) in _NO_MASTER
