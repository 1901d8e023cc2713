"""Answers look-ups from cached blocks, without a round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from redis_state.format.bucketing import bucketing_hashes
from redis_state.format.entry import Segment
from redis_state.format.header import ORDERED_KINDS, Family, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import some_of, table_of
from redis_state.protocol.opening import Opened
from redis_state.reader.block_cache import BlockCache, BlockId, BucketLayer, Chain, where_of
from redis_state.reader.lookup.key_fields import block_with
from redis_state.reader.lookup.segment_part import SegmentPart, cached_head

_NOTHING = Appended(b"")
"""Stands for a segment without a row of the key."""

_NO_ROWS: Mapping[bytes, Value] = {}
_ORDERED_KEYS_MAX = 8

CachedRows = tuple[tuple[Family, ...], dict[bytes, bytes]]
"""The family table of a version, and the values of those keys that exist."""


def known_rows(
    opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache
) -> CachedRows | None:
    """Looks keys of one family up in the cache; ``None`` if it lacks a needed block.

    Of a hashed family the cache has layers merged from all segments of the version. Of an ordered
    family it has single blocks, in which only a few keys are looked up.
    """
    try:
        if kind not in ORDERED_KINDS:
            return _hashed(opened, keys, kind, cache)
        return _ordered(opened, keys, cache) if len(keys) <= _ORDERED_KEYS_MAX else None
    except KeyError:  # a bucket or block that is not cached
        return None


def remember(
    opened: Opened,
    families: tuple[Family, ...],
    parts: Sequence[SegmentPart],
    keys: Sequence[bytes],
    kind: str,
    cache: BlockCache,
) -> None:
    """Merges the changes of the keys' buckets, which `parts` has, for later look-ups."""
    filled = [part for part in parts if part.segment.entry.blocks]
    if kind in ORDERED_KINDS or not filled:
        return
    chain = cache.chain(opened)
    if chain is None:
        last = max(part.segment.entry.buckets for part in filled) - 1
        chain = Chain(opened, last, families, cache.resets)
    for bucket in {hash_ & chain.last for hash_ in bucketing_hashes(keys, kind=kind)}:
        if bucket not in chain.layers and all(
            part.is_cached(_field_of(part, bucket)) for part in filled
        ):
            layers = [_layer(chain, at, part, bucket, cache) for at, part in enumerate(filled)]
            cache.add_layers(chain, bucket, [one for one in layers if any(one)])


def _layer(chain: Chain, at: int, part: SegmentPart, bucket: int, cache: BlockCache) -> BucketLayer:
    head, field = part.known_head, _field_of(part, bucket)
    if field not in head.parts:
        return part.rows(field), head.tombstones
    joined = chain.joined.get((at, field))
    if joined is None:
        joined = part.rows(field)
        cache.add_joined(chain, (at, field), joined)
    return joined, head.tombstones


def _field_of(part: SegmentPart, bucket: int) -> int:
    """Returns the field of a segment that has the keys of a bucket of the chain."""
    return bucket & (part.segment.entry.buckets - 1)


def _hashed(
    opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache
) -> CachedRows | None:
    chain = cache.chain(opened)
    if chain is None:
        return None
    of_bucket, last = chain.layers, chain.last
    layers = [of_bucket[hash_ & last] for hash_ in bucketing_hashes(keys, kind=kind)]
    return chain.families, _values(zip(keys, layers, strict=True))


def _ordered(opened: Opened, keys: Sequence[bytes], cache: BlockCache) -> CachedRows | None:
    segments = []
    for segment in opened.segments:
        where = where_of(opened.id, segment)
        head = cached_head(segment, where, cache)
        if head is None:
            return None
        segments.append((segment, where, head))
    families = next((head.families for _, _, head in segments if head.families is not None), None)
    if families is None:
        return None

    def layers(key: bytes) -> Iterator[BucketLayer]:
        for segment, where, head in segments:
            name = block_with(head, key)
            rows = _NO_ROWS if name is None else _rows(segment, (*where, name), key, cache)
            yield rows, head.tombstones

    return families, _values((key, layers(key)) for key in keys)


def _rows(segment: Segment, place: BlockId, key: bytes, cache: BlockCache) -> Mapping[bytes, Value]:
    rows = cache.rows(place)
    if rows is not None:
        return rows
    known = cache.payload(place)
    if known is None:
        raise KeyError(place)
    payload, is_worth_a_table = known
    if not is_worth_a_table:
        return some_of(segment, place[-1], payload, [key])
    rows = table_of(segment, place[-1], payload)
    cache.add_rows(place, rows, len(payload))
    return rows


def _values(asked: Iterable[tuple[bytes, Iterable[BucketLayer]]]) -> dict[bytes, bytes]:
    """Returns the values of keys, each given with its layers, the newest first."""
    values: dict[bytes, bytes] = {}
    for key, layers in asked:
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
    return values


def _covered(key: bytes, tombstones: Sequence[Tombstone]) -> bool:
    family = family_of(key)
    return any(one.family == family and one.covers(key[FAMILY_BYTES:]) for one in tombstones)
