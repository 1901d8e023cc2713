"""The bound of the blocks that a query keeps: everything that is kept counts."""

from __future__ import annotations

import tracemalloc

from redis_state.format.header import Header, Tombstone
from redis_state.reader.block_cache import BYTES_MAX, BlockCache, Place

ENTRIES = 200_000


def place(number: int) -> Place:
    ident, field = f"d:{number // 200}:{number % 16:032x}", str(number % 1024)
    return "0" * 32, 0, "default", number % 200, ident, field


def test_empty_buckets_count() -> None:
    cache = BlockCache()
    tracemalloc.start()
    try:
        for number in range(ENTRIES):
            cache.add_rows(place(number), {}, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.rows(place(0)) is None
    assert cache.rows(place(ENTRIES - 1)) == {}
    assert peak < 2 * BYTES_MAX


def test_a_header_counts_by_what_it_is_decoded_to() -> None:
    cache = BlockCache()
    parts = dict.fromkeys(range(5_000), 2)
    for number in range(100):
        cache.add_head(place(number), Header(parts=parts))
    assert cache.head(place(0)) is None
    assert cache.head(place(99)) == Header(parts=parts)
    wide = Header(tombstones=(Tombstone(0, bytes(1 << 20)),))
    cache.add_head(place(100), wide)
    assert cache.head(place(100)) is None, "too large to be kept"
