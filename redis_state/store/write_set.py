"""Write set: uncommitted changes of one attempt."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice

_INSERTS_MAX = 64


class WriteSet:
    """Uncommitted changes: the newest change of each key, sorted on demand.

    Attributes:
        rows: Values by stored key; ``None`` is removed. Keys are only ever added. The values of
            growing lists are correct only after `settle`.
        growing: Lists to which elements were added since the last `settle`.
        appended: Elements added to lists whose beginning is in the version below.
    """

    __slots__ = ("_sorted", "appended", "growing", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.appended: dict[bytes, bytearray] = {}
        self.growing: dict[bytes, bytearray] = {}
        self._sorted: list[bytes] = []

    def size(self, key: bytes, below: bytes | None) -> int:
        """Returns the bytes of a list; `below` is the version's value if the key is not changed."""
        found = self.growing.get(key)
        if found is None:
            return len(self.rows.get(key, below) or b"")
        return len(found)

    def append(self, key: bytes, element: bytes, below: bytes | None) -> None:
        """Appends an element to a list; see `size` for `below`."""
        grown = self.growing.get(key)
        if grown is None:
            before = self.rows.get(key, below)
            if key not in self.rows and below is not None:
                self.appended[key] = bytearray()
            grown = self.growing[key] = bytearray(before or b"")
            self.rows[key] = b""
        grown += element
        if key in self.appended:
            self.appended[key] += element

    def forget_end(self, key: bytes) -> None:
        """Forgets the appended elements of a removed list, whose old value no longer counts."""
        self.appended.pop(key, None)

    def replace(self, key: bytes, value: bytes | None) -> None:
        """Replaces or removes a list."""
        self.growing.pop(key, None)
        self.appended.pop(key, None)
        self.rows[key] = value

    def settle(self) -> None:
        """Moves the lists that grew into `rows`."""
        for key, grown in self.growing.items():
            self.rows[key] = bytes(grown)
        self.growing.clear()

    def in_order(self) -> list[bytes]:
        """Returns the keys in ascending order."""
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
        """Returns the current changes in a range."""
        keys = self.in_order()
        low = bisect_left(keys, start)
        high = len(keys) if end is None else bisect_left(keys, end)
        found = {key: self.rows[key] for key in keys[low:high]}
        if self.growing:
            found |= {key: bytes(self.growing[key]) for key in self.growing.keys() & found.keys()}
        return found
