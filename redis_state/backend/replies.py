"""Classifies the server's error replies; the table is the same as in the JVM core."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from redis_state.backend.script import Command
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
    """Reaction to an error reply; docs/errors.md has the table."""

    TRANSIENT = "transient"
    """Transient: wait and send again."""
    SCRIPT = "script"
    """The server forgot a script. A pipeline teaches it first, so send again."""
    FULL = "full"
    """Out of memory or disk. No part of the write stays."""
    PERMISSION = "permission"
    """The user lacks a right, or may not log in."""
    LACKING = "lacking"
    """The server, or a proxy before it, lacks a command."""
    SETTING = "setting"
    """A setting of the server forbids the command."""
    DAMAGED = "damaged"
    """A key has content that redis-state does not write, as a command or a script found."""
    PROGRAMMING = "programming"
    """A programming error: nothing helps."""


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
    "WRONGTYPE": ReplyClass.DAMAGED,
}
_FULL_IN_SCRIPT = "OOM command not allowed"
MAXCLIENTS = "max number of clients"
"""Reply of a server or cluster node to a connection above its limit `maxclients`."""
# A server limits the size of requests before the login.
_UNAUTHENTICATED = "Protocol error: unauthenticated"
_NO_PASSWORD_SET = ("without any password configured", "Client sent AUTH")
_PROTECTED = "DENIED"
_BULK_LENGTH = "Protocol error: invalid bulk length"
_NO_DATABASE = (
    "DB index is out of range",
    "invalid DB index",
    "Invalid Database",
    "SELECT is not allowed in cluster mode",
)
# Redis, Valkey and proxies word this differently.
_LACKING = re.compile(
    r"(?:unknown|unsupported|disabled) (?:redis )?(?:sub)?command"
    r"|command\b.{0,60}\bnot (?:be )?(?:supported|available|enabled)",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"""command(?: is not available)?:? ?['"`]([A-Za-z|_. ]{1,40})['"`]""", re.IGNORECASE
)
# Replies of Redis 6.2 and 7.0, and of newer ones, to a command inside a script.
_PERMISSION_IN_SCRIPT = ("user executing the script can't run", "ACL failure")
_OTHER_TYPE = "WRONGTYPE "
# Replies of Lua and of the server where a script parses an entry of another form.
_DAMAGED_IN_SCRIPT = re.compile(
    r"user_script: ?\d+: (?:attempt to (?!call)|bad argument |invalid value |table index is nil)"
    r"|command arguments must be strings or integers|hash value is not an integer",
    re.IGNORECASE,
)
# A key outside KEYS is on another node while its slot moves.
_TRANSIENT_IN_SCRIPT = ("non local key in a cluster node", "while the cluster is down")
# The server became a replica between a commit and the wait after it.
_TRANSIENT_AFTER_COMMIT = "cannot be used with replica instances"
_ABORTED = "EXECABORT"
# Suffix of a reply to a command inside a script, without use for the user.
_SCRIPT = re.compile(r" script: [0-9a-f]{40}, on @user_script:\d+\.?$")
# Prefix that Redis 6.2 adds to the reply to a command inside a script.
_AROUND = re.compile(r"Error running script .*@user_script: ?\d+: -(?=[A-Z]+ )", re.DOTALL)
_ARGUMENTS = ", with args beginning with"
# Advice for a reply that did not change until the deadline.
_HINTS = {
    "LOADING": "The server is loading its data: wait until it is done.",
    "BUSY": (
        "A script of another program blocks the server: wait for its end, or stop it with SCRIPT "
        "KILL."
    ),
    "CLUSTERDOWN": "CLUSTER INFO on a node shows how many slots are not served.",
    "MASTERDOWN": "The server is a replica that has lost its master: bring the master back.",
    "READONLY": "The server is a replica: give the address of its master.",
    "NOREPLICAS": (
        "Too few replicas follow the server: bring them back, or lower min-replicas-to-write."
    ),
    "TRYAGAIN": "The migration of a slot is incomplete: finish it.",
}
_OTHER_TYPE_ADVICE = (
    "Another program has overwritten a key of redis-state: remove that key. If it had state, "
    "restore the server's data from before; `redis-state doctor` lists the damage."
)
_DAMAGED_ADVICE = (
    "Restore the server's data from before the damage; `redis-state doctor` lists the damage. If "
    "it finds none, report this as a defect of redis-state."
)
_MAXCLIENTS_HINT = (
    "Raise maxclients on the server, or open fewer connections: fewer executors, or a lower "
    "'connectionsMax'."
)


