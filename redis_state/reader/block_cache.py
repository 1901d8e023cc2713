"""Cached blocks of look-ups; valid for ever, since segments never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redis_state.format.bucketing import bucketing_hashes
from redis_state.format.entry import Segment
from redis_state.format.header import ORDERED_KINDS, Family, Header, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import block_field, part_fields, some_of, table_of
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened

BYTES_MAX = 32 << 20
"""Approximate bound of the decoded blocks of one query."""

RECENT_BYTES_MAX = 12 << 20
"""Share of `BYTES_MAX` for segments that were read whole."""

_ENTRY_BYTES_MAX = 1 << 20
ENTRY_BYTES = 400
"""Overhead of an entry: its place, and an object that may be empty."""

ROW_BYTES = 150
"""Overhead of the objects of a key and a value, without their bytes."""

_TIMES = 3
_VERSION_BYTES = 300
_SEARCHED_BYTES = 150
_TABLES_BYTES = 150
_LAYER_BYTES = 64
_JOINED_ROW_BYTES = 100
_ORDERED_KEYS_MAX = 8
"""Most keys of an ordered family to search one by one; more of them are searched by blocks."""

_FAMILY_BYTES = 500
_PART_BYTES = 100
_TOMBSTONE_BYTES = 250
_ORDERED_KEY_BYTES = 50

_NOTHING = Appended(b"")
"""Stands for a segment without a row of the key."""

_NO_ROWS: Mapping[bytes, Value] = {}
_NO_HEADER = Header()


Field = int | str
"""A bucket by its number; any other field of a segment by its name."""

Where = tuple[str, int, str, int, str]
"""Address of a segment: checkpoint, operator, store, partition, ident of the segment.

