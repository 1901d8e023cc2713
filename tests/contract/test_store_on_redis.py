"""Guarantees of the Python store on a server beyond the contract: round trips and expiries."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from redis_state import config, keys
from redis_state.codec import RAW
from tests.contract.store_support import NewProvider, new_providers
from tests.support.redis_server import RedisServer


@pytest.fixture
def new_provider(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as new:
        yield new


def test_cold_process_reads_blocks_on_demand(new_provider: NewProvider) -> None:
    provider = new_provider(codec=RAW)
    rows = {b"%06d" % number: random.Random(number).randbytes(64) for number in range(40_000)}
    store = provider.get_store(0)
    for key, value in rows.items():
        store.put(key, value)
    store.commit()
    cold = new_provider(codec=RAW).get_read_store(1)
    before = cold.metrics
    assert cold.get(b"000077") == rows[b"000077"]
    one = cold.metrics
    assert one.memory_bytes < before.memory_bytes + 64 * 1024
    assert one.custom["round_trips"] == before.custom["round_trips"] + 1
    keys = list(rows)
    random.Random(1).shuffle(keys)
    assert all(cold.get(key) == rows[key] for key in keys)
    assert cold.metrics.custom["round_trips"] < before.custom["round_trips"] + 80
    assert cold.get(b"missing") is None


def test_many_keys_are_read_in_one_round_trip(new_provider: NewProvider) -> None:
    provider = new_provider(codec=RAW)
    rows = {b"%06d" % number: random.Random(number).randbytes(64) for number in range(40_000)}
    store = provider.get_store(0)
    store.put_many(rows)
    store.commit()
    cold = new_provider(codec=RAW).get_read_store(1)
    before = cold.metrics
    near = [b"%06d" % number for number in range(777, 1_777)]
    assert cold.get_many(near) == [rows[key] for key in near]
    some = cold.metrics
    assert some.custom["round_trips"] == before.custom["round_trips"] + 1
    assert some.memory_bytes < before.memory_bytes + 1024 * 1024
    keys = [*rows, b"missing"]
    random.Random(1).shuffle(keys)
    assert cold.get_many(keys) == [rows.get(key) for key in keys]
    assert cold.metrics.custom["round_trips"] == some.custom["round_trips"] + 1


def test_version_that_changes_every_key_is_a_snapshot(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    provider = new_provider(config=config.parse({"url": shared_redis_server.url}))
    keys_of = [*(f"key {number}" for number in range(1_000)), "gone"]
    for version in range(3):
        store = provider.get_store(version)
        store.put_many((key, version) for key in keys_of)
        if version == 2:
            store.remove("gone")
        store.commit()
    whole = dict.fromkeys(keys_of[:-1], 2)
    assert dict(store.iterator()) == whole
    assert store.metrics.num_keys == 1_000
    with shared_redis_server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(provider.id.store_id.checkpoint))
        meta = keys.meta(provider.id.store_id.partition(gen.decode()))
        flags = {
            field[:4]: entry.split(b" ")[-1]
            for field, entry in raw.hgetall(meta).items()
            if field.startswith(b"d:")
        }
        assert flags == {b"d:1:": b"h", b"d:2:": b"ch", b"d:3:": b"ch"}
        of_it = [key for key in raw.scan_iter(count=1000) if gen in key and b":d:" in key]
        raw.delete(*(key for key in of_it if b":d:3:" not in key))
    assert dict(new_provider().get_read_store(3).iterator()) == whole
    provider.get_store(3).commit()
    assert dict(new_provider().get_read_store(4).iterator()) == whole


def test_many_small_versions_are_loaded_in_few_round_trips(new_provider: NewProvider) -> None:
    provider = new_provider()
    for version in range(30):
        store = provider.get_store(version)
        store.put(version, version)
        store.commit()
    cold = new_provider().get_read_store(30)
    assert cold.metrics.custom["round_trips"] <= 6
    assert dict(cold.iterator()) == {number: number for number in range(30)}


def test_ephemeral_keys_expire_unless_maintained(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    options = config.parse({"url": shared_redis_server.url, "ephemeral": True})
    provider = new_provider(config=options)
    store = provider.get_store(0)
    store.put("a", 1)
    store.commit()
    with shared_redis_server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(provider.id.store_id.checkpoint)).decode()
        of_it = [key for key in raw.scan_iter(count=1000) if gen.encode() in key]
        assert len(of_it) == 3
        for key in of_it:
            assert raw.pttl(key) > 0
            raw.pexpire(key, 1000)
        provider.do_maintenance()
        assert all(raw.pttl(key) > 60_000 for key in of_it)


def test_permanent_run_keeps_the_state_of_an_ephemeral_one(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    first = new_provider(config=config.parse({"url": shared_redis_server.url, "ephemeral": True}))
    for version in range(2):
        store = first.get_store(version)
        store.put("a", version)
        store.commit()
    second = new_provider(config=config.parse({"url": shared_redis_server.url}), run="run-2")
    assert second.get_store(2).get("a") == 1
    with shared_redis_server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(first.id.store_id.checkpoint)).decode()
        of_it = [key for key in raw.scan_iter(count=1000) if gen.encode() in key]
        # Who only reads keeps nothing.
        assert [key for key in of_it if raw.pttl(key) < 0] == []
        store = second.get_store(2)
        store.put("b", 1)
        assert [key for key in of_it if raw.pttl(key) >= 0] == []


def test_reader_continues_when_maintenance_replaces_its_segments(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    options = config.parse({"url": shared_redis_server.url, "versionsToRetain": 2})
    writer = new_provider(codec=RAW, config=options)
    rows = {b"%06d" % number: random.Random(number).randbytes(64) for number in range(20_000)}
    store = writer.get_store(0)
    for key, value in rows.items():
        store.put(key, value)
    store.commit()
    for version in range(1, 5):
        store = writer.get_store(version)
        rows[b"%06d" % version] = b"changed"
        store.put(b"%06d" % version, b"changed")
        store.remove(b"%06d" % (100 + version))
        del rows[b"%06d" % (100 + version)]
        store.commit()
    readers = [new_provider(codec=RAW).get_read_store(5) for _ in range(3)]
    assert [reader.get(b"000001") for reader in readers] == [b"changed"] * 3
    scan = readers[0].iterator()
    first = [next(scan) for _ in range(10)]
    for version in range(5, 8):
        writer.get_store(version).commit()
    writer.get_store(8)
    partition = writer._partition
    assert partition.maintenance.snapshot(new_provider(codec=RAW)._partition.read(5))
    writer.do_maintenance()
    with shared_redis_server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(writer.id.store_id.checkpoint))
        old = [key for key in raw.scan_iter(count=1000) if gen in key and b":d:1:" in key]
        assert [raw.pttl(key) > 0 for key in old] == [True]
        raw.delete(*old)
    assert [*first, *scan] == sorted(rows.items())
    assert readers[1].get(b"019999") == rows[b"019999"]
    assert readers[1].get(b"000101") is None
    assert dict(readers[2].get_range(b"010000", b"011000")) == {
        key: value for key, value in rows.items() if b"010000" <= key < b"011000"
    }
