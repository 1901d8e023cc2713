"""Checks version, role and settings of a server before it stores state."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial

import redis

from redis_state.backend import needs
from redis_state.backend.client import Client
from redis_state.backend.durability import (
    FILE_SETTINGS,
    WAITAOF_SINCE,
    Durability,
    check_settings,
    no_file,
)
from redis_state.backend.replies import bare, lacking
from redis_state.backend.transport import message_of
from redis_state.errors import ConfigError

VERSION_MIN = (6, 2)
_LOG = logging.getLogger(__name__)
_ATTEMPTED = "checking the server"
_SAID_MAX = 256
_said: set[str] = set()


def check_server(client: Client) -> None:
    """Rejects a server that would lose state, is too old or lacks commands; called once per run.

    Checks every master of a cluster, because each has its own memory and settings.

    Raises:
        ConfigError: The server fails a check; the message has the requirement.
        UnavailableError: The deadline passed.
    """
    for warning in client.over_parts(_ATTEMPTED, _judged):
        # A job of many batches registers a run for each, so each sentence is logged only once.
        if warning not in _said:
            if len(_said) >= _SAID_MAX:
                _said.clear()
            _said.add(warning)
            _LOG.warning("%s", warning)


def _judged(client: Client) -> list[str]:
    trial = needs.trial()
    # A user with own rules most likely may not ask, and each refusal adds an entry to ACL LOG.
    asked = () if client.has_user else needs.ASK_LIMITS
    said, *replies = client.answers(_ATTEMPTED, [("INFO",), *trial, *asked])
    warnings = []
    if isinstance(said, Mapping):
        warnings = judge(
            client.url, said, client.durability, partial(_asked, client, *FILE_SETTINGS)
        )
    elif isinstance(said, redis.RedisError):
        _LOG.warning(
            "%s: its settings could not be checked: %s", client.url, bare(message_of(said))
        )
    absent = needs.absent(replies[: len(trial)])
    if absent:
        raise lacking(_ATTEMPTED, absent, at=client.url)
    return warnings + needs.warnings_of(client.url, needs.settings_in(replies[len(trial) :]))


def _asked(client: Client, *command: str | bytes) -> object:
    """Returns the reply; ``None``, with a warning, if the user may not ask."""
    (reply,) = client.answers(_ATTEMPTED, [command])
    if not isinstance(reply, redis.RedisError):
        return reply
    text = bare(message_of(reply))
    _LOG.warning("%s: its settings could not be checked: %s", client.url, text)
    return None


def judge(
    url: str,
    info: Mapping[str, object],
    durability: Durability,
    settings: Callable[[], object],
) -> list[str]:
    """Checks the server's `INFO`.

    Args:
        settings: Returns the reply to `FILE_SETTINGS`; called only for older servers.

    Returns:
        Warnings about settings that may cost state or time, one sentence each.

    Raises:
        ConfigError: The server is too old, is a replica, may evict keys, or lacks the file that
            `durability` needs.
    """
    _refuse(url, info)
    policy = str(info.get("maxmemory_policy", "noeviction"))
    keeps_file = _number(info, "aof_enabled") != 0
    if durability.aof and not keeps_file:
        raise no_file(_ATTEMPTED, f"{url} has appendonly no")
    if durability.aof and _version(info) < WAITAOF_SINCE:
        server = f"{url}, which runs version {info.get('redis_version')},"
        check_settings(_ATTEMPTED, settings(), server=server)
    warnings = []
    if policy.startswith("volatile"):
        warnings.append(
            f"{url} has maxmemory-policy {policy}: when memory is short, commits have to be "
            "repeated; noeviction is better"
        )
    if not keeps_file:
        warnings.append(
            f"{url} keeps no append-only file: when it stops, every write since its last RDB "
            "save is lost"
        )
    return warnings + _about_replicas(url, _number(info, "connected_slaves"), durability.replicas)


def _refuse(url: str, info: Mapping[str, object]) -> None:
    if info.get("redis_mode") == "sentinel":
        raise ConfigError(
            _ATTEMPTED,
            found=f"{url} is a Sentinel, which holds no state",
            advice="Use a redis+sentinel:// URL, with the name of the master after the port.",
        )
    if _version(info) < VERSION_MIN:
        raise ConfigError(
            _ATTEMPTED,
            found=f"{url} runs version {info.get('redis_version', '0.0')}",
            advice="Redis 6.2 or newer, or Valkey, is needed.",
        )
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        raise ConfigError(
            _ATTEMPTED,
            found=f"{url} has maxmemory-policy {policy} and would evict state",
            advice="Set maxmemory-policy noeviction on that server.",
        )
    if info.get("role") == "slave":
        raise ConfigError(
            _ATTEMPTED,
            found=f"{url} is a replica, which takes no writes",
            advice="Give the address of its master.",
        )


def _about_replicas(url: str, there: int | None, wanted: int) -> list[str]:
    if there is None:
        return []
    if there < wanted:
        return [
            f"{url} has {there} replicas, and durability=replicas:{wanted} waits for {wanted}: "
            "commits fail until that many are connected"
        ]
    if there and not wanted:
        return [
            f"{url} has replicas, but commits do not wait for them: a fail-over loses the commits "
            "that the new master had not received; durability=replicas:1 prevents that"
        ]
    return []


def _version(info: Mapping[str, object]) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", str(info.get("redis_version", "0.0")))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _number(info: Mapping[str, object], name: str) -> int | None:
    found = str(info.get(name, ""))
    return int(found) if found.isdigit() else None
