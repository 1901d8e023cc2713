"""Merged changes of several deltas (docs/format.md, sections 3 and 4.5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from redis_state.format.header import Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import SegmentContent


@dataclass(slots=True)
class Changes:
    """Merged changes of several deltas, to be applied to the rows of an older segment.

    Attributes:
        rows: Latest change of each key. `over` removes the change that it applies.
    """

    rows: dict[bytes, Value] = field(default_factory=dict)
    tombstones: list[Tombstone] = field(default_factory=list)

    def add(self, content: SegmentContent) -> None:
        """Adds the next newer delta."""
        for tombstone in content.tombstones:
            for key in [key for key in self.rows if _covers(tombstone, key)]:
                del self.rows[key]
        self.tombstones += content.tombstones
        for key, value in content.rows.items():
            if not isinstance(value, Appended):
                self.rows[key] = value
                continue
            below = self.rows.get(key, Appended(b""))
            if isinstance(below, Appended):
                self.rows[key] = Appended(below.data + value.data)
            else:
                self.rows[key] = (below or b"") + value.data

    def over(self, key: bytes, value: bytes) -> bytes | None:
        """Removes and applies a key's change; returns the new value, ``None`` if removed."""
        gone = any(_covers(tombstone, key) for tombstone in self.tombstones)
        if key not in self.rows:
            return None if gone else value
        change = self.rows.pop(key)
        if isinstance(change, Appended):
            return (b"" if gone else value) + change.data
        return change

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows that the older segment does not have."""
        for key, change in self.rows.items():
            if change is not None:
                yield key, change.data if isinstance(change, Appended) else change


def _covers(tombstone: Tombstone, key: bytes) -> bool:
    return tombstone.family == family_of(key) and tombstone.covers(key[FAMILY_BYTES:])
