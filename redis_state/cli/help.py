"""Parsers of commands and the text of their `--help`."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

INDENT = "  "


class Formatter(argparse.HelpFormatter):
    """Wraps text, but keeps lines that begin with blanks, so that an example can be pasted."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            line
            if line.startswith(INDENT)
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in text.split("\n")
        )


class GroupedFormatter(argparse.HelpFormatter):
    """Lists commands in groups, which argparse has for arguments only.

    Args:
        prog: Name of the program.
        groups: Names of the commands of each group, by the title of the group.
    """

    def __init__(self, prog: str, groups: Mapping[str, Sequence[str]]) -> None:
        super().__init__(prog)
        self._groups = groups

    def add_argument(self, action: argparse.Action) -> None:
        """Adds an argument, or a section for each group of commands."""
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)
            return
        commands = {one.dest: one for one in action._get_subactions()}
        for title, names in self._groups.items():
            self.start_section(title)
            self.add_arguments([commands[name] for name in names])
            self.end_section()


class Intermixed(argparse.ArgumentParser):
    """Parser that accepts options between positional arguments: `history flights --json k=1`."""

    _tails: Iterator[Sequence[str]] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses like `argparse.ArgumentParser`, in any order of options and other words."""
        if hasattr(self, "_parse_known_args2"):
            # Newer releases of Python handle `--` in one pass.
            return self.parse_known_intermixed_args(args, namespace)
        if self._tails is not None:
            return super().parse_known_args([*args, *next(self._tails)], namespace)
        words = list(args or ())
        end = words.index("--") if "--" in words else len(words)
        # Two passes: options, then positional arguments. The first one would drop `--`, and the
        # second one would take the words behind it for options. So only the second one gets them.
        self._tails = iter(((), words[end:]))
        try:
            return self.parse_known_intermixed_args(words[:end], namespace)
        finally:
            self._tails = None


def example(*commands: str, before: str = "") -> str:
    """Returns the epilog of a command's help.

    Args:
        commands: Whole commands that can be pasted.
        before: A paragraph above them; empty for none.
    """
    head = [before, ""] if before else []
    word = "example:" if len(commands) == 1 else "examples:"
    return "\n".join([*head, word, *(INDENT + command for command in commands)])
