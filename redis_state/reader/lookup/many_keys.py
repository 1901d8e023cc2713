"""Live reads of keys, from many partitions at once (docs/format.md, section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import FormatError
from redis_state.format.bucketing import bucketing_hashes
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, ORDERED_KINDS, Family, Header
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import part_fields, read_header, read_payload, some_of, table_of
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened, reopen
from redis_state.reader.block_cache import BlockCache, BlockId, BucketLayer, Chain, Where, where_of
from redis_state.reader.lookup.cached_lookup import block_with, head_of, known_rows
from redis_state.reader.lookup.merged_deltas import read_recent
from redis_state.reader.reopening import REOPENS_MAX, replaced_again_and_again

_FEW = 8
_WHAT = "reading a key"

AskedPartition = tuple[Opened, Sequence[bytes]]
"""A partition and the stored keys to look up in it, all of one family."""


@dataclass(frozen=True, slots=True)
class PartitionHits:
    """Result of a look-up in one partition.

    Attributes:
        values: Values of the keys that exist.
        families: The family table of the version.
    """

    opened: Opened
    values: Mapping[bytes, bytes]
    families: tuple[Family, ...]


_BlockField = int | str
"""A bucket by its number; any other field by its name."""


@dataclass(slots=True)
class _SegmentPart:
    """Known content of one segment: its header, and the rows of fields that can hold the keys.

    Attributes:
        head: ``None`` until it is read.
        fields: For each key the field that can hold it; ``None`` if no field can.
        keys: By field the keys that it can hold.
        rows: Rows of the existing fields that were read: at least those of these keys.
        wanted: Fields to read next.
        apart: Fields that were read but have no table in the cache.
        where: Address of the segment in the cache.
        keep: See `look_up`.
    """

    opened: Opened
    segment: Segment
    where: Where
    head: Header | None
    fields: Sequence[_BlockField | None]
    keys: Mapping[_BlockField, Sequence[bytes]]
    rows: dict[_BlockField | None, Mapping[bytes, Value]]
    wanted: list[_BlockField]
    apart: set[_BlockField]
    keep: bool

    def place(self, field: _BlockField) -> BlockId:
        return *self.where, str(field)


def look_up(
    client: Client,
    asked: Sequence[AskedPartition],
    *,
    kind: str,
    cache: BlockCache | None = None,
    keep: bool = True,
) -> Iterator[PartitionHits]:
    """Yields the values of stored keys, partition by partition.

    Takes one round trip. A second one reads buckets with parts, or an ordered family, where the
    header names the field of a key. A read of whole deltas takes one more, after which further keys
    take fewer. Maintenance may cause more round trips, cached blocks save them.

    Args:
        keep: Whether to cache the blocks that are read, and in time tables of their rows.
            Else only the rows of the keys are decoded.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: Blocks are damaged.
    """
    blocks = cache or BlockCache()
    left = list(asked) if not keep else []
    if keep:
        for opened, keys in asked:
            known = _known(opened, keys, kind, blocks)
            if known is None:
                left.append((opened, keys))
            else:
                yield known
        if cache is not None and left:

            def asks(opened: Opened, keys: Sequence[bytes]) -> bool:
                # Only headers name the ordered blocks, and the cached ones were searched already.
                return kind in ORDERED_KINDS or any(
                    one.wanted for one in _begun(opened, keys, kind, cache, keep)
                )

            read_recent(client, left, cache, asks)
    tops = {}
    below = []
    for opened, keys in left:
        top = _top(opened, keys, blocks) if keep else None
        if top is None:
            below.append((opened, keys))
        elif top.is_complete:
            yield top.over(None)
        else:
            tops[opened.id] = top
            below.append((top.below, top.left))
    for found in _read_rows(client, below, kind, blocks, keep=keep, remember=cache is not None):
        top = tops.get(found.opened.id)
        yield found if top is None else top.over(found)


@dataclass(frozen=True, slots=True)
class _Top:
    """Merged changes of the newest segments of a partition, for the keys of a look-up.

    Attributes:
        values: Values of the keys that have one there.
        families: The newest family table there; ``None`` without any.
        below: The partition without these segments.
        left: Keys without a change in these segments.
    """

    opened: Opened
    values: dict[bytes, bytes]
    families: tuple[Family, ...] | None
    below: Opened
    left: Sequence[bytes]

    @property
    def is_complete(self) -> bool:
        """True if the segments below need not be searched."""
        return self.families is not None and not (self.left and self.below.segments)

    def over(self, found: PartitionHits | None) -> PartitionHits:
        """Combines this result with the result of the segments below.

        Args:
            found: May be of other segments, if maintenance has replaced those below.
        """
        if found is None:
            return PartitionHits(self.opened, self.values, self.families or ())
        is_same = found.opened.segments == self.below.segments
        return PartitionHits(
            self.opened if is_same else found.opened,
            {**found.values, **self.values},
            found.families if self.families is None else self.families,
        )


def _top(opened: Opened, keys: Sequence[bytes], cache: BlockCache) -> _Top | None:
    recent = cache.recent(opened.id)
    if recent is None or recent.opened.segments != opened.segments:
        return None
    rows = recent.rows
    values = {key: value for key in keys if isinstance(value := rows.get(key), bytes)}
    left = [key for key in keys if key not in rows] if len(values) < len(keys) else ()
    return _Top(opened, values, recent.families, recent.below, left)


def _known(
    opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache
) -> PartitionHits | None:
    """Looks keys up in the cache; ``None`` if it does not have all of the needed blocks."""
    top = _top(opened, keys, cache)
    if top is not None and top.is_complete:
        return top.over(None)
    below, left = (opened, keys) if top is None else (top.below, top.left)
    known = known_rows(below, left, kind, cache)
    if known is None:
        return None
    families, values = known
    found = PartitionHits(below, values, families)
    return found if top is None else top.over(found)


def _read_rows(
    client: Client,
    asked: Sequence[AskedPartition],
    kind: str,
    blocks: BlockCache,
    *,
    keep: bool,
    remember: bool,
) -> Iterator[PartitionHits]:
    wanted = asked
    if not wanted:
        return
    for _ in range(REOPENS_MAX):
        resets = blocks.resets
        pieces = [_begun(opened, keys, kind, blocks, keep) for opened, keys in wanted]
        every = [piece for of_partition in pieces for piece in of_partition]
        gone = _read(client, every, blocks)
        for piece in every:
            if piece.opened.id not in gone:
                _plan_rest(piece, wanted, kind, blocks)
        gone |= _read(client, [piece for piece in every if piece.opened.id not in gone], blocks)
        for (opened, keys), of_partition in zip(wanted, pieces, strict=True):
            if opened.id not in gone:
                found = _evaluate(opened, of_partition, keys)
                if keep and remember and blocks.resets == resets:
                    _remember(found, of_partition, keys, kind, blocks)
                yield found
        left = [one for one in wanted if one[0].id in gone]
        if not left:
            return
        again = reopen(client, [opened for opened, _ in left])
        wanted = [(opened, keys) for opened, (_, keys) in zip(again, left, strict=True)]
    raise replaced_again_and_again(_WHAT)


def _remember(
    found: PartitionHits,
    pieces: Sequence[_SegmentPart],
    keys: Sequence[bytes],
    kind: str,
    cache: BlockCache,
) -> None:
    """Merges the changes of the buckets that were read, for later look-ups."""
    filled = [piece for piece in pieces if piece.segment.entry.blocks]
    if kind in ORDERED_KINDS or not filled:
        return
    for piece in filled:
        _join_parts(piece)
    chain = cache.chain(found.opened)
    if chain is None:
        last = max(piece.segment.entry.buckets for piece in filled) - 1
        chain = Chain(found.opened, last, found.families, cache.resets)
    apart = [piece for piece in filled if piece.apart]
    for bucket in {hash_ & chain.last for hash_ in bucketing_hashes(keys, kind=kind)}:
        if bucket not in chain.layers and not any(_is_apart(piece, bucket) for piece in apart):
            layers = [_layer(chain, at, piece, bucket, cache) for at, piece in enumerate(filled)]
            cache.add_layers(chain, bucket, [one for one in layers if any(one)])


def _is_apart(piece: _SegmentPart, bucket: int) -> bool:
    """Returns whether rows of a bucket are incomplete here, or not counted by the cache."""
    field = _field_of(piece, bucket)
    return not piece.apart.isdisjoint(_parts(piece).get(field, [field]))


def _layer(
    chain: Chain, at: int, piece: _SegmentPart, bucket: int, cache: BlockCache
) -> BucketLayer:
    head, field = _head(piece), _field_of(piece, bucket)
    rows = piece.rows.get(field, {})
    if head.parts.get(field, 1) > 1:
        known = chain.joined.get((at, field))
        if known is None:
            cache.add_joined(chain, (at, field), rows)
        else:
            rows = known
    return rows, head.tombstones


def _field_of(piece: _SegmentPart, bucket: int) -> int:
    """Returns the field of a segment that has the keys of a bucket of the chain."""
    return bucket & (piece.segment.entry.buckets - 1)


def _head(piece: _SegmentPart) -> Header:
    assert piece.head is not None
    return piece.head


def _begun(
    opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache, keep: bool
) -> list[_SegmentPart]:
    """Plans the first fields of each segment to read: headers, and the keys' buckets."""
    hashed = kind not in ORDERED_KINDS
    hashes = bucketing_hashes(keys, kind=kind) if hashed else []
    # Many segments have the same number of buckets.
    by_last: dict[int, tuple[list[int], dict[_BlockField, list[bytes]]]] = {}
    found = []
    for segment in opened.segments:
        where = where_of(opened.id, segment)
        head = head_of(segment, where, cache)
        wanted: list[_BlockField] = [FIELD] if head is None else []
        piece = _SegmentPart(opened, segment, where, head, (), {}, {}, wanted, set(), keep)
        found.append(piece)
        if not segment.entry.blocks or not hashed:
            continue
        last = segment.entry.buckets - 1
        if last not in by_last:
            buckets = [hash_ & last for hash_ in hashes]
            by_last[last] = buckets, _by_field(buckets, keys)
        piece.fields, piece.keys = by_last[last]
        _want(piece, piece.keys, cache)
    return found


