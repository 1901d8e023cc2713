"""Transports to the master, or to a replica, that sentinels name."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import redis

from redis_state.backend.replies import ReplyClass, bare, class_of, fields_of
from redis_state.backend.script import Command
from redis_state.backend.transport import (
    NoServerError,
    ServerTransport,
    Transport,
    error_word,
    message_of,
)
from redis_state.clock import Clock
from redis_state.config import Config
from redis_state.errors import ConfigError
from redis_state.process import tell_after_fork
from redis_state.url import Address, SentinelEndpoint

# Replies of a server that is not a master, or not yet.
_NO_MASTER = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
_UNNAMED = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})
_MASTER = "GET-MASTER-ADDR-BY-NAME"
_REPLICAS = "REPLICAS"
_DOWN = frozenset({"s_down", "o_down", "disconnected"})


REPLICA_LOOK_S = 5.0
"""Shortest pause between searches for a replica while the master answers in its place."""

_LOOK_SHARE = 0.1
"""Largest share of time for such searches, because a dead sentinel answers only by timeout."""


class _NoSentinelError(NoServerError):
    """The server lacks the command of sentinels."""


class SentinelTransport:
    """Resolves the master again after a failed connection, or a reply that no master gives.

    Does so, too, if replicas do not acknowledge. They may follow another master by now, which an
    isolated master would not know.

    Safe to share between threads: no lock is held during a request.
    """

    def __init__(self, config: Config, location: SentinelEndpoint) -> None:
        self._config = config
        self._location = location
        self._lock = threading.Lock()
        tell_after_fork(self)
        self._master: ServerTransport | None = None

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Implements `Transport.exchange`, on the present master."""
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
        """Returns this transport, because the master holds all keys."""
        return [self]

    def owner_known(self, _slot: int | None) -> None:
        """Implements `Transport.owner_known`."""
        return

    def after_fork(self) -> None:
        """Replaces the lock, which a thread of the parent may have held at the fork."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with self._lock:
            master, self._master = self._master, None
        if master is not None:
            master.close()

    def _resolved(self) -> ServerTransport:
        with self._lock:
            if self._master is not None:
                return self._master
        found = self._connected()
        with self._lock:
            known, self._master = self._master, self._master or found
        if known is not None:
            found.close()
        return known or found

    def _connected(self) -> ServerTransport:
        """Connects to the server that shall answer."""
        return self._verified(self._ask_all(_MASTER), self._verify_role)

    def _verified(
        self, address: Address, verify: Callable[[ServerTransport], None]
    ) -> ServerTransport:
        found = ServerTransport(self._config, address)
        try:
            verify(found)
        except BaseException:
            found.close()
            raise
        return found

    def _forget(self, master: ServerTransport) -> None:
        with self._lock:
            if self._master is master:
                self._master = None
        master.close()

    def _verify_role(self, server: ServerTransport) -> None:
        role = _role(server)
        if role is not None and role[0] != b"master":
            raise NoServerError("the server that the sentinels name is not a master")

    def _ask_all(self, question: str) -> Any:
        """Returns the answer of the first sentinel that knows the master (or its replicas)."""
        failure: redis.RedisError | None = None
        for sentinel in self._location.sentinels:
            try:
                found = self._ask(sentinel, question)
            except redis.RedisError as error:
                # The error of a real sentinel may be transient, so it outranks that of another
                # server.
                if failure is None or not isinstance(error, _NoSentinelError):
                    failure = error
                continue
            if found is not None:
                return found
        if failure is None:
            raise ConfigError(
                "asking the sentinels for the master",
                found=f"the sentinels watch no master named '{self._location.service}'",
                advice="Put the name from their configuration (sentinel monitor NAME …) into the "
                "URL.",
            )
        if isinstance(failure, _NoSentinelError):
            raise ConfigError(
                "asking the sentinels for the master",
                found=f"{failure}: it is not a Sentinel, or the command was renamed",
                advice="Give the addresses of Sentinels, or a redis:// URL for one server.",
            ) from failure
        raise NoServerError(f"no sentinel names a master ({failure})") from failure

    def _ask(self, sentinel: Address, question: str) -> Any:
        reply = self._asked(sentinel, question, anonymous=True)
        # Sentinels have users of their own, and most need no password.
        if error_word(reply) in _UNNAMED:
            reply = self._asked(sentinel, question, anonymous=False)
        if isinstance(reply, redis.RedisError) and "No such master" in str(reply):
            return None
        if isinstance(reply, redis.RedisError):
            if class_of(message_of(reply)) is ReplyClass.LACKING:
                raise _NoSentinelError(f"{sentinel} lacks the command SENTINEL")
            raise NoServerError(f"a sentinel answers '{bare(message_of(reply))}'")
        if question == _REPLICAS:
            return [address for one in reply if (address := _followed(fields_of(one))) is not None]
        return None if reply is None else _address(*reply)

    def _asked(self, sentinel: Address, question: str, *, anonymous: bool) -> Any:
        command = ("SENTINEL", question, self._location.service)
        with closing(ServerTransport(self._config, sentinel, anonymous=anonymous)) as transport:
            return transport.exchange([command])[0]


class ReplicaTransport(SentinelTransport):
    """Reads from a replica that follows the master, or from the master if there is no such replica.

    Each pipeline also asks for the server's role. The replies of a replica that no longer follows
    are discarded, because its data may be old.
    """

    def __init__(self, config: Config, location: SentinelEndpoint, *, clock: Clock) -> None:
        super().__init__(config, location)
        self._clock = clock
        self._look_at_s = clock.monotonic_s()

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Implements `Transport.exchange`, on a replica if there is one."""
        server = self._resolved()
        try:
            said, *replies = server.exchange([("ROLE",), *commands])
            role = _role_in(said)
            if role is not None and role[0] != b"master":
                _check_follows(role)
        except redis.RedisError:
            self._forget(server)
            raise
        if role is not None and role[0] == b"master":
            self._look_again(server)
        return replies

    def _connected(self) -> ServerTransport:
        found = self._replica()
        if found is not None:
            return found
        self._look_at_s = self._clock.monotonic_s() + REPLICA_LOOK_S
        return super()._connected()

    def _replica(self) -> ServerTransport | None:
        found = self._ask_all(_REPLICAS)
        for address in random.sample(found, len(found)):
            with suppress(redis.RedisError):
                return self._verified(address, _verify_follows)
        return None

    def _look_again(self, master: ServerTransport) -> None:
        """Replaces the master by a replica, if one follows again."""
        began_s = self._clock.monotonic_s()
        with self._lock:
            if began_s < self._look_at_s:
                return
            self._look_at_s = began_s + REPLICA_LOOK_S
        found = None
        # Errors are ignored, because the master still answers.
        with suppress(redis.RedisError, ConfigError):
            found = self._replica()
        ended_s = self._clock.monotonic_s()
        unused = found
        with self._lock:
            pause_s = max(REPLICA_LOOK_S, (ended_s - began_s) * (1 / _LOOK_SHARE - 1))
            self._look_at_s = ended_s + pause_s
            if found is not None and self._master is master:
                self._master, unused = found, master
        if unused is not None:
            unused.close()


