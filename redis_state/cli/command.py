"""Interface of a command module."""

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
    """Module that implements a command."""

    def add_to(self, subparsers: Subparsers) -> None:
        """Adds a parser whose default `run` is a `RunCommand`, which returns the exit status."""
