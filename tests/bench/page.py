"""The newest result of a command on a page, between two comments."""

from __future__ import annotations


def replace_section(page: str, command: str, text: str) -> str:
    """The page with `text` between the comments `<!-- begin: COMMAND -->` and `<!-- end … -->`.

    Raises:
        ValueError: The page has no such comments.
    """
    begin, end = f"<!-- begin: {command} -->", f"<!-- end: {command} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs the two lines {begin} and {end}, once each")
    head, rest = page.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{text.strip()}\n{end}{tail}"