def _by_field(
    fields: Sequence[_BlockField | None], keys: Sequence[bytes]
) -> dict[_BlockField, list[bytes]]:
    found: dict[_BlockField, list[bytes]] = {}
    for field, key in zip(fields, keys, strict=True):
        if field is not None:
            found.setdefault(field, []).append(key)
    return found


def _want(piece: _SegmentPart, fields: Iterable[_BlockField], cache: BlockCache) -> None:
    """Adds the cached fields to the piece; plans to read the others."""
    for field in fields:
        place = piece.place(field)
        rows = cache.rows(place)
        if rows is None:
            known = cache.payload(place)
            if known is None:
                piece.wanted.append(field)
            elif known[1] and piece.keep:
                _add_table(piece, field, known[0], cache)
            else:
                _add_some(piece, field, known[0])
        elif rows:
            piece.rows[field] = rows


def _add_table(piece: _SegmentPart, field: _BlockField, payload: bytes, cache: BlockCache) -> None:
    rows = table_of(piece.segment, str(field), payload)
    piece.rows[field] = rows
    if not cache.add_rows(piece.place(field), rows, len(payload)):
        piece.apart.add(field)


def _add_some(piece: _SegmentPart, field: _BlockField, payload: bytes) -> None:
    wanted = piece.keys[_first(field)]
    piece.rows[field] = some_of(piece.segment, str(field), payload, wanted)
    piece.apart.add(field)


