"""Blocks that keys were looked up in; segments never change, so they stay right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis_state.format.entry import Segment
from redis_state.format.header import Family, Header, Tombstone
from redis_state.format.rows import Value
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened

BYTES_MAX = 32 << 20
"""Of the decoded blocks of one query, about."""

RECENT_BYTES_MAX = 12 << 20
"""Of these, those of segments that were read whole."""

_ENTRY_BYTES_MAX = 1 << 20
ENTRY_BYTES = 400
"""Of an entry itself: its place, and an object that may hold nothing."""

ROW_BYTES = 150
"""Of objects that hold a key and a value, beside their bytes."""

_TIMES = 3
_LAYER_BYTES = 64
_JOINED_ROW_BYTES = 100
_FAMILY_BYTES = 500
_PART_BYTES = 100
_TOMBSTONE_BYTES = 250
_ORDERED_KEY_BYTES = 50


BlockId = tuple[str, int, str, int, str, str]
"""Where a block is: checkpoint, operator, store, partition, ident of the segment, and field.

A checkpoint that a query got with another number of partitions has the idents of the one before.
"""


Where = tuple[str, int, str, int, str]
"""A place without its field: the segment."""


BucketLayer = tuple[Mapping[bytes, Value], Sequence[Tombstone]]
"""What segments say of the keys of a bucket: their rows, and what they remove below them."""


def where_of(id_: PartitionId, segment: Segment) -> Where:
    """Where the blocks of a segment are."""
    return id_.store.gen, id_.store.operator, id_.store.store, id_.partition, segment.ident


@dataclass(frozen=True, slots=True)
class Chain:
    """The buckets of one version of a partition in which keys were looked up.

    Attributes:
        last: The number of the last bucket, of the segment that has most.
        families: The family table of the version.
        resets: How often the cache had started afresh when its rows were read.
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
    """What the newest segments of a version say together.

    Attributes:
        rows: The last word on each key of which they say something; nothing is appended.
        families: The newest family table that one of them has.
        below: The same version without them.
        bytes: Of the rows in memory, about.
    """

    opened: Opened
    rows: Mapping[bytes, Value]
    families: tuple[Family, ...] | None
    below: Opened
    bytes: int

    @property
    def count(self) -> int:
        """How many segments were put together."""
        return len(self.opened.segments) - len(self.below.segments)


@dataclass(slots=True)
class _Payload:
    """A block that is kept as it came.

    Attributes:
        times: How often it was looked into.
        is_large: Whether a table of its rows is not kept.
    """

    payload: bytes
    times: int = 1
    is_large: bool = False


class BlockCache:
    """Starts afresh when it is full; safe to share between threads, without a lock.

    Attributes:
        resets: How often it has started afresh.
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
        """A header; ``None`` if it is not here."""
        return self._heads.get(place)

    def rows(self, place: BlockId) -> Mapping[bytes, Value] | None:
        """The rows of a block; ``None`` if they are not here."""
        return self._rows.get(place)

    def payload(self, place: BlockId) -> tuple[bytes, bool] | None:
        """The payload of a block, and whether its rows are worth a table by now.

        They are where they are looked into the third time; ``None`` if the payload is not here.
        """
        found = self._payloads.get(place)
        if found is None:
            return None
        found.times += 1
        return found.payload, found.times >= _TIMES and not found.is_large

    def add_payload(self, place: BlockId, payload: bytes) -> None:
        """Keep a block that was looked into once."""
        size = ENTRY_BYTES + len(payload)
        if size <= _ENTRY_BYTES_MAX:
            self._make_room(size)
            self._payloads[place] = _Payload(payload)

    def add_head(self, place: BlockId, head: Header) -> None:
        """Keep a header."""
        size = ENTRY_BYTES + _head_bytes(head)
        if size <= _ENTRY_BYTES_MAX:
            self._make_room(size)
            self._heads[place] = head

    def add_rows(self, place: BlockId, rows: Mapping[bytes, Value], raw_bytes: int) -> bool:
        """Keep the rows of a block, and not its payload any more.

        Args:
            raw_bytes: Of keys and values together, about.

        Returns:
            Whether they are kept: a block may be too large.
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
        """What is known of a version that is made up of these segments; ``None`` if nothing is."""
        chain = self._chains.get(opened.id)
        if chain is None or chain.opened.segments != opened.segments:
            return None
        return chain

    def add_layers(self, chain: Chain, bucket: int, layers: Sequence[BucketLayer]) -> None:
        """Keep what the segments say of a bucket, if all of their rows are kept as blocks.

        Rows of before the cache started afresh are counted no more, so their chain has ended.
        """
        self._make_room(ENTRY_BYTES + _LAYER_BYTES * len(layers))
        if chain.resets == self.resets:
            chain.layers[bucket] = layers
            self._chains[chain.opened.id] = chain

    def add_joined(self, chain: Chain, place: tuple[int, int], rows: Mapping[bytes, Value]) -> None:
        """Keep rows that were put together of several parts."""
        self._make_room(ENTRY_BYTES + _JOINED_ROW_BYTES * len(rows))
        chain.joined[place] = rows

    def recent(self, id_: PartitionId) -> Recent | None:
        """What the newest segments of a partition said when they were read whole."""
        return self._recent.get(id_)

    def count_keys(self, id_: PartitionId, count: int) -> int:
        """How many keys were looked up since segments were read whole, before these."""
        before = self._keys.get(id_, 0)
        self._keys[id_] = before + count
        return before

    def recent_room(self) -> int:
        """Bytes that rows of more segments may take."""
        return RECENT_BYTES_MAX - sum(one.bytes for one in list(self._recent.values()))

    def add_recent(self, recent: Recent) -> None:
        """Keep what the newest segments of a partition say, instead of what they said before.

        Keys are counted anew.
        """
        id_ = recent.opened.id
        known = self._recent.pop(id_, None)
        if known is not None:
            self._bytes -= known.bytes
        self._make_room(recent.bytes)
        self._keys[id_] = 0
        self._recent[id_] = recent

    def _make_room(self, size: int) -> None:
        # Two threads may count at once, which makes the bound a little inexact, and no more.
        self._bytes += size
        if self._bytes > BYTES_MAX:
            self._heads, self._rows, self._payloads, self._chains = {}, {}, {}, {}
            self._recent, self._keys = {}, {}
            self._bytes = size
            self.resets += 1


def _head_bytes(head: Header) -> int:
    """What a decoded header takes, about."""
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