def bare(message: str) -> str:
    """Strips the prefix of an old server from an error reply, so that the first word is its code.

    Also strips the arguments that a server repeats for an unknown command, because they may be keys
    and rows.
    """
    around = _AROUND.search(message)
    return (message[around.end() :] if around else message).partition(_ARGUMENTS)[0]


def class_of(message: str) -> ReplyClass:
    """Returns the class of an error reply."""
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
    if _TRANSIENT_AFTER_COMMIT in message or MAXCLIENTS in message:
        return ReplyClass.TRANSIENT
    return _WORDS.get(word) or _class_by_text(message)


def _class_by_text(message: str) -> ReplyClass:
    if _UNAUTHENTICATED in message or wants_no_password(message):
        return ReplyClass.PERMISSION
    if message.startswith(_PROTECTED) or _BULK_LENGTH in message or is_of_database(message):
        return ReplyClass.SETTING
    if is_of_other_type(message) or _DAMAGED_IN_SCRIPT.search(message):
        return ReplyClass.DAMAGED
    return ReplyClass.LACKING if _LACKING.search(message) else ReplyClass.PROGRAMMING


def is_of_database(message: str) -> bool:
    """Returns whether the server lacks a database of the number in the URL."""
    return any(text in message for text in _NO_DATABASE)


def is_of_other_type(message: str) -> bool:
    """Returns whether a key is of another type than the command is for."""
    return _OTHER_TYPE in message


def is_login(message: str) -> bool:
    """Returns whether the server refuses the login, or requires one."""
    has_word = message.startswith(("WRONGPASS", "NOAUTH"))
    return has_word or _UNAUTHENTICATED in message or wants_no_password(message)


def wants_no_password(message: str) -> bool:
    """Returns whether a password was sent to a server that has none."""
    return any(text in message for text in _NO_PASSWORD_SET)


def ends_connection(message: str) -> bool:
    """Returns whether the server closes the connection after this reply."""
    closing = ("Protocol error", MAXCLIENTS, _PROTECTED)
    return message.removeprefix("ERR ").startswith(closing)


def is_transient(message: str) -> bool:
    """Returns whether sending again helps."""
    return class_of(message) in (ReplyClass.TRANSIENT, ReplyClass.SCRIPT)


def hint_of(message: str) -> str:
    """Returns advice for a transient reply that does not go away; empty without advice."""
    if MAXCLIENTS in message:
        return _MAXCLIENTS_HINT
    return _HINTS.get(bare(message).split(" ", 1)[0], "")


def failure(attempted: str, message: str, command: str = "") -> RedisStateError:
    """Returns the error for a final error reply.

    Args:
        command: The command of the reply; empty if unknown.
    """
    found = f"the server answers '{_SCRIPT.sub('', bare(message))[:200].rstrip('.')}'"
    match class_of(message):
        case ReplyClass.LACKING:
            return lacking(attempted, [command_in(message) or command or "that a script calls"])
        case ReplyClass.SETTING:
            return ConfigError(attempted, found=found, advice=_advice(message))
        case ReplyClass.DAMAGED:
            return _damaged(attempted, found, message)
        case ReplyClass.FULL:
            return FullError(attempted, found=found)
        case ReplyClass.PERMISSION:
            return ConfigError(
                attempted,
                found=found,
                kind=Kind.PERMISSION,
                advice=(
                    "Give the user that right; `redis-state acl` prints all rights that are needed."
                ),
            )
    return InternalError(attempted, found=found)


def _damaged(attempted: str, found: str, message: str) -> FormatError:
    if is_of_other_type(message):
        what, advice = "a key is of another type than redis-state writes", _OTHER_TYPE_ADVICE
    else:
        what, advice = "a script met an entry that redis-state does not write", _DAMAGED_ADVICE
    return FormatError(attempted, found=f"{what}: {found}", advice=advice)


