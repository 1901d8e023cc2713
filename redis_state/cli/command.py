"""The interface of a command: what each module of this package offers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from redis_state.cli.help import Intermixed

    # argparse has no public name for this class.
    Subparsers = argparse._SubParsersAction[Intermixed]

RunCommand = Callable[[argparse.Namespace], int]


class CommandModule(Protocol):
    """What a command module offers."""

    def add_to(self, subparsers: Subparsers) -> None:
        """Add a parser whose default `run` is a `RunCommand`, which returns the exit status."""
