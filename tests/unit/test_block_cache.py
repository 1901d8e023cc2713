"""The bound of the blocks that a query keeps: everything that is kept counts."""

from __future__ import annotations

import tracemalloc

from redis_state.format.header import Header, Tombstone
from redis_state.ids import EMPTY, PartitionId, StoreId
from redis_state.protocol.opening import Opened
from redis_state.reader.block_cache import BYTES_MAX, BlockCache, BlockId, Chain

ENTRIES = 200_000


def place(number: int) -> BlockId:
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


def test_header_counts_with_its_decoded_size() -> None:
    cache = BlockCache()
    parts = dict.fromkeys(range(5_000), 2)
    for number in range(100):
        cache.add_head(place(number), Header(parts=parts))
    assert cache.head(place(0)) is None
    assert cache.head(place(99)) == Header(parts=parts)
    wide = Header(tombstones=(Tombstone(0, bytes(1 << 20)),))
    cache.add_head(place(100), wide)
    assert cache.head(place(100)) is None, "too large to be kept"


def test_chain_ends_when_the_cache_is_reset() -> None:
    cache = BlockCache()
    opened = Opened(PartitionId(StoreId("0" * 32, 0), 0), EMPTY, False, 0, 0, EMPTY, ())
    chain = Chain(opened, 7, (), cache.resets)
    rows = {b"key": bytes(1 << 19)}
    cache.add_rows(place(0), rows, 1 << 19)
    cache.add_layers(chain, 0, [(rows, ())])
    assert cache.chain(opened) is chain
    for number in range(1, 2 * BYTES_MAX >> 19):
        cache.add_rows(place(number), {b"key": bytes(1 << 19)}, 1 << 19)
    # Whoever was putting it together meanwhile goes on, with rows that are not counted any more.
    cache.add_joined(chain, (0, 1), rows)
    cache.add_layers(chain, 1, [(rows, ())])
    assert cache.chain(opened) is None


def test_payloads_count_until_a_table_replaces_them() -> None:
    cache = BlockCache()
    cache.add_payload(place(0), b"payload")
    assert [cache.payload(place(0)) for _ in range(2)] == [(b"payload", False), (b"payload", True)]
    cache.add_rows(place(0), {b"key": b"value"}, 8)
    assert cache.payload(place(0)) is None
    assert cache.rows(place(0)) == {b"key": b"value"}
    for number in range(1, BYTES_MAX >> 16):
        # The bytes of the payload are counted no more when those of the table are.
        cache.add_payload(place(number), bytes(1 << 15))
        cache.add_rows(place(number), {}, 1 << 15)
    assert (cache.resets, cache.payload(place(1))) == (0, None)
    cache.add_payload(place(0), bytes(1 << 20))
    assert cache.payload(place(0)) is None, "too large to be kept"
    for number in range(2 * BYTES_MAX >> 19):
        cache.add_payload(place(number), bytes(1 << 19))
    assert cache.resets >= 1
    assert cache.payload(place(0)) is None


def test_payload_is_kept_if_its_table_is_too_large() -> None:
    cache = BlockCache()
    cache.add_payload(place(0), b"payload")
    assert cache.payload(place(0)) == (b"payload", False)
    assert cache.payload(place(0)) == (b"payload", True)
    assert not cache.add_rows(place(0), {b"key": bytes(1 << 20)}, 1 << 20)
    assert cache.payload(place(0)) == (b"payload", False), "no table is tried again"
    assert cache.rows(place(0)) is None
