"""Threads that share a provider, loaded stores or a heartbeat, in orders that seeds decide."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random
from unittest import mock

import pytest

from redis_state import config
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.coordinator import heartbeat as heartbeats
from redis_state.coordinator.heartbeat import Heartbeat
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId, StoreId
from redis_state.protocol.instances import Instance, find
from redis_state.store import partition_state
from redis_state.store import stores as loaded_stores
from redis_state.store.local import base as local_base
from redis_state.store.local import loading, version_cache
from redis_state.store.local import version as local_version
from redis_state.store.partition_store import PartitionReadStore
from redis_state.store.provider import StateStoreProvider
from redis_state.store.stores import LoadedStores
from tests.support.interleaving import Interleaving
from tests.support.redis_server import RedisServer

QUICK, LONG, GROUP = 30, 1_030, 200
MODULES = (local_base, local_version, loading, partition_state, version_cache)

seeds = pytest.mark.parametrize(
    "seeds",
    [
        range(QUICK),
        *(
            pytest.param(range(first, first + GROUP), marks=pytest.mark.long)
            for first in range(QUICK, LONG, GROUP)
        ),
    ],
    ids=str,
)


@pytest.fixture
def client(shared_redis_server: RedisServer) -> Iterator[Client]:
    client = Client(config.parse({"url": shared_redis_server.url}))
    yield client
    client.close()


def _new_provider(client: Client, name: str) -> StateStoreProvider:
    id_ = StateStoreProviderId(StateStoreId(name, 0, 0), uuid.uuid4().hex)
    return StateStoreProvider(id_, config=client.url, codec=RAW, client=client)


def _filled(client: Client, random: Random, blocks: int) -> tuple[str, dict[bytes, bytes]]:
    """A store whose version 1 is one segment of as many blocks as it has keys."""
    name = uuid.uuid4().hex
    rows = {b"key %d" % number: random.randbytes(9_000) for number in range(blocks)}
    store = _new_provider(client, name).get_store(0)
    store.put_many(rows)
    assert store.commit() == 1
    return name, rows


@contextmanager
def _lazily() -> Iterator[None]:
    """Small segments are read block by block, as large ones are."""
    with mock.patch.object(loading, "_EAGER_BYTES_MAX", 0):
        yield


@seeds
def test_interleaved_readers_read_and_write_right_rows(client: Client, seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        threads = 2 + seed // 2 % 2
        name, rows = _filled(client, random, blocks=threads)
        turns = Interleaving(seed, MODULES)
        with turns.locks(), _lazily():
            provider = _new_provider(client, name)
            if seed % 4:
                # They share what is read from now on; else each may open by itself.
                provider.get_read_store(1)
            turns.run(*(partial(_read, provider, rows, seed, at) for at in range(threads)))
        # All keys are set, in any order: that of what was read decides how they are written.
        rows = {key: random.randbytes(9_000) for key in random.sample(list(rows), threads)}
        store = provider.get_store(1)
        store.put_many(rows)
        assert store.commit() == 2
        found = dict(_new_provider(client, name).get_read_store(2).iterator())
        assert found == rows, f"seed {seed}"


def _read(provider: StateStoreProvider, rows: dict[bytes, bytes], seed: int, at: int) -> None:
    """Reads this thread's share of the blocks, in order, or anything."""
    store = provider.get_read_store(1)
    keys = list(rows)
    if seed % 2:
        assert store.get_many([keys[at]]) == [rows[keys[at]]]
        return
    random = Random(f"{seed} {at}")
    for _ in range(3):
        some = random.sample(keys, 2)
        if random.random() < 0.6:
            assert store.get(some[0]) == rows[some[0]]
        elif random.random() < 0.7:
            assert store.get_many(some) == [rows[key] for key in some]
        else:
            assert dict(store.iterator()) == rows


def test_key_of_a_block_in_flight_is_found(client: Client) -> None:
    class ReadMeanwhile(dict[bytes, bytes | None]):
        """All blocks are read by somebody else behind each look at those that were."""

        def get(  # type: ignore[override]  # the overload that is called here
            self, key: bytes, default: bytes | None = None
        ) -> bytes | None:
            found = super().get(key, default)
            base.load_all()
            return found

    name, rows = _filled(client, Random(1), blocks=2)
    with _lazily():
        store = _new_provider(client, name).get_read_store(1)
    assert isinstance(store, PartitionReadStore)
    found = store._local.parts[1]
    assert found is not None
    base = found
    base.rows = ReadMeanwhile()
    assert store.get(b"key 1") == rows[b"key 1"]


