"""Protects a forked child from the sockets and locks of its parent.

Objects opened before a fork refuse to work in the child. Replaceable parts, such as connections and
the stores that a process keeps, are created again there.
"""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from redis_state.errors import UsageError

_ADVICE = (
    "Make providers and open stores after the fork, in each process that uses them. Nothing was "
    "changed."
)


class Copied(Protocol):
    """An object that must know about a fork."""

    def after_fork(self) -> None:
        """Called once in the child, before anything else; asks no server and takes no lock."""


_owners: WeakSet[Copied] = WeakSet()
_id = uuid.uuid4().hex


def process_id() -> str:
    """Returns 32 hexadecimal digits that are unique to this process, on all hosts."""
    return _id


def tell_after_fork(owner: Copied) -> None:
    """Registers an object whose `after_fork` runs in each forked child while the object lives."""
    _owners.add(owner)


def _forked() -> None:
    global _id
    _id = uuid.uuid4().hex
    # The list keeps all objects alive until the last call, even if one drops the others.
    owners = list(_owners)
    for owner in owners:
        # An object that another thread was still creating is incomplete, and unused in the child.
        with suppress(AttributeError):
            owner.after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)


class Home:
    """The process that created an object."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, *, where: str) -> None:
        """Checks that the caller is in the same process.

        Raises:
            UsageError: This process did not create the object.
        """
        if self._pid != os.getpid():
            raise elsewhere(where=where)


def elsewhere(*, where: str, version: int | None = None) -> UsageError:
    """Returns the error for using an object that was opened in another process."""
    return UsageError(
        "using a state store",
        found="it was opened in another process, from which this one was forked",
        advice=_ADVICE,
        where=where,
        version=version,
    )
