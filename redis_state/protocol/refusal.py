"""Converts the refusals of scripts to errors."""

from __future__ import annotations

from redis_state.backend.replies import unserved
from redis_state.errors import (
    ConflictError,
    Kind,
    RedisStateError,
    StateError,
    UnavailableError,
)

_FENCED = {
    "opened": (
        "version {found} is already open: another attempt has overtaken this one",
        "Open that version and run its batch again. Nothing was changed.",
    ),
    "pinned": (
        "the run continued from the version of another attempt, not from the one read here",
        "Open the version again and run its batch again. Nothing was changed.",
    ),
    "epoch": (
        "another run holds the partition ({by}, epoch {found})",
        "The other run wrote last, and nothing of this commit was kept. To keep the other run, "
        "stop this process. To keep this one, stop the other run, open the newest version and "
        "run the batch again.",
    ),
    "unregistered": (
        "no driver registered this run, and it does not continue from the opened version {found}",
        (
            "Call redis_state.protocol.register_run(by_driver=True) to continue from an older "
            "version. Nothing was changed."
        ),
    ),
    "replaced": (
        "the version that this attempt read was replaced by that of another attempt",
        "Open the version again and run its batch again. Nothing was changed.",
    ),
}


def refusal(
    attempted: str, reply: list[str], *, where: str, version: int | None
) -> RedisStateError:
    """Returns the error for a script's reply other than OK."""
    match reply:
        case ["FENCED", reason, found, *by] if reason in _FENCED:
            told, advice = _FENCED[reason]
            return ConflictError(
                attempted,
                found=told.format(found=found, by="".join(by)),
                advice=advice,
                where=where,
                version=version,
            )
        case ["TAKEN"]:
            return ConflictError(
                attempted,
                found="another process committed other rows under the id of this attempt",
                advice=(
                    "A process that was forked, or whose virtual machine was cloned, while the "
                    "store was open has the same attempt id: open stores in each process "
                    "separately. Open the version again and run its batch again. Nothing was "
                    "changed."
                ),
                where=where,
                version=version,
            )
        case ["STATE_LOST", latest, *_]:
            return lost(attempted, latest=latest, where=where, version=version)
        case ["INCOMPLETE", found]:
            return UnavailableError(
                attempted,
                found=f"the server keeps losing staged blocks (it has {found})",
                advice=(
                    "A volatile-* eviction policy does that when memory is short: give the server "
                    "more memory."
                ),
                where=where,
                version=version,
            )
        case ["REOPEN", found]:
            return UnavailableError(
                attempted,
                found=(
                    "the server keeps forgetting that the version was opened (it has version "
                    f"{found} open)"
                ),
                advice=(
                    "It returns to older data again and again: make sure that it stays up and "
                    "that its fail-overs end, then try again."
                ),
                where=where,
                version=version,
            )
    return unserved(attempted, reply, where=where, version=version)


def lost(attempted: str, *, latest: str, where: str, version: int | None) -> StateError:
    """Returns the error for a version that was lost, or never existed."""
    return StateError(
        attempted,
        found=f"Redis has nothing newer than version {latest}",
        advice=(
            "Likely: another server or database than before, a fail-over to a lagging replica, a "
            "restart from older data, eviction. Restore the data of that Redis, open a version "
            "that it has, or start again at version 0."
        ),
        kind=Kind.STATE_LOST,
        where=where,
        version=version,
    )


def behind(error: StateError) -> UnavailableError:
    """Returns the error in place of `STATE_LOST` if the answer may be of a lagging replica."""
    return UnavailableError(
        error.attempted,
        found="the replica that answers now lags behind, and does not have this version",
        advice="Try again. If the error persists, read from the master: the version may be lost.",
        where=error.where,
        version=error.version,
    )


def not_there(attempted: str, *, latest: str, where: str, version: int | None) -> StateError:
    """Returns the error for a reader that asks for a version that Redis does not hold."""
    return StateError(
        attempted,
        found=f"Redis has no such version; the newest is {latest}",
        advice="Ask for a version that exists, or restore the data of the Redis that held it.",
        kind=Kind.STATE_LOST,
        where=where,
        version=version,
    )
