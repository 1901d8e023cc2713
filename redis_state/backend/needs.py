"""A job's needs of a server: its commands, and limits above the size of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from redis_state.backend.replies import ReplyClass, class_of, fields_of
from redis_state.backend.script import Command
from redis_state.backend.transport import message_of
from redis_state.format.block import RAW_LENGTH_MAX

_WITHOUT_ARGUMENTS = ("MULTI", "EXEC", "TIME")
COMMANDS = (
    *_WITHOUT_ARGUMENTS,
    *("EVAL", "EVALSHA"),
    *("HSET", "HSETNX", "HGET", "HMGET", "HGETALL", "HEXISTS", "HLEN", "HDEL", "HRANDFIELD"),
    *("SET", "GET", "MGET", "EXISTS", "PEXPIRE", "PTTL", "PERSIST", "UNLINK", "RENAME"),
)
"""Commands of a job and its scripts."""

BYTES_ALLOWED_MIN = 1 << 20
"""Smallest value that servers accept for a request limit. Smaller requests always fit."""

_BULK = "proto-max-bulk-len"
_QUERY = "client-query-buffer-limit"
_OUTPUT = "client-output-buffer-limit"
_CLIENTS = "maxmemory-clients"
ASK_LIMITS: tuple[Command, ...] = tuple(
    ("CONFIG", "GET", name) for name in (_BULK, _QUERY, _OUTPUT, _CLIENTS)
)
"""Separate commands, because `CONFIG GET` of Redis 6.2 takes one name."""


def trial() -> list[Command]:
    """Returns each command with a wrong number of arguments, so that none has an effect.

    A server looks up the command first, then counts its arguments, and checks rights last.
    """
    return [(name, "x") if name in _WITHOUT_ARGUMENTS else (name,) for name in COMMANDS]


def absent(replies: Sequence[Any]) -> list[str]:
    """Returns the commands that the server lacks, by its replies to `trial`."""
    return [
        name
        for name, reply in zip(COMMANDS, replies, strict=False)
        if isinstance(reply, redis.RedisError) and class_of(message_of(reply)) is ReplyClass.LACKING
    ]


def settings_in(replies: Sequence[Any]) -> dict[str, str]:
    """Returns the settings in the replies to `ASK_LIMITS` that the user may see."""
    return {name: value for reply in replies for name, value in fields_of(reply).items()}


def warnings_of(url: str, settings: Mapping[str, str]) -> list[str]:
    """Returns one sentence for each limit below the size that a row may have."""
    found = [
        f"{url} has {name} {settings[name]}: a block may have {RAW_LENGTH_MAX} bytes, and a commit "
        "with a block above that limit fails"
        for name in (_BULK, _QUERY)
        if 0 < _number(settings, name) < RAW_LENGTH_MAX
    ]
    return found + [
        f"{url} has {limit}: the server closes the connection on a larger reply, so reading a "
        "large partition may fail"
        for limit in _reply_limits(settings)
    ]


def exceeded(settings: Mapping[str, str], argument_bytes: int) -> str:
    """Returns the limit that an argument of this size exceeds; empty if none."""
    for name in (_BULK, _QUERY):
        if 0 < _number(settings, name) < argument_bytes:
            return f"{name} {settings[name]}"
    return ""


def hint_of_limits(settings: Mapping[str, str], *, sent_bytes: int, argument_bytes: int) -> str:
    """Returns advice for a server that repeatedly closes the connection."""
    low = _reply_limits(settings)
    if 0 < _number(settings, _QUERY) < sent_bytes:
        low.append(f"{_QUERY} {settings[_QUERY]}")
    if low:
        return f"It has {' and '.join(low)}, which closes connections: raise that limit."
    if settings:
        return "The server's log has the reason."
    size = f" (sent: {sent_bytes} bytes, {argument_bytes} of them in one argument)"
    return (
        f"The server closes the connection, as it does above {_BULK}, {_QUERY}{size}, {_OUTPUT} or "
        f"{_CLIENTS}: compare these limits, and read the server's log."
    )


def sizes_of(commands: Sequence[Command]) -> tuple[int, int]:
    """Returns the total size of all arguments, and the size of the longest, in bytes."""
    sizes = [len(argument) for command in commands for argument in command]
    return sum(sizes), max(sizes, default=0)


def _reply_limits(settings: Mapping[str, str]) -> list[str]:
    words = settings.get(_OUTPUT, "").split()
    of_class = dict(zip(words[::4], zip(words[1::4], words[2::4], strict=False), strict=False))
    hard, soft = of_class.get("normal", ("0", "0"))
    found = [f"{_OUTPUT} normal {hard} {soft}"] if (hard, soft) != ("0", "0") else []
    if settings.get(_CLIENTS, "0") != "0":
        found.append(f"{_CLIENTS} {settings[_CLIENTS]}")
    return found


def _number(settings: Mapping[str, str], name: str) -> int:
    found = settings.get(name, "")
    return int(found) if found.isdigit() else 0
