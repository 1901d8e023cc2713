"""Cached blocks of look-ups; valid for ever, since segments never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis_state.format.entry import Segment
from redis_state.format.header import Family, Header, Tombstone
from redis_state.format.rows import Value
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
_LAYER_BYTES = 64
_JOINED_ROW_BYTES = 100
_FAMILY_BYTES = 500
_PART_BYTES = 100
_TOMBSTONE_BYTES = 250
_ORDERED_KEY_BYTES = 50


BlockId = tuple[str, int, str, int, str, str]
"""Address of a block: checkpoint, operator, store, partition, ident of the segment, field.

A checkpoint that continues a query with another number of partitions reuses the idents of the
previous checkpoint.
"""


Where = tuple[str, int, str, int, str]
"""Address of a segment: a `BlockId` without the field."""


BucketLayer = tuple[Mapping[bytes, Value], Sequence[Tombstone]]
"""Changes of a bucket's keys in some segments: their rows, and removals of rows below."""


def where_of(id_: PartitionId, segment: Segment) -> Where:
    """Returns the address of a segment."""
    return id_.store.gen, id_.store.operator, id_.store.store, id_.partition, segment.ident


@dataclass(frozen=True, slots=True)
class Chain:
    """The buckets of one version of a partition in which keys were looked up.

    Attributes:
        last: Number of the last bucket of the segment with most buckets.
        families: The family table of the version.
        resets: `BlockCache.resets` when the rows were read.
        layers: By bucket, the newest first.
        joined: Rows of all parts of a bucket, by the number of the segment and of the bucket.
    """

    opened: Opened
    last: int
    families: tuple[Family, ...]
    resets: int
    layers: dict[int, Sequence[BucketLayer]] = field(default_factory=dict)
    joined: dict[tuple[int, int], Mapping[bytes, Value]] = field(default_factory=dict)


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


class BlockCache:
    """Cache that starts afresh when full; safe to share between threads, without a lock.

    Attributes:
        resets: Number of fresh starts.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._heads: dict[BlockId, Header] = {}
        self._rows: dict[BlockId, Mapping[bytes, Value]] = {}
        self._payloads: dict[BlockId, _Payload] = {}
        self._chains: dict[PartitionId, Chain] = {}
        self._recent: dict[PartitionId, Recent] = {}
        self._keys: dict[PartitionId, int] = {}
        self._bytes = 0

    def head(self, place: BlockId) -> Header | None:
        """Returns a header; ``None`` if it is not cached."""
        return self._heads.get(place)

    def rows(self, place: BlockId) -> Mapping[bytes, Value] | None:
        """Returns the decoded rows of a block; ``None`` if they are not cached."""
        return self._rows.get(place)

    def payload(self, place: BlockId) -> tuple[bytes, bool] | None:
        """Returns the payload of a block, and whether to decode and keep its rows now.

        Rows are kept from the third look-up on. ``None`` if the payload is not cached.
        """
        found = self._payloads.get(place)
        if found is None:
            return None
        found.times += 1
        return found.payload, found.times >= _TIMES and not found.is_large

    def add_payload(self, place: BlockId, payload: bytes) -> None:
        """Keeps the payload of a block after its first look-up."""
        size = ENTRY_BYTES + len(payload)
        if size <= _ENTRY_BYTES_MAX:
            self._make_room(size)
            self._payloads[place] = _Payload(payload)

    def add_head(self, place: BlockId, head: Header) -> None:
        """Keeps a header."""
        size = ENTRY_BYTES + _head_bytes(head)
        if size <= _ENTRY_BYTES_MAX:
            self._make_room(size)
            self._heads[place] = head

    def add_rows(self, place: BlockId, rows: Mapping[bytes, Value], raw_bytes: int) -> bool:
        """Keeps the rows of a block instead of its payload.

        Args:
            raw_bytes: Approximate bytes of keys and values together.

        Returns:
            False if the block is too large to keep.
        """
        size = ENTRY_BYTES + raw_bytes + ROW_BYTES * len(rows)
        if size > _ENTRY_BYTES_MAX:
            known = self._payloads.get(place)
            if known is not None:
                known.is_large = True
            return False
        known = self._payloads.pop(place, None)
        if known is not None:
            self._bytes -= ENTRY_BYTES + len(known.payload)
        self._make_room(size)
        self._rows[place] = rows
        return True

    def chain(self, opened: Opened) -> Chain | None:
        """Returns the cached buckets of a version with these segments; ``None`` without any."""
        chain = self._chains.get(opened.id)
        if chain is None or chain.opened.segments != opened.segments:
            return None
        return chain

    def add_layers(self, chain: Chain, bucket: int, layers: Sequence[BucketLayer]) -> None:
        """Keeps the changes of a bucket, if all of their rows are kept as blocks.

        Rows of before a fresh start are no longer counted, so their chain is not kept.
        """
        self._make_room(ENTRY_BYTES + _LAYER_BYTES * len(layers))
        if chain.resets == self.resets:
            chain.layers[bucket] = layers
            self._chains[chain.opened.id] = chain

    def add_joined(self, chain: Chain, place: tuple[int, int], rows: Mapping[bytes, Value]) -> None:
        """Keeps rows that were merged from several parts."""
        self._make_room(ENTRY_BYTES + _JOINED_ROW_BYTES * len(rows))
        chain.joined[place] = rows

    def recent(self, id_: PartitionId) -> Recent | None:
        """Returns the merged changes of a partition's newest segments; ``None`` without any."""
        return self._recent.get(id_)

    def count_keys(self, id_: PartitionId, count: int) -> int:
        """Counts look-ups of keys since segments were last read whole; returns the count before."""
        before = self._keys.get(id_, 0)
        self._keys[id_] = before + count
        return before

    def recent_room(self) -> int:
        """Returns the bytes that are left for rows of more segments."""
        return RECENT_BYTES_MAX - sum(one.bytes for one in list(self._recent.values()))

    def add_recent(self, recent: Recent) -> None:
        """Keeps the merged changes of a partition's newest segments, instead of earlier ones.

        The count of keys starts anew.
        """
        id_ = recent.opened.id
        known = self._recent.pop(id_, None)
        if known is not None:
            self._bytes -= known.bytes
        self._make_room(recent.bytes)
        self._keys[id_] = 0
        self._recent[id_] = recent

    def _make_room(self, size: int) -> None:
        # Two threads may count at once, which only makes the bound a little inexact.
        self._bytes += size
        if self._bytes > BYTES_MAX:
            self._heads, self._rows, self._payloads, self._chains = {}, {}, {}, {}
            self._recent, self._keys = {}, {}
            self._bytes = size
            self.resets += 1


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
