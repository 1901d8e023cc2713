"""The rows of a version from its segments (docs/format.md, sections 3 and 4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field

from redis_state.errors import FormatError
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Tombstone, family_table
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import Content


@dataclass(slots=True)
class Changes:
    """What deltas say together, for rows of an older segment that come one by one.

    Attributes:
        rows: The last word on each key; a key that `over` was asked for is taken out.
    """

    rows: dict[bytes, Value] = field(default_factory=dict)
    tombstones: list[Tombstone] = field(default_factory=list)

    def add(self, content: Content) -> None:
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
        """What is left of a row of the older segment; the key's change is used up."""
        gone = any(_covers(tombstone, key) for tombstone in self.tombstones)
        if key not in self.rows:
            return None if gone else value
        change = self.rows.pop(key)
        if isinstance(change, Appended):
            return (b"" if gone else value) + change.data
        return change

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """Rows that the older segment does not have."""
        for key, change in self.rows.items():
            if change is not None:
                yield key, change.data if isinstance(change, Appended) else change


class VersionRows:
    """Rows and family table of a version, built from its segments, oldest first.

    Attributes:
        rows: Values by stored key.
        families: The family table, by id.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.families: dict[int, Family] = {}

    def apply(self, segment: Segment, content: Content) -> None:
        """Applies the next segment.

        Raises:
            FormatError: The result would not be what the format allows.
        """
        if segment.alone:
            self.rows.clear()
            self.families.clear()
        if content.families is not None:
            self.families = family_table(content.families)
        for tombstone in content.tombstones:
            for key in [key for key in self.rows if _covers(tombstone, key)]:
                del self.rows[key]
        for key, value in content.rows.items():
            if family_of(key) not in self.families:
                raise FormatError(f"applying {segment.ident}", found="a row belongs to no family")
            apply_row(self.rows, key, value)
        if len(self.rows) != segment.entry.live:
            raise FormatError(
                f"applying {segment.ident}",
                found=f"{len(self.rows)} keys are live, not {segment.entry.live}",
            )


def apply_row(rows: MutableMapping[bytes, bytes], key: bytes, value: Value) -> None:
    """Applies one row to a version's rows."""
    if value is None:
        rows.pop(key, None)
    elif isinstance(value, Appended):
        rows[key] = rows.get(key, b"") + value.data
    else:
        rows[key] = value


def merge(segments: Iterable[tuple[Segment, Content]]) -> VersionRows:
    """The version that these segments, oldest first, make up.

    Raises:
        FormatError: The oldest does not stand alone, or as `VersionRows.apply`.
    """
    version = VersionRows()
    last: Segment | None = None
    for segment, content in segments:
        _check_next(last, segment)
        version.apply(segment, content)
        last = segment
    return version


def _check_next(last: Segment | None, segment: Segment) -> None:
    if segment.alone:
        return
    if last is None:
        raise FormatError(
            f"applying {segment.ident}", found="it is neither a snapshot nor a complete delta"
        )
    if (last.version + 1, last.uid) != (segment.version, segment.entry.ref):
        raise FormatError(f"applying {segment.ident}", found="its parent is another version")


def _covers(tombstone: Tombstone, key: bytes) -> bool:
    return tombstone.family == family_of(key) and tombstone.covers(key[FAMILY_BYTES:])
