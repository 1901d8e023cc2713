"""Reads many keys of one version of a partition, and its rows in ranges of keys.

Only the blocks that can hold a key are read (docs/format.md, section 7).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial

from redis_state.backend.client import Client
from redis_state.format.changes import Changes
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Header, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, stored_key
from redis_state.format.segment import SegmentContent, block_number, read_table
from redis_state.format.visible import time_of
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import fetch
from redis_state.reader.block_cache import Field, parts_of
from redis_state.reader.lookup.segment_part import (
    KeyFields,
    check_absent,
    read_segments,
    values_of,
)
from redis_state.reader.reopening import Reopening

KEYS_AT_ONCE = 512
_FIELDS_AT_ONCE = 64
_NO_KEYS = KeyFields((), "none")
_WHAT = "reading some keys"


class Points:
    """Keys and ranges of one version of a partition; the headers are read once.

    Values are as stored: in a family with a time to live with their expiry, also of expired rows.
    """

    def __init__(self, client: Client, opened: Opened) -> None:
        self._client = client
        self._version = Reopening(client, opened, attempted=_WHAT)
        self._heads: tuple[Opened, list[Header]] | None = None

    @property
    def time_s(self) -> int:
        """Time of the version; see `format.visible.time_of`."""
        return time_of(self._version.opened.segments)

    def families(self) -> tuple[Family, ...]:
        """Returns the family table of the version; empty for version 0.

        Raises:
            RedisStateError: See `values`.
        """
        heads = self._version.read(self._headers)
        tables = (head.families for head in heads if head.families is not None)
        return next(tables, ())

    def values(self, wanted: Sequence[bytes], family: Family) -> dict[bytes, bytes]:
        """Returns the values of stored keys of a family, without absent keys.

        Raises:
            StateError: A published segment was destroyed.
            FormatError: Blocks are damaged.
            UnavailableError: Maintenance replaces segments again and again.
        """
        found: dict[bytes, bytes] = {}
        for start in range(0, len(wanted), KEYS_AT_ONCE):
            chunk = wanted[start : start + KEYS_AT_ONCE]
            found |= self._version.read(partial(self._values, chunk, family))
        return found

    def rows_in(self, ranges: Sequence[Tombstone], family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows that these tombstones of a family would remove, in no order.

        Reads those blocks of an ordered family that overlap a range; of a hashed family all blocks.
        Memory holds the rows of the deltas in these blocks.

        Raises:
            StateError: A published segment was destroyed.
            FormatError: Blocks are damaged.
            UnavailableError: A segment was dropped while its rows were read.
        """
        yield from self._version.rows(partial(self._rows_in, ranges, family))

    def _values(
        self, wanted: Sequence[bytes], family: Family, opened: Opened
    ) -> dict[bytes, bytes]:
        heads, fields = self._headers(opened), KeyFields(wanted, family.kind)
        parts = read_segments(
            self._client, opened.id, opened.segments, fields, heads=heads, attempted=_WHAT
        )
        return values_of(parts, wanted)

    def _rows_in(
        self, ranges: Sequence[Tombstone], family: Family, opened: Opened
    ) -> Iterator[tuple[bytes, bytes]]:
        segments, heads = opened.segments, self._headers(opened)
        if not segments:
            return
        above = [
            (head, dict(self._rows_near(opened.id, segment, head, ranges, family)))
            for segment, head in zip(segments[:-1], heads, strict=False)
        ]
        changes = _folded(above, family)
        for key, word in self._rows_near(opened.id, segments[-1], heads[-1], ranges, family):
            value = _left(changes, key, word)
            if value is not None:
                yield key, value
        yield from changes.rest()

    def _rows_near(
        self,
        id_: PartitionId,
        segment: Segment,
        head: Header,
        ranges: Sequence[Tombstone],
        family: Family,
    ) -> Iterator[tuple[bytes, Value]]:
        """Yields the changes of a segment to keys in the ranges, each key once."""
        groups = _fields_in(segment, head, family, ranges)
        for start in range(0, len(groups), _FIELDS_AT_ONCE):
            group = groups[start : start + _FIELDS_AT_ONCE]
            names = [str(field) for fields in group for field in fields]
            raws = iter(fetch(self._client, id_, segment, names))
            for fields in group:
                rows: dict[bytes, Value] = {}
                for field in fields:
                    raw = next(raws)
                    if raw is None:
                        check_absent(segment, head, field)
                    else:
                        # A later part of a bucket overrides an earlier one.
                        rows.update(read_table(segment, str(field), raw))
                for key, word in rows.items():
                    if family_of(key) == family.id and is_covered(ranges, key):
                        yield key, word

    def _headers(self, opened: Opened) -> list[Header]:
        if self._heads is None or self._heads[0] is not opened:
            self._heads = opened, headers_of(self._client, opened.id, opened.segments)
        return self._heads[1]