A checkpoint that continues a query with another number of partitions reuses the idents of the
previous checkpoint.
"""

CachedRows = tuple[tuple[Family, ...], dict[bytes, bytes]]
"""The family table of a version, and the values of those keys that exist."""


def where_of(id_: PartitionId, segment: Segment) -> Where:
    """Returns the address of a segment."""
    return id_.store.gen, id_.store.operator, id_.store.store, id_.partition, segment.ident


def parts_of(head: Header, bucket: int) -> list[Field]:
    """Returns the fields of a bucket, in the order in which they apply."""
    return [bucket, *part_fields(bucket, head.parts.get(bucket, 1))[1:]]


@dataclass(slots=True)
class _Payload:
    """A block that is kept in its encoded form.

    Attributes:
        times: Number of look-ups in the block.
        is_large: Whether its decoded rows are too large to keep.
    """

    payload: bytes
    times: int = 1
    is_large: bool = False


@dataclass(slots=True)
class CachedSegment:
    """The cached fields of one segment.

    Attributes:
        head: ``None`` if it is not cached.
        rows: Decoded rows by field.
        payloads: By field, blocks without decoded rows.
    """

    head: Header | None = None
    rows: dict[Field, Mapping[bytes, Value]] = field(default_factory=dict)
    payloads: dict[Field, _Payload] = field(default_factory=dict)

    def head_of(self, segment: Segment) -> Header | None:
        """Returns the header, empty if the segment has none; ``None`` if it is not cached."""
        return self.head if segment.entry.blocks and segment.entry.header else _NO_HEADER

    def payload(self, field: Field) -> tuple[bytes, bool] | None:
        """Returns the payload of a block, and whether to decode and keep its rows now.

        Rows are kept from the third look-up on. ``None`` if the payload is not cached.
        """
        found = self.payloads.get(field)
        if found is None:
            return None
        found.times += 1
        return found.payload, found.times >= _TIMES and not found.is_large


class _SearchedSegment(NamedTuple):
    """A segment with blocks.

    Attributes:
        last: Number of its last bucket.
    """

    segment: Segment
    where: Where
    head: Header
    cached: CachedSegment
    last: int


_Layer = tuple[Mapping[bytes, Value], Sequence[Tombstone]]
"""Changes of a segment to keys of one field: their rows, and removals of rows below."""


@dataclass(slots=True)
class _Version:
    """A version of a partition whose headers are cached.

    Attributes:
        searched: Those of its segments that have blocks, the newest first.
        last: Number of the last bucket of the segment with most buckets.
        bytes: Approximate size, which the cache counts until a newer version takes its place.
        tables: By bucket, cached rows of all segments.
    """

    segments: tuple[Segment, ...]
    families: tuple[Family, ...]
    searched: tuple[_SearchedSegment, ...]
    last: int
    bytes: int
    tables: dict[int, Sequence[_Layer]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recent:
    """Merged changes of the newest segments of a version.

    Attributes:
        rows: Latest change of each key in these segments, none of them an append.
        families: The newest family table of these segments.
        below: The same version without these segments.
        bytes: Approximate size of the rows in memory.
    """

    opened: Opened
    rows: Mapping[bytes, Value]
    families: tuple[Family, ...] | None
    below: Opened
    bytes: int

    @property
    def count(self) -> int:
        """Number of merged segments."""
        return len(self.opened.segments) - len(self.below.segments)


@dataclass(frozen=True, slots=True)
class _Kept:
    """All that a cache keeps until its next fresh start."""

    segments: dict[Where, CachedSegment] = field(default_factory=dict)
    versions: dict[PartitionId, _Version] = field(default_factory=dict)
    recent: dict[PartitionId, Recent] = field(default_factory=dict)
    keys: dict[PartitionId, int] = field(default_factory=dict)


class BlockCache:
    """Cache that starts afresh when full; safe to share between threads, without a lock.

    Attributes:
        resets: Number of fresh starts.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._kept = _Kept()
        self._bytes = 0

    def segment(self, where: Where) -> CachedSegment:
        """Returns the cached fields of a segment, to be read only."""
        return self._kept.segments.get(where, _EMPTY)

    def add_payload(self, where: Where, field: Field, payload: bytes) -> None:
        """Keeps the payload of a block after its first look-up."""
        size = ENTRY_BYTES + len(payload)
        if size <= _ENTRY_BYTES_MAX:
            self._room_in(where, size).payloads[field] = _Payload(payload)

    def add_head(self, where: Where, head: Header) -> None:
        """Keeps a header."""
        size = ENTRY_BYTES + _head_bytes(head)
        if size <= _ENTRY_BYTES_MAX:
            self._room_in(where, size).head = head

    def add_rows(
        self, where: Where, field: Field, rows: Mapping[bytes, Value], raw_bytes: int
    ) -> None:
        """Keeps the rows of a block instead of its payload, unless they are too large.

        Args:
            raw_bytes: Approximate bytes of keys and values together.
        """
        size = ENTRY_BYTES + raw_bytes + ROW_BYTES * len(rows)
        payloads = self.segment(where).payloads
        if size > _ENTRY_BYTES_MAX:
            if field in payloads:
                payloads[field].is_large = True
            return
        known = payloads.pop(field, None)
        if known is not None:
            self._bytes -= ENTRY_BYTES + len(known.payload)
        self._room_in(where, size).rows[field] = rows

    def find(self, opened: Opened, keys: Sequence[bytes], kind: str) -> CachedRows | None:
        """Looks keys of one family up; ``None`` if a needed header or block is not cached."""
        ordered = kind in ORDERED_KINDS
        version = None if ordered and len(keys) > _ORDERED_KEYS_MAX else self._version(opened)
        if version is None:
            return None
        found: list[Sequence[_Layer] | None]
        if ordered:
            found = [self._blocks(version, key) for key in keys]
        else:
            buckets = [hash_ & version.last for hash_ in bucketing_hashes(keys, kind=kind)]
            known = version.tables
            found = [known.get(bucket) or self._tables(version, bucket) for bucket in buckets]
        values: dict[bytes, bytes] = {}
        for key, layers in zip(keys, found, strict=True):
            if layers is None:
                return None
            value: bytes | None = None
            tail = b""
            for rows, tombstones in layers:
                said = rows.get(key, _NOTHING)
                if not isinstance(said, Appended):
                    value = said
                    break
                if said is not _NOTHING:
                    tail = said.data + tail
                if tombstones and _covered(key, tombstones):
                    break
            if tail:
                value = (value or b"") + tail
            if value is not None:
                values[key] = value
        return version.families, values

    def recent(self, id_: PartitionId) -> Recent | None:
        """Returns the merged changes of a partition's newest segments; ``None`` without any."""
        return self._kept.recent.get(id_)

    def count_keys(self, id_: PartitionId, count: int) -> int:
        """Counts look-ups of keys since segments were last read whole; returns the count before."""
        before = self._kept.keys.get(id_, 0)
        self._kept.keys[id_] = before + count
        return before

    def recent_room(self) -> int:
        """Returns the bytes that are left for rows of more segments."""
        return RECENT_BYTES_MAX - sum(one.bytes for one in list(self._kept.recent.values()))

    def add_recent(self, recent: Recent) -> None:
        """Keeps the merged changes of a partition's newest segments, instead of earlier ones.

        The count of keys starts anew.
        """
        id_ = recent.opened.id
        known = self._kept.recent.pop(id_, None)
        if known is not None:
            self._bytes -= known.bytes
        self._make_room(recent.bytes)
        self._kept.keys[id_] = 0
        self._kept.recent[id_] = recent

    def _version(self, opened: Opened) -> _Version | None:
        kept = self._kept
        known = kept.versions.get(opened.id)
        if known is not None and known.segments == opened.segments:
            return known
        families: tuple[Family, ...] | None = None
        searched: list[_SearchedSegment] = []
        for segment in opened.segments:
            where = where_of(opened.id, segment)
            cached = kept.segments.get(where, _EMPTY)
            head = cached.head_of(segment)
            if head is None or (segment.entry.blocks and cached is _EMPTY):
                return None
            if families is None:
                families = head.families
            if segment.entry.blocks:
                last = segment.entry.buckets - 1
                searched.append(_SearchedSegment(segment, where, head, cached, last))
        if families is None:
            return None
        size = _VERSION_BYTES + _SEARCHED_BYTES * len(searched)
        self._make_room(size - (0 if known is None else known.bytes))
        last = max((one.last for one in searched), default=0)
        found = _Version(opened.segments, families, tuple(searched), last, size)
        # Not kept by a cache that has started afresh since.
        kept.versions[opened.id] = found
        return found

    def _tables(self, version: _Version, bucket: int) -> Sequence[_Layer] | None:
        """Returns the changes to the keys of a bucket; ``None`` if not all are cached."""
        known = version.tables.get(bucket)
        if known is not None:
            return known
        layers: list[_Layer] = []
        size = _TABLES_BYTES
        for _, _, head, cached, last in version.searched:
            field = bucket & last
            rows = cached.rows.get(field)
            if rows is None:
                return None
            if field in head.parts:
                rows = dict(rows)
                for part in parts_of(head, field)[1:]:
                    if part not in cached.rows:
                        return None
                    # A later part of a bucket overrides an earlier one.
                    rows |= cached.rows[part]
                size += _JOINED_ROW_BYTES * len(rows)
            if rows or head.tombstones:
                layers.append((rows, head.tombstones))
        size += _LAYER_BYTES * len(layers)
        self._make_room(size)
        version.bytes += size
        version.tables[bucket] = layers
        return layers

    def _blocks(self, version: _Version, key: bytes) -> list[_Layer] | None:
        """Returns changes of ordered blocks, at least those of a key; ``None`` if not cached."""
        layers: list[_Layer] = []
        for searched in version.searched:
            rows = self._block(searched, key)
            if rows is None:
                return None
            layers.append((rows, searched.head.tombstones))
        return layers

    def _block(self, searched: _SearchedSegment, key: bytes) -> Mapping[bytes, Value] | None:
        """Returns rows of the ordered block that can hold a key; ``None`` if it is not cached."""
        name = block_field(searched.head, key)
        if name is None:
            return _NO_ROWS
        rows = searched.cached.rows.get(name)
        known = searched.cached.payload(name) if rows is None else None
        if known is None:
            return rows
        payload, is_worth_a_table = known
        if not is_worth_a_table:
            return some_of(searched.segment, name, payload, [key])
        rows = table_of(searched.segment, name, payload)
        self.add_rows(searched.where, name, rows, len(payload))
        return rows

    def _room_in(self, where: Where, size: int) -> CachedSegment:
        """Makes room for another field of a segment."""
        self._make_room(size)
        return self._kept.segments.setdefault(where, CachedSegment())

    def _make_room(self, size: int) -> None:
        # Two threads may count at once, which only makes the bound a little inexact.
        self._bytes += size
        if self._bytes > BYTES_MAX:
            self._kept = _Kept()
            self._bytes = size
            self.resets += 1


_EMPTY = CachedSegment()


def _covered(key: bytes, tombstones: Sequence[Tombstone]) -> bool:
    family = family_of(key)
    return any(one.family == family and one.covers(key[FAMILY_BYTES:]) for one in tombstones)


def _head_bytes(head: Header) -> int:
    """Returns the approximate bytes of a decoded header."""
    families = head.families or ()
    schemas = sum(len(one.key_schema) + len(one.value_schema) for one in families)
    ordered = sum(
        _ORDERED_KEY_BYTES * len(firsts) + sum(map(len, firsts)) for firsts in head.ordered.values()
    )
    ends = sum(len(one.start or b"") + len(one.end or b"") for one in head.tombstones)
    return (
        _FAMILY_BYTES * len(families)
        + schemas
        + ordered
        + _PART_BYTES * len(head.parts)
        + _TOMBSTONE_BYTES * len(head.tombstones)
        + ends
    )
