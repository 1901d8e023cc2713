"""The text of `--help`: paragraphs that are wrapped, and examples that are not."""

from __future__ import annotations

import argparse
import textwrap

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


def example(*commands: str, before: str = "") -> str:
    """The end of a command's help.

    Args:
        commands: Whole commands that can be pasted.
        before: A paragraph above them; empty for none.
    """
    head = [before, ""] if before else []
    word = "example:" if len(commands) == 1 else "examples:"
    return "\n".join([*head, word, *(INDENT + command for command in commands)])
