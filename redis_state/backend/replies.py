"""What the server's error replies mean for the caller: one table, the same as in the JVM core."""

from __future__ import annotations

import re
from enum import Enum

from redis_state.errors import (
    ConfigError,
    FormatError,
    FullError,
    InternalError,
    Kind,
    RedisStateError,
    StateError,
)


class ReplyClass(Enum):
    """How to react to an error reply; docs/errors.md has the table."""

    TRANSIENT = "transient"
    """Waiting and sending again helps."""
    SCRIPT = "script"
    """The server forgot a script; a pipeline makes it known first, so sending again helps."""
    FULL = "full"
    """Out of memory, or disk: nothing partial stays."""
    PERMISSION = "permission"
    """The user lacks a right."""
    PROGRAMMING = "programming"
    """Nothing helps."""


_WORDS = {
    "LOADING": ReplyClass.TRANSIENT,
    "BUSY": ReplyClass.TRANSIENT,
    "TRYAGAIN": ReplyClass.TRANSIENT,
    "CLUSTERDOWN": ReplyClass.TRANSIENT,
    "MASTERDOWN": ReplyClass.TRANSIENT,
    "MOVED": ReplyClass.TRANSIENT,
    "ASK": ReplyClass.TRANSIENT,
    "READONLY": ReplyClass.TRANSIENT,
    "NOREPLICAS": ReplyClass.TRANSIENT,
    "UNBLOCKED": ReplyClass.TRANSIENT,
    "NOSCRIPT": ReplyClass.SCRIPT,
    "OOM": ReplyClass.FULL,
    "MISCONF": ReplyClass.FULL,
    "NOPERM": ReplyClass.PERMISSION,
    "WRONGPASS": ReplyClass.PERMISSION,
    "NOAUTH": ReplyClass.PERMISSION,
}
_FULL_IN_SCRIPT = "OOM command not allowed"
# What Redis 6.2 and 7.0, and newer ones, say of a command inside a script.
_PERMISSION_IN_SCRIPT = ("user executing the script can't run", "ACL failure")
# A key that only the script names is on another node, for as long as its slot is half moved.
_TRANSIENT_IN_SCRIPT = ("non local key in a cluster node", "while the cluster is down")
# The server became a replica between a commit and the wait after it.
_TRANSIENT_AFTER_COMMIT = "cannot be used with replica instances"
_ABORTED = "EXECABORT"
# Behind a reply to a command inside a script: of no use to who reads it.
_SCRIPT = re.compile(r" script: [0-9a-f]{40}, on @user_script:\d+\.?$")
# What Redis 6.2 puts before the reply to a command inside a script.
_AROUND = re.compile(r"Error running script .*@user_script: ?\d+: -(?=[A-Z]+ )", re.DOTALL)


def bare(message: str) -> str:
    """An error reply without the prefix of an old server; its first word says what it is."""
    around = _AROUND.search(message)
    return message[around.end() :] if around else message


def class_of(message: str) -> ReplyClass:
    """The class of an error reply."""
    message = bare(message)
    word = message.split(" ", 1)[0]
    if word == _ABORTED:
        return class_of(message.partition(": ")[2])
    if _FULL_IN_SCRIPT in message:
        return ReplyClass.FULL
    if any(text in message for text in _PERMISSION_IN_SCRIPT):
        return ReplyClass.PERMISSION
    if any(text in message for text in _TRANSIENT_IN_SCRIPT):
        return ReplyClass.TRANSIENT
    if _TRANSIENT_AFTER_COMMIT in message:
        return ReplyClass.TRANSIENT
    return _WORDS.get(word, ReplyClass.PROGRAMMING)


def is_transient(message: str) -> bool:
    """Whether sending again helps."""
    return class_of(message) in (ReplyClass.TRANSIENT, ReplyClass.SCRIPT)


def failure(attempted: str, message: str) -> RedisStateError:
    """The named error for an error reply that is final."""
    found = f"the server answers '{_SCRIPT.sub('', bare(message))[:200].rstrip('.')}'"
    match class_of(message):
        case ReplyClass.FULL:
            return FullError(attempted, found=found)
        case ReplyClass.PERMISSION:
            return ConfigError(
                attempted,
                found=found,
                kind=Kind.PERMISSION,
                advice="Give the user that right; `redis-state acl` prints all that are needed.",
            )
    return InternalError(attempted, found=found)


def purged_gen(format_number: str) -> str:
    """The checkpoint that was purged, if a partition's format field says so."""
    word, _, gen = format_number.partition(":")
    return gen if word == "purged" else ""


def purged_error(
    attempted: str, gen: str, *, where: str = "", version: int | None = None
) -> StateError:
    """The error for what expires, because its checkpoint was purged within the last day."""
    return StateError(
        attempted,
        kind=Kind.STATE_LOST,
        found="the checkpoint was purged, and its keys expire within a day of the purge",
        advice=f"Bring it back with `redis-state purge --gen {gen} --recall`; or, to start "
        f"afresh, remove it at once with `redis-state purge --gen {gen} --now`.",
        where=where,
        version=version,
    )


def unserved(
    attempted: str, reply: list[str], *, where: str, version: int | None
) -> RedisStateError:
    """The named error for the refusals that mean the same to readers and writers."""
    match reply:
        case ["VERSION_EXPIRED", floor, *_]:
            return StateError(
                attempted,
                kind=Kind.VERSION_EXPIRED,
                found=f"it is gone: retention keeps version {floor} and newer ones",
                advice="Ask for a newer one; to keep more versions from now on, raise "
                "versionsToRetain.",
                where=where,
                version=version,
            )
        case ["FORMAT", found] if purged_gen(found):
            return purged_error(attempted, purged_gen(found), where=where, version=version)
        case ["FORMAT", found]:
            return FormatError(
                attempted,
                found=f"Redis holds format {found[:20]}, and this release reads format 1",
                advice="Use the release of redis-state that wrote it.",
                where=where,
            )
    return InternalError(
        attempted, found=f"the script answered '{' '.join(reply)[:200]}'", where=where
    )
