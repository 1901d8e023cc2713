"""Finds the heaviest of many items in bounded memory.

The algorithm of Anderson, Bevin, Lang, Liberty, Rhodes and Thaler, "A High-Performance Algorithm
for Identifying Frequent Items in Data Streams" (IMC 2017), after Misra and Gries. When there are
too many counters, the median weight is subtracted from all, and empty counters are removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from statistics import median_low
from typing import Generic, TypeVar

COUNTERS_MAX = 1 << 17

Hitter = TypeVar("Hitter")


@dataclass(slots=True)
class ItemCount:
    """Counter of one item.

    Attributes:
        weight: Remaining weight, after subtractions.
        times: Number of additions since the counter was made.
        bytes: Bytes of these additions.
    """

    weight: int = 0
    times: int = 0
    bytes: int = 0


class Frequent(Generic[Hitter]):
    """Sums of weights by item; exact until there are more items than counters.

    Attributes:
        error: Greatest weight that was subtracted from any item; 0 if all sums are exact.
    """

    def __init__(self, counters_max: int = COUNTERS_MAX) -> None:
        self._counters: dict[Hitter, ItemCount] = {}
        self._max = counters_max
        self.error = 0

    def add(self, item: Hitter, weight: int, size: int) -> None:
        """Counts an item once more."""
        counter = self._counters.get(item)
        if counter is None:
            if len(self._counters) >= self._max:
                self._make_room()
            counter = self._counters[item] = ItemCount()
        counter.weight += weight
        counter.times += 1
        counter.bytes += size

    def top(self, limit: int) -> list[tuple[Hitter, ItemCount]]:
        """Returns the heaviest items in descending order; more bytes first at equal weight."""
        return nlargest(
            limit, self._counters.items(), key=lambda one: (one[1].weight, one[1].bytes)
        )

    def _make_room(self) -> None:
        off = median_low(counter.weight for counter in self._counters.values())
        self.error += off
        for counter in self._counters.values():
            counter.weight -= off
        self._counters = {item: one for item, one in self._counters.items() if one.weight > 0}
