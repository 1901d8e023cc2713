"""Room in memory for what is read of a state that may be larger than it."""

from __future__ import annotations

from typing import Final, Protocol

ROW_BYTES: Final = 120
"""What Python needs for a row beside its bytes, about."""


class MemoryBudget(Protocol):
    """What stays of the rows that were read is asked of this, by one thread at a time."""

    def has(self, size: int) -> bool:
        """Whether so many bytes more may stay; what nobody works with goes for them first."""
