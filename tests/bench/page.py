"""The newest result of a command on a page, between two comments."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

_COLUMNS = 100


def add_write_option(parser: argparse.ArgumentParser) -> None:
    """`--write PAGE`, for `show`."""
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="replace the newest result on this page"
    )


def show(text: str, command: str, page: Path | None) -> None:
    """Print a result, and put it in its place on a page, if one was named.

    Raises:
        ValueError: The page has no place for the results of this command.
    """
    print(text)
    if page is not None:
        page.write_text(replace_section(page.read_text(), command, text))


def replace_section(page: str, command: str, text: str) -> str:
    """The page with `text` between the comments `<!-- begin: COMMAND -->` and `<!-- end … -->`.

    Lines of prose are wrapped, as in the rest of a page. A row of a table stays whole.

    Raises:
        ValueError: The page has no such comments.
    """
    begin, end = f"<!-- begin: {command} -->", f"<!-- end: {command} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs the two lines {begin} and {end}, once each")
    head, rest = page.split(begin)
    tail = rest.split(end)[1]
    lines = "\n".join(map(_wrapped, text.strip().split("\n")))
    return f"{head}{begin}\n{lines}\n{end}{tail}"


def _wrapped(line: str) -> str:
    if len(line) <= _COLUMNS or line.startswith("|"):
        return line
    return textwrap.fill(line, _COLUMNS, break_long_words=False, break_on_hyphens=False)
