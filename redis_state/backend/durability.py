"""The option `durability`: the guarantee that a commit waits for, and its commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from redis_state.backend.replies import fields_of
from redis_state.backend.script import Command
from redis_state.errors import ConfigError, Kind

WAITAOF_SINCE = (7, 2)
"""First version that can report a sync to disk. Older servers need `appendfsync always`."""

_UNKNOWN = "unknown command"
_NO_FILE = "appendonly is disabled"
_OLDER = "the server, which is older than 7.2,"

FILE_SETTINGS: Command = ("CONFIG", "GET", "append*")
"""Asks for the settings that `check_settings` verifies."""


@dataclass(frozen=True, slots=True)
class Durability:
    """The parsed option `durability`.

    Attributes:
        replicas: Number of replicas that must have received a commit.
        aof: True if a commit must be on disk.
    """

    replicas: int = 0
    aof: bool = False

    @classmethod
    def of(cls, option: str) -> Durability:
        """Parses the option, whose syntax was checked before."""
        number = re.search(r"[0-9]+", option)
        return cls(int(number[0]) if number else 0, option.startswith("aof"))

    @property
    def asked(self) -> bool:
        """True if commits wait at all."""
        return self.aof or self.replicas > 0


class DurabilityWait:
    """The commands after a transaction on its own connection, and the meaning of their replies.

    `WAIT` and `WAITAOF` concern the writes of their connection. After a transaction that wrote
    nothing they return at once.
    """

    def __init__(self, durability: Durability) -> None:
        self._wanted = durability
        # Assumed until a server denies it. A newer server passes the check for older ones, too.
        self._has_waitaof = True

    def commands(self, limit_ms: int) -> list[Command]:
        """Returns the commands to send after `EXEC`.

        Args:
            limit_ms: Longest wait in the server.
        """
        replicas, limit = str(self._wanted.replicas), str(max(1, limit_ms))
        if self._wanted.aof and self._has_waitaof:
            return [("WAITAOF", "1", replicas, limit)]
        wait: list[Command] = [("WAIT", replicas, limit)] if self._wanted.replicas else []
        return [*wait, FILE_SETTINGS] if self._wanted.aof else wait

    def missing(self, attempted: str, sent: Sequence[Command], replies: Sequence[Any]) -> str:
        """Describes what the transaction lacks; empty if nothing, or if a reply is another error.

        Args:
            sent: The result of `commands` for this transaction. Another call could return other
                commands, because a thread may have learned of the server's version since.

        Raises:
            ConfigError: The server writes no append-only file, or does not sync it at once.
        """
        reply = replies[0]
        on_disk = sent[0][0] == "WAITAOF"
        if on_disk and _UNKNOWN in str(reply):
            self._has_waitaof = False
            return "this server does not know WAITAOF"
        if on_disk and _NO_FILE in str(reply):
            raise no_file(attempted, "the server has appendonly no")
        if self._wanted.aof and not on_disk:
            check_settings(attempted, replies[-1])
        if isinstance(reply, redis.RedisError):
            return ""
        lacks = []
        local, followed = reply if on_disk else (1, reply)
        if local < 1:
            lacks.append("it is not on the server's disk")
        if self._wanted.replicas and followed < self._wanted.replicas:
            how = "have it on disk" if on_disk else "have it"
            lacks.append(f"{followed} of {self._wanted.replicas} replicas {how}")
        return " and ".join(lacks)


def check_settings(attempted: str, settings: object, *, server: str = _OLDER) -> None:
    """Rejects a server without `WAITAOF` that confirms a write before it is on disk.

    Args:
        settings: The reply to `CONFIG GET append*`; an error if the server refused.
        server: The server and its version, for messages.

    Raises:
        ConfigError: The server may lose confirmed writes.
    """
    found = fields_of(settings)
    if not found:
        shown = f"{server} does not allow this user to read its settings (the right 'config|get')"
        raise no_file(attempted, shown, kind=Kind.PERMISSION)
    if found.get("appendonly") != "yes":
        raise no_file(attempted, f"{server} has appendonly no")
    if found.get("appendfsync") != "always":
        raise no_file(attempted, f"{server} has appendfsync {found.get('appendfsync')}")


def no_file(attempted: str, found: str, *, kind: Kind = Kind.CONFIG) -> ConfigError:
    """Returns the error for a server that does not promise, or does not show, the durability."""
    return ConfigError(
        attempted,
        kind=kind,
        found=f"the option 'durability' requires each commit on disk; {found}",
        advice=(
            "Set appendonly yes on that server, before Redis 7.2 also appendfsync always; or set "
            "'durability' without aof."
        ),
    )
