"""The list of commands. A command is a module of this package with `add_to`; it is added here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from redis_state.cli import (
    acl,
    conf,
    doctor,
    get,
    maintain,
    options_doc,
    purge,
    queries,
    restore,
    rewind,
)

if TYPE_CHECKING:
    # argparse has no public name for this class.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

Run = Callable[[argparse.Namespace], int]


class Command(Protocol):
    """What a command module offers."""

    def add_to(self, subparsers: Subparsers) -> None:
        """Add a parser whose default `run` is a `Run`, which returns the exit status."""


COMMANDS: tuple[Command, ...] = (
    conf,
    acl,
    queries,
    get,
    maintain,
    doctor,
    rewind,
    restore,
    purge,
    options_doc,
)