def lacking(attempted: str, commands: Sequence[str], *, at: str = "the server") -> ConfigError:
    """Returns the error for commands that a server lacks."""
    one = len(commands) == 1
    names = ", ".join(commands)
    what = f"the command {names}: it is" if one else f"commands ({names}): they are"
    them = "the command under its own name" if one else "the commands under their own names"
    return ConfigError(
        attempted,
        found=(
            f"{at} lacks {what} renamed or disabled there (rename-command), or a proxy or a "
            "Sentinel answers"
        ),
        advice=f"Restore {them}, or give the address of a server that has "
        f"{'it' if one else 'them'}.",
    )


def is_lacking_in_script(message: str) -> bool:
    """Returns whether a script calls a missing command, which the reply does not name."""
    return class_of(message) is ReplyClass.LACKING and "called from" in message


def command_in(message: str) -> str:
    """Returns the command that an error reply names; empty if none."""
    named = _NAMED.search(bare(message))
    return named[1].upper() if named else ""


def _advice(message: str) -> str:
    if message.startswith(_PROTECTED):
        return (
            "In protected mode the server accepts connections from its own machine only. Set a "
            "password on it, or set protected-mode no if only trusted machines can reach it."
        )
    if is_of_database(message):
        return "Give /0 at the end of the URL; a cluster has no other database."
    return (
        "A block is larger than the server's proto-max-bulk-len. Raise that limit (512mb is the "
        "default), or make the rows smaller."
    )


def purged_gen(format_number: str) -> str:
    """Returns the purged checkpoint that a partition's format field names; empty if not purged."""
    word, _, gen = format_number.partition(":")
    return gen if word == "purged" else ""


def purged_error(
    attempted: str, gen: str, *, where: str = "", version: int | None = None
) -> StateError:
    """Returns the error for keys that expire, because their checkpoint was purged within a day."""
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
    """Returns the error for refusals that mean the same to readers and writers."""
    match reply:
        case ["VERSION_EXPIRED", floor, *_]:
            return StateError(
                attempted,
                kind=Kind.VERSION_EXPIRED,
                found=(
                    f"the version no longer exists: retention keeps version {floor} and newer ones"
                ),
                advice="Ask for a newer version; to keep more from now on, raise versionsToRetain.",
                where=where,
                version=version,
            )
        case ["FORMAT", found] if purged_gen(found):
            return purged_error(attempted, purged_gen(found), where=where, version=version)
        case ["FORMAT", found]:
            return FormatError(
                attempted,
                found=f"Redis holds format {found[:20]}, and this release reads 1 and 2",
                advice="Use the release of redis-state that wrote it.",
                where=where,
            )
    return InternalError(
        attempted, found=f"the script answered '{' '.join(reply)[:200]}'", where=where
    )


class OtherType(Enum):
    """Placeholder reply for a command whose key has another type."""

    OTHER_TYPE = "a key of another type"


OTHER_TYPE = OtherType.OTHER_TYPE


def words(attempted: str, reply: object, *, where: str = "") -> list[str]:
    """Decodes the reply of a script to text.

    Args:
        where: Target of the attempt, for errors.

    Raises:
        FormatError: The reply is not an array of ASCII words.
    """
    try:
        if isinstance(reply, list):
            return [word.decode("ascii") for word in reply]
    except (AttributeError, UnicodeDecodeError):
        pass
    raise FormatError(attempted, found="the answer of its script is malformed", where=where)


def time_ms(reply: Sequence[bytes]) -> int:
    """Returns the reply to `TIME` in milliseconds since 1970."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def fields_of(reply: object) -> dict[str, str]:
    """Decodes names and values, a mapping or a flat list; empty for any other reply."""
    words = reply if isinstance(reply, list) else []
    pairs = reply.items() if isinstance(reply, dict) else zip(words[::2], words[1::2], strict=False)
    return {_decoded(name): _decoded(value) for name, value in pairs}


def _decoded(word: object) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def name_of(command: Command) -> str:
    """Returns the name of a command, in capitals."""
    name = command[0]
    return (name.decode("ascii", "replace") if isinstance(name, bytes) else name).upper()
