"""What one attempt changes, until it commits."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice

_INSERTS_MAX = 64


class WriteSet:
    """Uncommitted changes: the newest one of each key, and their order when it is asked for.

    Attributes:
        rows: Values by stored key; ``None`` is removed. Keys are only ever added.
    """

    __slots__ = ("_sorted", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] = []

    def in_order(self) -> list[bytes]:
        """The keys in ascending order."""
        known = self._sorted
        fresh = len(self.rows) - len(known)
        if fresh:
            # A dict keeps the order in which keys came: the new ones are its last.
            added = list(islice(reversed(self.rows), fresh))
            if fresh <= _INSERTS_MAX:
                for key in added:
                    insort(known, key)
            else:
                known += added
                known.sort()
        return known

    def between(self, start: bytes, end: bytes | None) -> dict[bytes, bytes | None]:
        """The changes in a range, as they are now."""
        keys = self.in_order()
        low = bisect_left(keys, start)
        high = len(keys) if end is None else bisect_left(keys, end)
        return {key: self.rows[key] for key in keys[low:high]}
