"""Reads many keys of one version of a partition, and its rows in ranges of keys.

Only the blocks that can hold a key are read (docs/format.md, section 7).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import FormatError
from redis_state.format.bucketing import bucket_of
from redis_state.format.changes import Changes
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, ORDERED_KINDS, Family, Header, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, stored_key
from redis_state.format.segment import SegmentContent, part_fields, read_header, read_table
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import CHUNK_BYTES_MAX, SegmentGoneError, fetch
from redis_state.reader.reopening import Reopening

KEYS_AT_ONCE = 512
_SEGMENTS_AT_ONCE = 64
_FIELDS_AT_ONCE = 64
_BYTES_AT_ONCE = 8 << 20
_WHAT = "reading some keys"


class Points:
    """Keys and ranges of one version of a partition; the headers are read once."""

    def __init__(self, client: Client, opened: Opened) -> None:
        self._client = client
        self._version = Reopening(client, opened, attempted=_WHAT)
        self._heads: tuple[Opened, list[Header]] | None = None

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
        segments, heads = opened.segments, self._headers(opened)
        if not segments:
            return {}
        words = words_of(self._client, opened.id, segments, heads, wanted, family.kind)
        above = list(zip(heads[:-1], words[:-1], strict=True))
        changes = _folded(above, family)
        found = {key: _left(changes, key, words[-1].get(key)) for key in wanted}
        return {key: value for key, value in found.items() if value is not None}

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
        names = _fields_in(segment, head, family, ranges)
        read = partial(fetch, self._client, id_)
        for start in range(0, len(names), _FIELDS_AT_ONCE):
            group = names[start : start + _FIELDS_AT_ONCE]
            blocks = [one for of in group for one in of]
            raws = iter(read(segment, blocks))
            for of in group:
                rows: dict[bytes, Value] = {}
                for name in of:
                    raw = _there(segment, head, name, next(raws))
                    # A later part of a bucket overrides an earlier one.
                    rows.update(read_table(segment, name, raw) if raw is not None else ())
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
    raws: dict[str, bytes | None] = {}
    wanted = [segment for segment in segments if segment.entry.header]
    for start in range(0, len(wanted), _SEGMENTS_AT_ONCE):
        group = wanted[start : start + _SEGMENTS_AT_ONCE]
        places = [(segment, [FIELD]) for segment in group]
        for segment, (raw,) in zip(group, _fetch(client, id_, places), strict=True):
            raws[segment.ident] = raw
    return [read_header(segment, raws.get(segment.ident)) for segment in segments]


def words_of(
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
    places = [
        (segment, _fields_with(segment, head, wanted, kind))
        for segment, head in zip(segments, heads, strict=True)
    ]
    asked = set(wanted)
    found: list[dict[bytes, Value]] = []
    for (segment, names), head, raws in zip(
        places, heads, _fetch(client, id_, places), strict=True
    ):
        rows: dict[bytes, Value] = {}
        for name, value in zip(names, raws, strict=True):
            raw = _there(segment, head, name, value)
            if raw is not None:
                table = read_table(segment, name, raw)
                rows.update((key, table[key]) for key in asked & table.keys())
        found.append(rows)
    return found


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


def _fetch(
    client: Client, id_: PartitionId, places: Sequence[tuple[Segment, Sequence[str]]]
) -> Iterator[list[bytes | None]]:
    """Reads fields of many segments, in pipelines of bounded size."""
    commands: list[Command] = []
    group: list[tuple[Segment, Sequence[str]]] = []
    size = 0
    for segment, names in places:
        key = keys.segment(id_, segment.ident)
        mean = max(1, segment.entry.bytes // max(1, segment.entry.blocks))
        if size and size + mean * len(names) > _BYTES_AT_ONCE:
            yield from _sent(client, id_, group, commands)
            commands, group, size = [], [], 0
        group.append((segment, names))
        each = max(1, CHUNK_BYTES_MAX // mean)
        for start in range(0, len(names), each):
            commands.append(("HMGET", key, *names[start : start + each]))
        if names:
            # Sent last: if the key vanishes in between, no bucket is mistaken for empty.
            commands.append(("HLEN", key))
        size += mean * len(names)
    yield from _sent(client, id_, group, commands)


def _sent(
    client: Client,
    id_: PartitionId,
    group: Sequence[tuple[Segment, Sequence[str]]],
    commands: Sequence[Command],
) -> Iterator[list[bytes | None]]:
    replies = iter(client.call(_WHAT, commands) if commands else ())
    for segment, names in group:
        values: list[bytes | None] = []
        while len(values) < len(names):
            values += next(replies)
        if names and next(replies) != segment.entry.blocks:
            raise SegmentGoneError(segment)
        yield client.opened(keys.segment(id_, segment.ident), names, values)


def _fields_with(segment: Segment, head: Header, wanted: Sequence[bytes], kind: str) -> list[str]:
    """Returns the fields that can hold keys, the parts of a bucket in the order of applying."""
    if not segment.entry.blocks:
        return []
    if kind in ORDERED_KINDS:
        numbers = {(family_of(key), _block_of(head, key)) for key in wanted}
        return [f"{family}/{number}" for family, number in sorted(numbers) if number >= 0]
    buckets = {bucket_of(key, kind=kind, buckets=segment.entry.buckets) for key in wanted}
    return [
        name
        for bucket in sorted(buckets)
        for name in part_fields(bucket, head.parts.get(bucket, 1))
    ]


def _fields_in(
    segment: Segment, head: Header, family: Family, ranges: Sequence[Tombstone]
) -> list[list[str]]:
    """Returns the fields that can hold rows of these ranges, grouped by bucket."""
    if not segment.entry.blocks:
        return []
    if not family.ordered:
        buckets = range(segment.entry.buckets)
        return [part_fields(bucket, head.parts.get(bucket, 1)) for bucket in buckets]
    firsts = head.ordered.get(family.id, ())
    numbers: set[int] = set()
    for one in ranges:
        low = 0 if one.start is None else _block_of(head, stored_key(family.id, one.start))
        high = len(firsts)
        if one.end is not None:
            high = bisect_left(firsts, stored_key(family.id, one.end))
        numbers.update(range(max(0, low), high))
    return [[f"{family.id}/{number}"] for number in sorted(numbers)]


def _block_of(head: Header, key: bytes) -> int:
    """Returns the number of the ordered block that can hold a key; -1 if none can."""
    return bisect_right(head.ordered.get(family_of(key), ()), key) - 1


def _there(segment: Segment, head: Header, name: str, raw: bytes | None) -> bytes | None:
    """Checks that a field exists; only a bucket without rows may be missing."""
    if raw is None and ("/" in name or "." in name or int(name) in head.parts):
        raise FormatError(
            f"reading {segment.ident}", found="a part of a bucket, or a block, is missing"
        )
    return raw
