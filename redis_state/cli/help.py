"""How commands take their words, and the text of `--help`: wrapped but for its examples."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

INDENT = "  "


class Formatter(argparse.HelpFormatter):
    """Keeps lines that begin with blanks as they are, so that a command can be pasted."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            line
            if line.startswith(INDENT)
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in text.split("\n")
        )


class Intermixed(argparse.ArgumentParser):
    """A parser that takes options between a command's words, as `get --help` shows them."""

    _is_inner = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `argparse` has it."""
        # Older argparse would lose the sign that all words behind it are no options.
        if self._is_inner or "--" in (args or ()):
            return super().parse_known_args(args, namespace)
        self._is_inner = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inner = False


def example(*commands: str, before: str = "") -> str:
    """The end of a command's help.

    Args:
        commands: Whole commands that can be pasted.
        before: A paragraph above them; empty for none.
    """
    head = [before, ""] if before else []
    word = "example:" if len(commands) == 1 else "examples:"
    return "\n".join([*head, word, *(INDENT + command for command in commands)])