def _plan_rest(
    piece: _SegmentPart, asked: Sequence[AskedPartition], kind: str, cache: BlockCache
) -> None:
    """Plans the fields that only a header names: parts of buckets, blocks of ordered families."""
    head = piece.head
    assert head is not None
    if kind in ORDERED_KINDS:
        keys = next(keys for opened, keys in asked if opened.id == piece.opened.id)
        piece.fields = [block_with(head, key) for key in keys]
        piece.keys = _by_field(piece.fields, keys)
        _want(piece, piece.keys, cache)
        return
    if head.parts:
        _want(piece, [name for of_one in _parts(piece).values() for name in of_one[1:]], cache)


def _parts(piece: _SegmentPart) -> dict[int, list[_BlockField]]:
    """Returns all fields of those buckets that have parts."""
    parts = piece.head.parts if piece.head is not None else {}
    if not parts:
        return {}
    return {
        field: [field, *part_fields(field, parts[field])[1:]]
        for field in set(piece.fields)
        if isinstance(field, int) and parts.get(field, 1) > 1
    }


def _join_parts(piece: _SegmentPart) -> None:
    """Merges the rows of a bucket's parts into the first one; later parts override earlier ones."""
    tables = piece.rows
    for bucket, fields in _parts(piece).items():
        if bucket not in tables:
            raise FormatError(f"reading {piece.segment.ident}", found="a bucket has no part 0")
        whole: dict[bytes, Value] = {}
        for field in fields:
            whole |= tables.get(field, {})
        tables[bucket] = whole


