"""What blocks of the cache say of keys, without a question to Redis."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from redis_state.format.bucketing import bucketing_hashes
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, ORDERED_KINDS, Family, Header, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import some_of, table_of
from redis_state.protocol.opening import Opened
from redis_state.reader.block_cache import BlockCache, BlockId, BucketLayer, Where, where_of

_NOTHING = Appended(b"")
"""What a segment says of a key of which it has no row."""

_NO_ROWS: Mapping[bytes, Value] = {}
_NO_HEADER = Header()
_ORDERED_KEYS_MAX = 8

CachedRows = tuple[tuple[Family, ...], dict[bytes, bytes]]
"""The family table of a version, and the values of those keys that are there."""


def known_rows(
    opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache
) -> CachedRows | None:
    """What the cache says of keys of one family; ``None`` if it does not have all of it.

    Of a hashed family it knows what was put together of all segments of the version. Of an ordered
    one it knows the single blocks, and a few keys are looked up in them.
    """
    try:
        if kind not in ORDERED_KINDS:
            return _hashed(opened, keys, kind, cache)
        return _ordered(opened, keys, cache) if len(keys) <= _ORDERED_KEYS_MAX else None
    except KeyError:
        return None


def head_of(segment: Segment, where: Where, cache: BlockCache) -> Header | None:
    """The header of a segment, an empty one if it has none; ``None`` if it is to be read."""
    if not segment.entry.blocks or not segment.entry.header:
        return _NO_HEADER
    return cache.head((*where, FIELD))


def block_with(head: Header, key: bytes) -> str | None:
    """The field of the ordered block in which a key can be, if there is one."""
    family = family_of(key)
    number = bisect_right(head.ordered.get(family, ()), key) - 1
    return None if number < 0 else f"{family}/{number}"


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
        head = head_of(segment, where, cache)
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
    """Of keys, each with the layers that may have it, the newest first."""
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
