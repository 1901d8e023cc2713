"""The rows of a version from whole segments, in memory: what every faster way is compared with."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from redis_state.errors import FormatError
from redis_state.format import expiry
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Tombstone, family_table
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import SegmentContent, check_time


class WholeVersion:
    """Rows and family table of a version, built from its segments, oldest first.

    Attributes:
        rows: Values by stored key.
        families: The family table, by id.
        time: Time of the version; 0 if no family has a time to live.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.families: dict[int, Family] = {}
        self.time = 0

    @property
    def visible(self) -> dict[bytes, bytes]:
        """The rows that are not expired, without their expiries."""
        found = {}
        for key, stored in self.rows.items():
            if not self.families[family_of(key)].ttl:
                found[key] = stored
                continue
            value, expiry_s = expiry.split(stored)
            if expiry_s > self.time:
                found[key] = value
        return found

    def apply(self, segment: Segment, content: SegmentContent) -> None:
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
        check_time(segment, self.families.values())
        self.time = segment.entry.time
        live = len(self.visible)
        is_exact = segment.snapshot or not self.time
        if live > segment.entry.live or (is_exact and live != segment.entry.live):
            raise FormatError(
                f"applying {segment.ident}",
                found=f"{live} keys are live, not {segment.entry.live}",
            )


def apply_row(rows: MutableMapping[bytes, bytes], key: bytes, value: Value) -> None:
    """Applies one row to a version's rows."""
    if value is None:
        rows.pop(key, None)
    elif isinstance(value, Appended):
        rows[key] = rows.get(key, b"") + value.data
    else:
        rows[key] = value


def merge(segments: Iterable[tuple[Segment, SegmentContent]]) -> WholeVersion:
    """The version that these segments, oldest first, make up.

    Raises:
        FormatError: The oldest does not stand alone, or as `WholeVersion.apply`.
    """
    version = WholeVersion()
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
