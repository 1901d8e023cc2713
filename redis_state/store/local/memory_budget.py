"""Memory budget for rows read from a state that may be larger than memory."""

from __future__ import annotations

from typing import Final, Protocol

ROW_BYTES: Final = 120
"""Approximate memory that Python needs for a row besides its bytes."""


class MemoryBudget(Protocol):
    """Limit of the rows that stay in memory; used by one thread at a time."""

    def has(self, size: int) -> bool:
        """Returns whether this many more bytes may stay; evicts idle rows first."""
