"""A state several times as large as a worker's memory: what it says, and how much of it is held."""

from __future__ import annotations

import os
import random
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from redis_state import config as options
from redis_state.batches.streams import Inputs
from redis_state.codec import RAW
from redis_state.config import Config
from redis_state.format.ordered import family_range
from redis_state.ids import DEFAULT_STORE, PartitionId, StateStoreId, StateStoreProviderId, StoreId
from redis_state.protocol import RegisteredRun, register_run
from redis_state.protocol.runs import checkpoint_gen
from redis_state.spark.processor.engine import Engine
from redis_state.spark.processor.handle import ProcessorQueryInfo
from redis_state.spark.worker import Warm, Worker
from redis_state.store.family_store import FamilyStore
from redis_state.store.local.base import Base
from redis_state.store.provider import StateStoreProvider
from tests.contract.processors import INPUT
from tests.contract.store_support import new_providers
from tests.support.redis_server import RedisServer

ROOM = 1 << 20
ROWS = 12_000
SLACK = ROOM // 16  # blocks are not all as large as those that were seen before
VALUE_BYTES = 300  # of random bytes, so about 5 times the room
SCHEMA = '{"type":"test"}'


class Partitions:
    """Partitions of one store, served by one worker process batch by batch."""

    def __init__(self, worker: Worker, config: Config) -> None:
        self.worker, self.config = worker, config
        self.name = f"test {uuid.uuid4().hex}"
        client = worker.client(config)
        gen = checkpoint_gen(client, self.name, tenant="", create=True)
        assert gen is not None
        self.gen = gen
        self.run: RegisteredRun = register_run(
            client, gen, uuid.uuid4().hex, by_driver=True, tenant=""
        )
        self.versions: dict[int, int] = {}

    def place(self, partition: int) -> tuple[Config, PartitionId]:
        return self.config, PartitionId(StoreId(self.gen, 0, DEFAULT_STORE, ""), partition)

    def open(self, partition: int) -> tuple[StateStoreProvider, FamilyStore]:
        id_ = StateStoreProviderId(StateStoreId(self.name, 0, partition), self.run.run_id)
        provider = self.worker.serve(self.place(partition), id_, self.run, families=True)
        return provider, provider.get_family_store(self.versions.get(partition, 0))

    def close(self, partition: int, provider: StateStoreProvider, store: FamilyStore) -> None:
        """As a task does it when its rows are through."""
        self.versions[partition] = store.commit()
        del store
        self.worker.maintain(self.config, provider, 1)
        self.worker.keep(self.place(partition), provider, self.run.run_id)
        assert sum(one.size for one in self.worker.warm.values()) <= ROOM

    def check_room(self, provider: StateStoreProvider) -> None:
        warm = sum(one.provider.cached_bytes() for one in self.worker.warm.values())
        assert warm + provider.cached_bytes() <= ROOM + SLACK


@pytest.fixture
def partitions(shared_redis_server: RedisServer) -> Iterator[Partitions]:
    worker = Worker()
    memory = f"{ROOM * (os.cpu_count() or 1)}b"
    config = options.parse({"url": shared_redis_server.url, "localMemory": memory})
    yield Partitions(worker, config)
    worker.close()