def _verify_follows(server: ServerTransport) -> None:
    role = _role(server)
    if role is not None:
        _check_follows(role)


def _check_follows(role: Sequence[Any]) -> None:
    if role[0] != b"slave" or role[3] != b"connected":
        raise NoServerError("the replica follows no master")


def _role(server: ServerTransport) -> list[Any] | None:
    """Asks for the role; ``None`` if the user has no right to ask, but may still read."""
    (reply,) = server.exchange([("ROLE",)])
    return _role_in(reply)


def _role_in(reply: Any) -> list[Any] | None:
    if error_word(reply) in _UNNAMED:
        return None
    if isinstance(reply, redis.RedisError):
        if class_of(message_of(reply)) is ReplyClass.LACKING:
            return None
        raise NoServerError(message_of(reply))
    found: list[Any] = [one.encode() if isinstance(one, str) else one for one in reply]
    return found


def _followed(replica: Mapping[str, str]) -> Address | None:
    """Returns the address of a replica that is up and linked to its master; ``None`` otherwise."""
    flags = set(replica.get("flags", "").split(","))
    if flags & _DOWN or replica.get("master-link-status") != "ok":
        return None
    return _address(replica["ip"], replica["port"])


def _address(host: bytes | str, port: bytes | str) -> Address:
    return Address(host.decode() if isinstance(host, bytes) else host, int(port))


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
    if isinstance(reply, dict):
        # Of INFO.
        return reply.get("role") == "slave"
    return error_word(reply) in _NO_MASTER
