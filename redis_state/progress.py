"""Progress callbacks of long work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, the units done, and the total (0 if unknown)."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Progress callback that does nothing."""