def _read(client: Client, pieces: Sequence[_SegmentPart], cache: BlockCache) -> set[PartitionId]:
    """Reads the planned fields; returns the partitions that have an incomplete segment."""
    reading = [piece for piece in pieces if piece.wanted]
    commands: list[Command] = []
    for piece in reading:
        key = piece.opened.key(piece.segment)
        commands += [("HMGET", key, *map(str, piece.wanted)), ("HLEN", key)]
    replies = client.call(_WHAT, commands) if commands else []
    gone: set[PartitionId] = set()
    # A smaller count means that the segment expires or is gone: absent fields prove nothing.
    for piece, values, count in zip(reading, replies[::2], replies[1::2], strict=True):
        if count != piece.segment.entry.blocks:
            gone.add(piece.opened.id)
            continue
        fields, piece.wanted = piece.wanted, []
        blocks = client.opened(piece.opened.key(piece.segment), list(map(str, fields)), values)
        for field, raw in zip(fields, blocks, strict=True):
            _take(piece, field, raw, cache)
    return gone


def _take(piece: _SegmentPart, field: _BlockField, raw: bytes | None, cache: BlockCache) -> None:
    if field == FIELD:
        piece.head = read_header(piece.segment, raw)
        cache.add_head(piece.place(field), piece.head)
    elif raw is not None:
        payload = read_payload(piece.segment, str(field), raw)
        _add_some(piece, field, payload)
        if piece.keep:
            cache.add_payload(piece.place(field), payload)
    elif not isinstance(field, int):
        raise FormatError(
            f"reading {piece.segment.ident}", found="a part of a bucket, or a block, is missing"
        )
    elif piece.keep:
        # A bucket without rows has no field.
        cache.add_rows(piece.place(field), {}, 0)


def _first(field: _BlockField) -> _BlockField:
    """Returns the first field of a bucket for a further part; any other field as it is."""
    if isinstance(field, str) and "." in field:
        return int(field.partition(".")[0])
    return field


def _evaluate(
    opened: Opened, pieces: Sequence[_SegmentPart], keys: Sequence[bytes]
) -> PartitionHits:
    families: tuple[Family, ...] | None = None
    values: dict[bytes, bytes] = {}
    tails: dict[bytes, bytes] = {}
    left = dict.fromkeys(keys)
    for piece in pieces:
        head = piece.head
        assert head is not None
        if families is None:
            families = head.families
        if not left:
            if families is not None:
                break
            continue
        for key, value in _said(piece, keys, left).items():
            if isinstance(value, Appended):
                tails[key] = value.data + tails.get(key, b"")
                continue
            del left[key]
            if value is not None:
                values[key] = value
        for tombstone in head.tombstones:
            for key in [key for key in left if tombstone.family == family_of(key)]:
                if tombstone.covers(key[FAMILY_BYTES:]):
                    del left[key]
    if families is None and opened.segments:
        raise FormatError(_WHAT, found="no segment has a family table", where=str(opened.id))
    for key, tail in tails.items():
        values[key] = values.get(key, b"") + tail
    return PartitionHits(opened, values, families or ())


def _said(
    piece: _SegmentPart, keys: Sequence[bytes], left: Mapping[bytes, None]
) -> dict[bytes, Value]:
    """Returns the changes of a segment to those keys that are still left."""
    tables = piece.rows
    _join_parts(piece)
    different = set(piece.fields)
    if len(different) <= _FEW:
        # Needs no step of Python for each key; a key is in no other bucket than its own.
        found = [rows for field in different if (rows := tables.get(field))]
        return {key: rows[key] for rows in found for key in rows.keys() & left.keys()}
    nothing: Mapping[bytes, Value] = {}
    return {
        key: rows[key]
        for key, field in zip(keys, piece.fields, strict=True)
        if key in (rows := tables.get(field, nothing)) and key in left
    }
