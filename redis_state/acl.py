"""Minimal rights of a job, a reader or a maintainer, as rules of Redis ACLs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from redis_state import keys
from redis_state.backend.durability import WAITAOF_SINCE, Durability
from redis_state.errors import ConfigError

OLDEST = (6, 2)
"""Oldest supported server; ACLs of older ones have no rules for channels."""

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?")

_READ = ("hget", "hmget", "hgetall", "hexists", "hlen")
_SCRIPTS = ("eval", "evalsha")
_CONNECT = ("select", "role", "asking")
_WRITE = ("hset", "hdel", "pexpire", "persist", "unlink", "rename", "time", "multi", "exec")
_INSTANCES = ("get", "set", "mget", "exists")
_STATUS = ("mget", "time")
_JOB = ("info", "hsetnx", "wait", "waitaof")
_SPARK = ("ping", "hrandfield", "pttl")
_MAINTAIN = ("hkeys", "hrandfield", "pttl", "scan", "dbsize", "info")
_SUBCOMMANDS = ("cluster|slots",)


class Role(str, Enum):
    """Role of a client, which decides its rights.

    Attributes:
        JOB: A Spark job or a Python store, with the maintenance and the coordinator inside it.
        READER: Live reads; scripts run, but can change nothing.
        MAINTAINER: `redis-state maintain` and `redis-state purge`.
    """

    JOB = "job"
    READER = "reader"
    MAINTAINER = "maintainer"

    def __str__(self) -> str:
        return self.value


_COMMANDS: dict[Role, tuple[str, ...]] = {
    Role.JOB: _READ + _SCRIPTS + _CONNECT + _WRITE + _INSTANCES + _JOB + _SPARK,
    Role.READER: _READ + _SCRIPTS + _CONNECT + _STATUS,
    Role.MAINTAINER: _READ + _SCRIPTS + _CONNECT + _WRITE + _INSTANCES + _MAINTAIN,
}


def commands(role: Role, *, version: str, durability: str = "none") -> tuple[str, ...]:
    """Returns the commands that a role needs, as ACL rules without their sign.

    Args:
        version: Version of the server, such as ``7.2``.
        durability: The option of the job. Without `WAITAOF`, a job that waits for the append-only
            file must read the server's settings, and so needs a right that shows them all.

    Raises:
        ConfigError: The version is malformed, or too old.
    """
    found = set(_COMMANDS[role] + _SUBCOMMANDS)
    if _numbers(version) < WAITAOF_SINCE:
        found.discard("waitaof")
        if role is Role.JOB and Durability.of(durability).aof:
            found.add("config|get")
    return tuple(sorted(found))


def rules(
    role: Role, *, version: str, key_prefix: str | None = None, durability: str = "none"
) -> list[str]:
    """Returns rules for `ACL SETUSER` that start from nothing allowed, without a password.

    Args:
        version: Version of the server, such as ``7.2``.
        key_prefix: The option `keyPrefix`. Tenants with different prefixes, or without one, cannot
            touch each other.
        durability: See `commands`.

    Raises:
        ConfigError: The version is malformed, or too old.
    """
    patterns = (f"~{one}" for one in keys.tenant_patterns(tenant=keys.tenant_of(key_prefix)))
    wanted = commands(role, version=version, durability=durability)
    allowed: Iterable[str] = (f"+{command}" for command in wanted)
    return ["reset", "on", *patterns, "resetchannels", "-@all", *allowed]


def _numbers(version: str) -> tuple[int, int]:
    found = _VERSION.fullmatch(version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise ConfigError(
            "writing ACL rules",
            found=f"'{version}' is not a server version that redis-state supports",
            advice="Give the version that INFO server prints, such as 7.2; 6.2 is the oldest.",
        )
    return int(found[1]), int(found[2])
