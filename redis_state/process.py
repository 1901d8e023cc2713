"""Forks: what was opened in one process refuses to work in a child that was forked from it.

What was opened before a fork refuses in the child. What can be made there again, like connections
and the stores that a process keeps, is; nothing of the child uses a socket or a lock of its parent.
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
    """An object that has to know when it is used in a forked process."""

    def after_fork(self) -> None:
        """Called once in the child, before anything else; asks no server and takes no lock."""


_owners: WeakSet[Copied] = WeakSet()
_id = uuid.uuid4().hex


def process_id() -> str:
    """32 hexadecimal digits that are this process's alone, on any host and at any time."""
    return _id


def tell_after_fork(owner: Copied) -> None:
    """Tell this object in each process that is forked off while it lives."""
    _owners.add(owner)


def _forked() -> None:
    global _id
    _id = uuid.uuid4().hex
    # All at once: what the first of them lets go stays until the last has been told.
    owners = list(_owners)
    for owner in owners:
        # What another thread was just making is not whole, and nobody's here.
        with suppress(AttributeError):
            owner.after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)


class Home:
    """The process in which something was made."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, *, where: str) -> None:
        """Refuse to go on in another process.

        Raises:
            UsageError: This process is not the one in which it was made.
        """
        if self._pid != os.getpid():
            raise elsewhere(where=where)


def elsewhere(*, where: str, version: int | None = None) -> UsageError:
    """The error for using something that was opened in another process."""
    return UsageError(
        "using a state store",
        found="it was opened in another process, from which this one was forked",
        advice=_ADVICE,
        where=where,
        version=version,
    )