@seeds
def test_writes_during_maintenance_and_reads_are_kept(client: Client, seeds: range) -> None:
    for seed in seeds:
        name, rows = _filled(client, Random(seed), blocks=2)
        turns = Interleaving(seed, MODULES)
        with turns.locks(), _lazily():
            provider = _new_provider(client, name)
            provider.get_read_store(1)
            turns.run(
                partial(_write, provider, versions=5),
                partial(_maintain, provider),
                partial(_read, provider, rows, 0, seed),
            )
        found = _new_provider(client, name).get_read_store(6)
        written = {b"written": b"5", b"written 5": b"5"}
        assert dict(found.iterator()) == rows | written, f"seed {seed}"


def _write(provider: StateStoreProvider, *, versions: int) -> None:
    for version in range(1, versions + 1):
        store = provider.get_store(version)
        assert store.get(b"written") == (b"%d" % (version - 1) if version > 1 else None)
        store.put(b"written", b"%d" % version)
        store.remove(b"written %d" % (version - 1))
        store.put(b"written %d" % version, b"%d" % version)
        assert store.commit() == version + 1


def _maintain(provider: StateStoreProvider) -> None:
    for _ in range(3):
        provider.do_maintenance()
        provider.forget_older()
        provider.cached_bytes()


@seeds
def test_concurrent_loads_and_unloads_keep_stores_whole(
    shared_redis_server: RedisServer, seeds: range
) -> None:
    for seed in seeds:
        name = uuid.uuid4().hex
        ids = [StateStoreProviderId(StateStoreId(name, 0, at), f"run-{seed}") for at in range(3)]
        turns = Interleaving(seed, (loaded_stores, partition_state, version_cache, heartbeats))
        with turns.locks():
            loaded = LoadedStores(threaded=False, loaded_max=2)
            turns.run(
                partial(_use, loaded, ids[0], shared_redis_server.url),
                partial(_use, loaded, ids[1], shared_redis_server.url),
                partial(_come_and_go, loaded, ids, shared_redis_server.url),
            )
            for id_ in ids[:2]:
                found = loaded.get_read_only(id_, 2, config=shared_redis_server.url)
                assert found.get("count") == 2, f"seed {seed}"
            loaded.stop()
        assert not any(map(loaded.is_loaded, ids))


def _use(loaded: LoadedStores, id_: StateStoreProviderId, url: str) -> None:
    for version in range(2):
        store = loaded.get(id_, version, config=url)
        store.put("count", (store.get("count") or 0) + 1)
        assert store.commit() == version + 1


def _come_and_go(loaded: LoadedStores, ids: list[StateStoreProviderId], url: str) -> None:
    loaded.get_read_only(ids[2], 0, config=url)
    loaded.unload(ids[0])
    loaded.maintenance.run_pass()
    loaded.coordinator(url).heartbeat.tick()
    loaded.stop()


@seeds
def test_heartbeat_keeps_the_latest_report(client: Client, seeds: range) -> None:
    for seed in seeds:
        gen = uuid.uuid4().hex
        ids = [PartitionId(StoreId(gen, 0), number) for number in range(3)]
        turns = Interleaving(seed, (heartbeats,))
        with turns.locks():
            heartbeat = Heartbeat(client, threaded=False)
            talkers = [partial(_talk, heartbeat, id_, seed) for id_ in ids]
            turns.run(*talkers, partial(_beat, heartbeat))
            heartbeat.tick()
            heartbeat.beat()
        stay = {id_ for id_ in ids if (id_.partition + seed) % 2}
        assert set(find(client, ids)) == set(heartbeat.instances) == stay, f"seed {seed}"


def _talk(heartbeat: Heartbeat, id_: PartitionId, seed: int) -> None:
    instance = Instance("host", "executor", f"run-{id_.partition}")
    for _ in range(2):
        heartbeat.report(id_, lambda: id_, instance)
        heartbeat.withdraw(id_)
    if (id_.partition + seed) % 2:
        heartbeat.report(id_, lambda: id_, instance)


def _beat(heartbeat: Heartbeat) -> None:
    for _ in range(4):
        heartbeat.tick()
        heartbeat.beat()


@seeds
def test_free_running_threads_read_and_write_right_rows(client: Client, seeds: range) -> None:
    """As often as the interpreter is able to change threads, with nothing in its way."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for seed in seeds[:: len(seeds) // 8]:
            name, rows = _filled(client, Random(seed), blocks=64)
            with _lazily(), ThreadPoolExecutor(8) as pool:
                provider = _new_provider(client, name)
                provider.get_read_store(1)
                done = [pool.submit(_read, provider, rows, 0, at) for at in range(8)]
                done += [pool.submit(_read, provider, rows, 1, at) for at in range(8)]
                for one in done:
                    one.result()
            store = provider.get_store(1)
            store.put_many(rows)
            assert store.commit() == 2
            assert dict(_new_provider(client, name).get_read_store(2).iterator()) == rows
    finally:
        sys.setswitchinterval(interval)
