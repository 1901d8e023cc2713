"""State that a worker keeps between tasks of `map_partitions_with_state_store`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.batches.driver import begin_batch
from redis_state.codec import MSGPACK
from redis_state.config import Config
from redis_state.coordinator import StateStoreCoordinator
from redis_state.format.entry import parse_entry
from redis_state.ids import StateStoreId
from redis_state.spark import partition_task
from redis_state.spark.partition_task import BatchStore, PartitionTask
from redis_state.spark.rows import RowFormat
from redis_state.spark.worker import CLIENTS_MAX, Worker
from redis_state.store.local.memory_budget import ROW_BYTES
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

KEYS = 10_000
FORMAT = RowFormat("dicts", pa.schema([("k", pa.int64())]), "UTC")

Dicts = Iterator[dict[str, Any]]


class Batches:
    """A store of one partition, of which this process evaluates each batch."""

    def __init__(self, client: Client, config: Config) -> None:
        self._client = client
        self.config = config
        self.name = uuid.uuid4().hex

    def run(self, number: int, func: Callable[[BatchStore, Dicts], Dicts]) -> None:
        batch = begin_batch(
            self._client,
            self.config,
            name=self.name,
            number=number,
            first=0,
            partitions=1,
            partitions_default=1,
            layout="k",
            codec_name=MSGPACK.name,
        )
        rows = pa.array([None, {"k": 1}], pa.struct([("k", pa.int64())]))
        one = pa.RecordBatch.from_arrays([pa.array([0, 0], pa.int32()), rows], names=["p", "row"])
        task = PartitionTask(batch, self.config, MSGPACK.name, func, FORMAT)
        list(task.run(iter([one])))


@pytest.fixture
def new(
    shared_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Batches]]:
    """The process begins with nothing, and its connections are closed at the end."""
    worker = Worker()
    monkeypatch.setattr(partition_task, "WORKER", worker)

    def made(**given: str) -> Batches:
        config = options.parse({"url": shared_redis_server.url} | given)
        return Batches(worker.client(config), config)

    yield made
    worker.close()


def fill(store: BatchStore, rows: Dicts) -> Dicts:
    for key in range(KEYS):
        store.put(key, key)
    return rows


def check(store: BatchStore, rows: Dicts) -> Dicts:
    assert store.get(KEYS - 1) == KEYS - 1
    return rows


def test_rows_expire_by_the_option_of_the_call(
    new: Callable[..., Batches], shared_redis_server: RedisServer
) -> None:
    found: list[Any] = []

    def count(store: BatchStore, rows: Dicts) -> Dicts:
        found.append((len(list(store.iterator())), store.get(1), store.metrics.num_keys))
        return rows

    batches = new(stateTtl="1h")
    batches.run(0, fill)
    with shared_redis_server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(batches.name)).decode()
        meta = keys.meta(StateStoreId(batches.name, 0, 0).partition(gen))
        uid = raw.hget(meta, "lu").decode()
        written = parse_entry(raw.hget(meta, f"d:1:{uid}").decode())
        for later_s in (3599, 3620):  # expiries are rounded up
            raw.hdel(meta, f"d:2:{raw.hget(meta, 'lu').decode()}")
            time = f"2 {uid} {written.time + later_s}"
            raw.hset(meta, mapping={"tv": time, "l": "1", "lu": uid})
            batches.run(1, count)
    assert written.time > 0
    assert found == [(KEYS, 1, KEYS), (0, None, KEYS)]


def broken(store: BatchStore, rows: Dicts) -> Dicts:
    store.put(KEYS - 1, "never committed")
    raise ValueError(f"no luck with {next(rows)}")


def current_worker() -> Worker:
    """The one that stands in for that of the process."""
    found: Worker = vars(partition_task)["WORKER"]
    return found


def kept() -> int:
    return len(current_worker().warm)


def test_every_key_of_an_ephemeral_store_expires(
    new: Callable[..., Batches], shared_redis_server: RedisServer
) -> None:
    batches = new(ephemeral="true")
    for number in range(3):
        batches.run(number, fill)
        with shared_redis_server.client() as raw:
            gen = raw.hget(keys.names(), keys.name_field(batches.name))
            of_it = [key for key in raw.scan_iter(count=1000) if gen in key]
            assert len(of_it) > 2
            assert [key for key in of_it if raw.pttl(key) < 0] == []


def test_next_batch_reuses_the_provider_of_the_last_one(new: Callable[..., Batches]) -> None:
    batches = new()
    batches.run(0, fill)
    assert kept() == 1
    batches.run(1, check)
    assert kept() == 1
    batches.run(1, check)
    assert kept() == 1


def test_totals_accumulate_over_tasks(new: Callable[..., Batches]) -> None:
    batches = new()
    batches.run(0, fill)
    batches.run(1, check)
    (warm,) = current_worker().warm.values()
    totals = warm.provider.counters.totals()
    assert (totals["opens"], totals["commits"], totals["rowsWritten"]) == (2, 2, KEYS)


def test_failed_task_leaves_nothing_cached(new: Callable[..., Batches]) -> None:
    batches = new()
    batches.run(0, fill)
    with pytest.raises(ValueError, match="no luck"):
        batches.run(1, broken)
    assert kept() == 0
    batches.run(1, check)
    assert kept() == 1


def test_provider_above_the_memory_bound_is_not_kept(new: Callable[..., Batches]) -> None:
    batches = new(localMemory="1m")
    batches.run(0, fill)
    assert sum(one.size for one in current_worker().warm.values()) == 0
    batches.run(1, check)


def test_version_cached_for_another_run_is_evicted_before_the_newest(
    new: Callable[..., Batches],
) -> None:
    batches = new(
        localMemory=str(2 * 2 * KEYS * (ROW_BYTES + 10) * (os.cpu_count() or 1) // 3) + "b"
    )
    batches.run(0, fill)
    (alone,) = current_worker().warm.values()
    batches.run(1, fill)
    assert kept() == 1
    (both,) = current_worker().warm.values()
    assert alone.size * 0.9 < both.size < alone.size * 1.1
    batches.run(1, check)
    batches.run(2, check)


def test_evicted_client_evicts_its_providers(
    new: Callable[..., Batches],
) -> None:
    batches = new()
    batches.run(0, fill)
    for number in range(CLIENTS_MAX):
        new(deadline=f"{number + 1}s")
    assert kept() == 0


def test_cached_provider_is_reported_to_the_coordinator(new: Callable[..., Batches]) -> None:
    batches = new()
    table = StateStoreCoordinator(batches.config)
    try:
        batches.run(0, fill)
        wait_until(lambda: bool(table.instances(batches.name)), "the worker to report")
        (instance,) = table.instances(batches.name).values()
        assert instance.executor_id == f"python-{os.getpid()}"
        current_worker().close()
        assert not table.instances(batches.name)
    finally:
        table.stop()