def is_covered(ranges: Sequence[Tombstone], key: bytes) -> bool:
    """Returns whether a tombstone removes a stored key; all are of the key's family."""
    return any(one.covers(key[FAMILY_BYTES:]) for one in ranges)


def headers_of(client: Client, id_: PartitionId, segments: Sequence[Segment]) -> list[Header]:
    """Returns the header of each segment; an empty one for segments without a header.

    Raises:
        SegmentGoneError: A segment is not complete any more.
        FormatError: A segment is damaged.
    """
    parts = read_segments(client, id_, segments, _NO_KEYS, attempted=_WHAT)
    return [part.known_head for part in parts]


def changes_of(
    client: Client,
    id_: PartitionId,
    segments: Sequence[Segment],
    heads: Sequence[Header],
    wanted: Sequence[bytes],
    kind: str,
) -> list[dict[bytes, Value]]:
    """Returns the changes of each segment to stored keys, without tombstones.

    Raises:
        SegmentGoneError: A segment is not complete any more.
        FormatError: A segment is damaged.
    """
    fields = KeyFields(wanted, kind)
    parts = read_segments(client, id_, segments, fields, heads=heads, attempted=_WHAT)
    left = dict.fromkeys(wanted)
    return [part.changes(wanted, left) for part in parts]


def _folded(above: Sequence[tuple[Header, dict[bytes, Value]]], family: Family) -> Changes:
    """Merges the changes of deltas, given the newest first."""
    changes = Changes()
    for head, rows in reversed(above):
        own = tuple(one for one in head.tombstones if one.family == family.id)
        changes.add(SegmentContent(rows, tombstones=own))
    return changes


def _left(changes: Changes, key: bytes, word: Value) -> bytes | None:
    """Applies the change of a key to its entry in the oldest segment; removes the change."""
    if word is not None:
        # An append begins a list, and a removed row of the oldest segment removes nothing.
        return changes.over(key, word.data if isinstance(word, Appended) else word)
    change = changes.rows.pop(key, None)
    return change.data if isinstance(change, Appended) else change


def _fields_in(
    segment: Segment, head: Header, family: Family, ranges: Sequence[Tombstone]
) -> list[list[Field]]:
    """Returns the fields that can hold rows of these ranges, grouped by bucket."""
    if not segment.entry.blocks:
        return []
    if not family.ordered:
        buckets = range(segment.entry.buckets)
        return [parts_of(head, bucket) for bucket in buckets]
    firsts = head.ordered.get(family.id, ())
    numbers: set[int] = set()
    for one in ranges:
        low = 0 if one.start is None else block_number(head, stored_key(family.id, one.start))
        high = len(firsts)
        if one.end is not None:
            high = bisect_left(firsts, stored_key(family.id, one.end))
        numbers.update(range(max(0, low), high))
    return [[f"{family.id}/{number}"] for number in sorted(numbers)]
