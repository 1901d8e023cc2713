"""The bound of the blocks that a query keeps: everything that is kept counts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping

from redis_state.format.entry import Entry, Segment
from redis_state.format.header import Family, Header, Tombstone
from redis_state.format.rows import Value, stored_key
from redis_state.ids import EMPTY, PartitionId, Pin, StoreId
from redis_state.protocol.opening import Opened
from redis_state.reader.block_cache import BYTES_MAX, BlockCache, Field, Where, where_of

ENTRIES = 200_000


def place(number: int) -> tuple[Where, Field]:
    ident = f"d:{number // 200}:{number % 16:032x}"
    return ("0" * 32, 0, "default", number % 200, ident), number % 1024


def rows(cache: BlockCache, number: int) -> Mapping[bytes, Value] | None:
    where, field = place(number)
    return cache.segment(where).rows.get(field)


def payload(cache: BlockCache, number: int) -> tuple[bytes, bool] | None:
    where, field = place(number)
    return cache.segment(where).payload(field)


def head(cache: BlockCache, number: int) -> Header | None:
    return cache.segment(place(number)[0]).head


def test_empty_buckets_count() -> None:
    cache = BlockCache()
    tracemalloc.start()
    try:
        for number in range(ENTRIES):
            cache.add_rows(*place(number), {}, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows(cache, 0) is None
    assert rows(cache, ENTRIES - 1) == {}
    assert peak < 2 * BYTES_MAX


def test_header_counts_with_its_decoded_size() -> None:
    cache = BlockCache()
    parts = dict.fromkeys(range(5_000), 2)
    for number in range(100):
        cache.add_head(place(number)[0], Header(parts=parts))
    assert head(cache, 0) is None
    assert head(cache, 99) == Header(parts=parts)
    wide = Header(tombstones=(Tombstone(0, bytes(1 << 20)),))
    cache.add_head(place(100)[0], wide)
    assert head(cache, 100) is None, "too large to be kept"


def test_version_ends_when_the_cache_is_reset() -> None:
    cache = BlockCache()
    store = StoreId("0" * 32, 0)
    entry = Entry("0" * 32, 1, 1, blocks=2, bytes=9, buckets=1, checksum=0, header=True)
    segment = Segment(True, 1, "0" * 32, entry)
    pin = Pin(1, "0" * 32)
    opened = Opened(PartitionId(store, 0), pin, False, 1, 0, EMPTY, (segment,))
    family = Family(0, "default", "none", (), "", "")
    where = where_of(opened.id, segment)
    cache.add_head(where, Header(families=(family,)))
    key = stored_key(0, b"key")
    assert cache.find(opened, [key], "none") is None, "its bucket is not cached"
    cache.add_rows(where, 0, {key: bytes(1 << 19)}, 1 << 19)
    assert cache.find(opened, [key], "none") == ((family,), {key: bytes(1 << 19)})
    for number in range(1, 2 * BYTES_MAX >> 19):
        cache.add_rows(*place(number), {b"key": bytes(1 << 19)}, 1 << 19)
    assert cache.find(opened, [key], "none") is None


def test_tables_of_a_version_count_until_a_newer_version_replaces_it() -> None:
    cache = BlockCache()
    id_, family = PartitionId(StoreId("0" * 32, 0), 0), Family(0, "default", "none", (), "", "")
    segments = []
    for number in (2, 1):
        entry = Entry("0" * 32, 1, 1, blocks=3, bytes=9, buckets=1, checksum=0, header=True)
        segments.append(Segment(False, number, f"{number:032x}", entry))
        where = where_of(id_, segments[-1])
        cache.add_head(where, Header(families=(family,), parts={0: 2}))
        for part in (0, "0.1"):
            cache.add_rows(where, part, {stored_key(0, b"%d" % at): b"" for at in range(1_000)}, 9)
    versions = [
        Opened(id_, Pin(number, "0" * 32), False, 1, 0, EMPTY, tuple(segments[-number:]))
        for number in (1, 2)
    ]
    for number in range(BYTES_MAX // 100_000):
        assert cache.find(versions[number % 2], [stored_key(0, b"1")], "none") is not None
    assert cache.resets == 0


def test_payloads_count_until_a_table_replaces_them() -> None:
    cache = BlockCache()
    cache.add_payload(*place(0), b"payload")
    assert [payload(cache, 0) for _ in range(2)] == [(b"payload", False), (b"payload", True)]
    cache.add_rows(*place(0), {b"key": b"value"}, 8)
    assert payload(cache, 0) is None
    assert rows(cache, 0) == {b"key": b"value"}
    for number in range(1, BYTES_MAX >> 16):
        # The bytes of the payload are counted no more when those of the table are.
        cache.add_payload(*place(number), bytes(1 << 15))
        cache.add_rows(*place(number), {}, 1 << 15)
    assert (cache.resets, payload(cache, 1)) == (0, None)
    cache.add_payload(*place(0), bytes(1 << 20))
    assert payload(cache, 0) is None, "too large to be kept"
    for number in range(2 * BYTES_MAX >> 19):
        cache.add_payload(*place(number), bytes(1 << 19))
    assert cache.resets >= 1
    assert payload(cache, 0) is None


def test_payload_is_kept_if_its_table_is_too_large() -> None:
    cache = BlockCache()
    cache.add_payload(*place(0), b"payload")
    assert payload(cache, 0) == (b"payload", False)
    assert payload(cache, 0) == (b"payload", True)
    cache.add_rows(*place(0), {b"key": bytes(1 << 20)}, 1 << 20)
    assert rows(cache, 0) is None
    assert payload(cache, 0) == (b"payload", False), "no table is tried again"
    assert rows(cache, 0) is None