class Rows:
    """Expected content of a partition: single values, and lists as their joined elements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.values: dict[bytes, bytes] = {}
        self.lists: dict[bytes, bytes] = {}

    def declare(self, store: FamilyStore) -> tuple[bytes, bytes]:
        return (
            store.declare("values", key_schema=SCHEMA, value_schema=SCHEMA),
            store.declare("lists", key_schema=SCHEMA, value_schema=SCHEMA, multi_value=True),
        )

    def some(self, count: int) -> list[bytes]:
        return [b"%06d" % self.random.randrange(ROWS * 2) for _ in range(count)]

    def change(self, store: FamilyStore, prefix: bytes, keys: list[bytes]) -> None:
        for key in keys:
            if self.random.random() < 0.2:
                store.remove(prefix + key)
                self.values.pop(key, None)
            else:
                self.values[key] = self.random.randbytes(VALUE_BYTES)
                store.put(prefix + key, self.values[key])

    def grow(self, store: FamilyStore, prefix: bytes, keys: list[bytes]) -> None:
        for key in keys:
            store.append(prefix + key, b"element")
            self.lists[key] = store.get(prefix + key) or b""
            assert self.lists[key].count(b"element") >= 1


def fill(partitions: Partitions, partition: int, rows: Rows) -> None:
    provider, store = partitions.open(partition)
    values, lists = rows.declare(store)
    rows.values = {b"%06d" % (2 * n): rows.random.randbytes(VALUE_BYTES) for n in range(ROWS)}
    store.put_many({values + key: data for key, data in rows.values.items()})
    rows.grow(store, lists, [b"%06d" % n for n in range(0, 400, 4)])
    partitions.close(partition, provider, store)


def read_all(store: FamilyStore, prefix: bytes) -> dict[bytes, bytes]:
    low, high = family_range(int.from_bytes(prefix, "big"))
    return {key[len(prefix) :]: data for key, data in store.rows(low, high)}


def test_all_reads_and_writes_are_right_within_the_memory_bound(partitions: Partitions) -> None:
    models = [Rows(seed) for seed in range(2)]
    for number, model in enumerate(models):
        fill(partitions, number, model)
    for batch in range(5):
        for number, model in enumerate(models):
            provider, store = partitions.open(number)
            values, lists = model.declare(store)
            for key in sorted(model.some(300)):
                assert store.get(values + key) == model.values.get(key)
                partitions.check_room(provider)
            many = model.some(3000)
            found = store.get_many([values + key for key in many])
            assert found == [model.values.get(key) for key in many]
            partitions.check_room(provider)
            # Reads and changes while a scan goes on, which shows the rows of its beginning.
            expected, shown = sorted(model.values.items()), []
            low, high = family_range(int.from_bytes(values, "big"))
            for at, (key, data) in enumerate(store.rows(low, high)):
                shown.append((key[len(values) :], data))
                if at % 500 == 0:
                    model.change(store, values, model.some(4))
                    partitions.check_room(provider)
            assert shown == expected
            model.change(store, values, model.some(200 if batch != 2 else 2500))
            model.grow(store, lists, model.some(50))
            assert read_all(store, lists) == dict(sorted(model.lists.items()))
            store.remove_many([values + key for key in many[:20]])
            for key in many[:20]:
                model.values.pop(key, None)
            partitions.check_room(provider)
            partitions.close(number, provider, store)
    for number, model in enumerate(models):
        provider, store = partitions.open(number)
        values, lists = model.declare(store)
        assert read_all(store, values) == model.values
        assert read_all(store, lists) == model.lists
        assert store.metrics.num_keys == len(model.values) + len(model.lists)
        partitions.check_room(provider)
        store.abort()


def test_ordered_keys_are_read_in_few_round_trips(partitions: Partitions) -> None:
    rows = Rows(3)
    fill(partitions, 0, rows)
    provider, store = partitions.open(0)
    values, _ = rows.declare(store)
    before = partitions.worker.client(partitions.config).round_trips
    for key in sorted(rows.values):
        assert store.get(values + key) == rows.values[key]
    trips = partitions.worker.client(partitions.config).round_trips - before
    partitions.check_room(provider)
    # There are some 250 blocks of at most 16 KiB.
    assert trips < 50
    store.abort()


def test_prefetched_keys_are_read_in_few_round_trips(partitions: Partitions) -> None:
    rows = Rows(6)
    fill(partitions, 0, rows)
    partitions.worker.warm.clear()
    provider, store = partitions.open(0)
    values, _ = rows.declare(store)
    keys, done = rows.some(400), 0
    before = partitions.worker.client(partitions.config).round_trips
    while done < len(keys):
        count = store.prefetch([values + key for key in keys[done:]])
        assert count
        partitions.check_room(provider)
        for key in keys[done : done + count]:
            assert store.get(values + key) == rows.values.get(key)
        done += count
    trips = partitions.worker.client(partitions.config).round_trips - before
    # Nearly every key is in a block of its own, and a few dozen blocks fit at a time.
    assert trips < 30
    store.abort()


def test_large_changes_are_folded_into_a_snapshot(partitions: Partitions) -> None:
    rows = Rows(4)
    fill(partitions, 0, rows)
    for _ in range(3):
        provider, store = partitions.open(0)
        values, _ = rows.declare(store)
        rows.change(store, values, rows.some(1_000))
        partitions.close(0, provider, store)
    # A fresh process holds the changes since the snapshot, and nothing of that.
    partitions.worker.warm.clear()
    provider, store = partitions.open(0)
    assert 0 < provider.cached_bytes() < ROOM
    assert read_all(store, values) == rows.values
    partitions.check_room(provider)
    store.abort()


def test_processor_runs_over_more_state_than_fits_in_memory(partitions: Partitions) -> None:
    from redis_state.testing.rows import arrow_schema
    from tests.contract.processors import OUTPUT, Variables

    key = '{"type":"struct","fields":[{"name":"user","type":"string","nullable":true}]}'
    engine = Engine(
        Variables(), Inputs(["user"], key, "eventtime", "UTC", "ts"), "pandas", arrow_schema(OUTPUT)
    )
    schema = arrow_schema(INPUT)
    users = [f"user {n:05d}" for n in range(3_000)]
    for batch in range(3):
        provider, store = partitions.open(0)
        # A time of 1970 or before would be late.
        columns: list[Any] = [users, [1] * len(users), [batch] * len(users)]
        table = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )
        given = engine.run(store, table, 0, 0, ProcessorQueryInfo("q", "r", batch))
        rows = [row for one in given for row in one.to_pylist()]
        assert rows == [{"user": user, "n": batch + 1, "what": "rows"} for user in users]
        partitions.check_room(provider)
        partitions.close(0, provider, store)
    provider, store = partitions.open(0)
    # Counts, a list and a map of each, timers by time and by group.
    full = store._local.full_bytes
    assert full > 2 * ROOM, f"{full} bytes would fit"
    store.abort()


def test_threads_reload_blocks_that_other_threads_evicted(partitions: Partitions) -> None:
    rows = Rows(5)
    fill(partitions, 0, rows)
    provider, store = partitions.open(0)
    values, _ = rows.declare(store)
    keys = [rows.some(400) for _ in range(4)]

    def read(some: list[bytes]) -> None:
        for at, key in enumerate(some):
            assert store.get(values + key) == rows.values.get(key)
            if at % 200 == 0:
                assert read_all(store, values) == rows.values

    with ThreadPoolExecutor(len(keys)) as threads:
        list(threads.map(read, keys))
    partitions.check_room(provider)
    store.abort()


def test_reads_are_right_while_another_thread_drops_bases(
    shared_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop_bases(load: Any, base: Base, numbers: Iterable[int]) -> None:
        load(base, numbers)
        dropper = threading.Thread(target=provider.drop_bases)
        dropper.start()
        dropper.join()

    with new_providers(shared_redis_server.url) as new_provider:
        rows = {f"{number:04}": os.urandom(VALUE_BYTES) for number in range(4 * ROOM // 1024)}
        writer = new_provider(codec=RAW)
        store = writer.get_store(0)
        for key, value in rows.items():
            store.put(key.encode(), value)
        at = store.commit()
        # No budget makes the threads take turns.
        provider = new_provider(codec=RAW)
        load = Base.load
        monkeypatch.setattr(Base, "load", lambda *given: drop_bases(load, *given))
        some = {key.encode(): value for key, value in rows.items()}
        reader = provider.get_read_store(at)
        assert {key: reader.get(key) for key in some} == some
        assert dict(reader.iterator()) == some
        assert reader.get_many(list(some)) == list(some.values())
        assert provider.cached_bytes() == 0


def test_threads_of_one_task_evict_concurrently(partitions: Partitions) -> None:
    provider, store = partitions.open(0)
    partitions.close(0, provider, store)
    worker, threads, size = partitions.worker, 4, 50
    interval = sys.getswitchinterval()
    for _ in range(20):
        worker.warm.update({partitions.place(n): Warm(provider, 1) for n in range(size)})
        together = threading.Barrier(threads)

        def make_room(together: threading.Barrier = together) -> bool:
            together.wait()
            return worker.has_room(1, 1)

        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(threads) as pool:
                asked = [pool.submit(make_room) for _ in range(threads)]
                assert [one.result() for one in asked] == [True] * threads
        finally:
            sys.setswitchinterval(interval)
        assert not worker.warm
