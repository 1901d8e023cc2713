"""Formats text for pages of docs/ that a tool writes."""

from __future__ import annotations

import textwrap

_WIDTH = 100


def list_item(text: str) -> str:
    """Returns an item of a list, wrapped as the pages are."""
    return textwrap.fill(
        f"- {text}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
