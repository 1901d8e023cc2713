"""Code blocks of the pages of the docs."""

from __future__ import annotations

import re
from pathlib import Path


def fenced(page: Path, language: str) -> list[str]:
    """The blocks of a page in a language, as text."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M)
