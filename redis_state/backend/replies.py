"""What the server's error replies mean for the caller: the one table of it, as in the JVM core."""

from __future__ import annotations

from redis_state.errors import (
    ConfigError,
    FormatError,
    FullError,
    InternalError,
    Kind,
    RedisStateError,
    StateError,
)

_TRANSIENT = frozenset(
    {
        "LOADING",
        "BUSY",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "MASTERDOWN",
        "MOVED",
        "ASK",
        "READONLY",
        "NOREPLICAS",
        # A pipeline makes its script known first, so sending it again helps.
        "NOSCRIPT",
    }
)
_FULL = frozenset({"OOM", "MISCONF"})
_PERMISSION = frozenset({"NOPERM", "WRONGPASS", "NOAUTH"})
# What Redis 6.2 and 7.0, and newer ones, say of a command inside a script.
_PERMISSION_IN_SCRIPT = ("user executing the script can't run", "ACL failure")


def is_transient(message: str) -> bool:
    """Whether waiting and sending again helps."""
    return message.split(" ", 1)[0] in _TRANSIENT


def failure(attempted: str, message: str) -> RedisStateError:
    """The named error for an error reply that is final."""
    word = message.split(" ", 1)[0]
    found = f"the server answers '{message[:200]}'"
    if word in _FULL or "OOM command not allowed" in message:
        return FullError(attempted, found=found)
    if word in _PERMISSION or any(text in message for text in _PERMISSION_IN_SCRIPT):
        return ConfigError(
            attempted, found=found, kind=Kind.PERMISSION, advice="Give the user that right."
        )
    return InternalError(attempted, found=found)


def refusal(reply: list[str], *, where: str, version: int | None) -> RedisStateError:
    """The named error for what the script `open` answers other than a version."""
    attempted = "opening the state"
    if version is not None:
        attempted = f"opening version {version} of the state"
    match reply:
        case ["STATE_LOST", latest, *_]:
            return StateError(
                attempted,
                found=f"Redis holds no such version; the newest is {latest}",
                advice="Ask for a version that is there, or restore the Redis that held it.",
                where=where,
                version=version,
            )
        case ["VERSION_EXPIRED", floor, *_]:
            return StateError(
                attempted,
                kind=Kind.VERSION_EXPIRED,
                found=f"retention keeps version {floor} and newer ones",
                advice="Ask for a newer one; raise versionsToRetain for the next time.",
                where=where,
                version=version,
            )
        case ["FORMAT", found]:
            return FormatError(
                attempted,
                found=f"Redis holds format {found[:20]}, this release reads format 1",
                advice="Use the release that wrote it.",
                where=where,
            )
    return InternalError(
        attempted, found=f"the script answered '{' '.join(reply)[:200]}'", where=where
    )
