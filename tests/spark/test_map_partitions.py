"""`map_partitions_with_state_store`: results against a plain dict, evaluations, batch ids."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession

from redis_state import map_partitions_with_state_store
from redis_state.errors import StateError, UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.spark.partition_task import BatchStore
from redis_state.store.provider import StateStoreProvider
from tests.spark.streams import Streams
from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from redis_state.spark.map_partitions import StatefulDataFrame

pytestmark = pytest.mark.spark

IN = "k string, v long"
OUT = "k string, total long"
Rows = list[tuple[str, int]]
BATCHES: list[Rows] = [
    [("a", 1), ("b", 2), ("a", 3)],
    [],
    [("c", 4), ("a", 5), ("d", 6), ("e", 7), ("é", 8)],
    [("b", 9)],
]


def add_dicts() -> Callable[..., Any]:
    """Closures travel by value: workers cannot import this module."""

    def add(store: BatchStore, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        touched = set()
        for row in rows:
            store.put(row["k"], (store.get(row["k"]) or 0) + row["v"])
            touched.add(row["k"])
        for key in sorted(touched):
            yield {"k": key, "total": store.get(key)}

    return add


def add_frames() -> Callable[..., Any]:
    def add(store: BatchStore, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        touched: set[Any] = set()
        for frame in frames:
            for key, value in frame.groupby("k")["v"].sum().items():
                store.put(key, (store.get(key) or 0) + int(value))
                touched.add(key)
        keys = sorted(touched)
        yield pd.DataFrame({"total": [store.get(key) for key in keys], "k": keys})

    return add


def add_arrow() -> Callable[..., Any]:
    def add(store: BatchStore, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        touched = set()
        for batch in batches:
            for key, value in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
                store.put(key, (store.get(key) or 0) + value)
                touched.add(key)
        keys = sorted(touched)
        yield pa.table({"k": pa.array(keys, pa.string()), "total": [store.get(k) for k in keys]})

    return add


class Store:
    """One store of a test, and what is in it."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.spark = spark
        self.url = url
        self.name = f"test {uuid.uuid4().hex}"

    def frame(self, rows: Rows) -> DataFrame:
        return self.spark.createDataFrame(rows, IN)

    def map(
        self, data: Rows, batch_id: int, func: Callable[..., Any] | None = None, **options: Any
    ) -> StatefulDataFrame:
        settings: dict[str, Any] = {"store": self.name, "key": "k", "schema": OUT} | options
        return map_partitions_with_state_store(
            self.frame(data), func or add_dicts(), batch_id=batch_id, **settings
        )

    def run(self, data: Rows, batch_id: int, **options: Any) -> dict[str, int]:
        mapped = self.map(data, batch_id, **options)
        found = {row["k"]: row["total"] for row in mapped.collect()}
        mapped.verify_committed()
        return found

    def state(self, version: int, partitions: int = 2) -> dict[str, int]:
        found: dict[str, int] = {}
        for partition in range(partitions):
            id_ = StateStoreProviderId(StateStoreId(self.name, 0, partition), "reader")
            provider = StateStoreProvider(id_, config=self.url)
            rows = dict(provider.get_read_store(version).iterator())
            provider.close()
            assert not found.keys() & rows.keys()
            found |= rows
        return found


@pytest.fixture
def store(spark: SparkSession, shared_redis_server: RedisServer) -> Store:
    return Store(spark, shared_redis_server.url)


@pytest.mark.parametrize(
    ("rows", "func"), [("dicts", add_dicts), ("pandas", add_frames), ("arrow", add_arrow)]
)
def test_batch_sums_equal_a_dict(store: Store, rows: str, func: Callable[[], Any]) -> None:
    model: Counter[str] = Counter()
    for number, batch in enumerate(BATCHES):
        for key, value in batch:
            model[key] += value
        found = store.run(batch, number, func=func(), rows=rows)
        assert found == {key: model[key] for key, _ in batch}
        assert store.state(number + 1) == model


def test_key_stays_in_one_partition_for_any_partition_count(store: Store) -> None:
    rows = [(f"k{i % 40}", i) for i in range(400)]
    model: Counter[str] = Counter()
    for key, value in rows:
        model[key] += value
    assert store.run(rows, 0, partitions=7) == model
    assert store.run(rows[:40], 1).keys() == model.keys()
    assert sum(store.state(1, partitions=7).values()) == sum(model.values())


def test_evaluations_start_from_one_version_and_the_last_wins(store: Store) -> None:
    store.run([("a", 1), ("b", 1)], 0)
    mapped = store.map([("a", 10), ("c", 10)], 1)
    for _ in range(3):
        assert {row["k"]: row["total"] for row in mapped.collect()} == {"a": 11, "c": 10}
    mapped.verify_committed()
    assert store.state(2) == {"a": 11, "b": 1, "c": 10}


def test_the_newest_batch_may_be_run_again(store: Store) -> None:
    store.run([("a", 1)], 0)
    store.run([("a", 1)], 0)
    assert store.state(1) == {"a": 1}
    store.run([("a", 2), ("b", 2)], 1)
    assert store.run([("a", 5)], 1) == {"a": 6}
    assert store.state(2) == {"a": 6}


def test_an_evaluation_after_the_next_call_is_refused(store: Store) -> None:
    first = store.map([("a", 1)], 0)
    first.collect()
    second = store.map([("a", 10)], 1)
    with pytest.raises(PySparkException, match=r"REDIS_FENCED.*was called again since .* batch 1"):
        first.collect()
    assert second.collect()[0]["total"] == 11
    again = store.map([("a", 20)], 1)
    with pytest.raises(PySparkException, match="was called again"):
        second.collect()
    with pytest.raises(Exception, match="was called again"):
        second.verify_committed()
    assert again.collect()[0]["total"] == 21
    again.verify_committed()
    assert store.state(2) == {"a": 21}


def test_gap_or_older_batch_is_refused_naming_the_newest(store: Store) -> None:
    with pytest.raises(StateError, match=r"no store of this name.*begin with batch 0"):
        store.map([("a", 1)], 1)
    for number in range(3):
        store.run([("a", 1)], number)
    with pytest.raises(UsageError, match="the newest batch is 2, so the next one is 3"):
        store.map([("a", 1)], 4)
    with pytest.raises(
        UsageError, match="the newest batch is 2, and only that batch can be run again"
    ):
        store.map([("a", 1)], 1)
    assert store.run([("a", 1)], 3) == {"a": 4}


def test_store_begins_with_the_named_batch(store: Store) -> None:
    with pytest.raises(UsageError, match="the first batch id is 7"):
        store.map([("a", 1)], 6, first_batch_id=7)
    store.run([("a", 1)], 7, first_batch_id=7)
    assert store.run([("a", 1)], 8, first_batch_id=7) == {"a": 2}
    with pytest.raises(UsageError, match="began with batch 7, not 0"):
        store.map([("a", 1)], 9)


def test_unevaluated_batch_is_reported_by_the_next_one(store: Store) -> None:
    store.run([("a", 1)], 0)
    store.map([("a", 1)], 1)
    with pytest.raises(StateError, match=r"partition 0, 1 does not hold version 2: batch 1 never"):
        store.map([("a", 1)], 2)
    store.run([("a", 1)], 1)
    assert store.run([("a", 1)], 2) == {"a": 3}


def test_partitions_that_did_not_run_are_named(store: Store) -> None:
    rows = [(f"k{i}", i) for i in range(50)]
    mapped = store.map(rows, 0, partitions=4)
    with pytest.raises(StateError, match="partition 0, 1, 2, 3 never ran to the end"):
        mapped.verify_committed()
    assert len(mapped.take(1)) == 1
    with pytest.raises(StateError, match=r"partition [0-9, ]+ never ran to the end"):
        mapped.verify_committed()
    assert mapped.count() == 50
    mapped.verify_committed()


def test_partitions_keep_their_numbers_in_unions_and_coalesced(store: Store) -> None:
    rows = [(f"k{i}", i) for i in range(20)]
    store.run(rows, 0)
    mapped = store.map(rows, 1)
    other = store.spark.createDataFrame([("other", 0)], OUT)
    found = other.unionAll(mapped).coalesce(1).collect()
    mapped.verify_committed()
    assert {row["k"]: row["total"] for row in found} == {"other": 0} | {k: 2 * v for k, v in rows}
    assert store.state(2) == {key: 2 * value for key, value in rows}


def test_rows_arrive_in_the_requested_order(store: Store) -> None:
    def listed(_: BatchStore, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield from ({"k": row["k"], "total": row["v"]} for row in rows)

    rows = [(f"k{i % 3}", (i * 37) % 100) for i in range(100)]
    mapped = store.map(rows, 0, func=listed, order_by=["k", "v"], partitions=1)
    assert [tuple(row) for row in mapped.collect()] == sorted(rows)


def test_store_metrics_reach_the_driver(store: Store) -> None:
    mapped = store.map(BATCHES[0], 0)
    assert mapped.state_metrics() == {}
    mapped.collect()
    found = mapped.state_metrics()
    assert (found["num_keys"], found["rows_put"], found["rows_removed"]) == (2, 2, 0)
    assert found["commit_bytes"] > 0
    names = {metric.name for metric in StateStoreProvider.supported_custom_metrics}
    assert set(found) == names | {"num_keys", "memory_bytes"}


def test_stream_uses_the_helper(store: Store, streams: Streams) -> None:
    from redis_state import foreach_batch_with_state_store

    written: dict[int, dict[str, int]] = {}

    def write(mapped: DataFrame, batch_id: int) -> None:
        written[batch_id] = {row["k"]: row["total"] for row in mapped.collect()}

    source = streams.input("events", IN)
    model: Counter[str] = Counter()
    expected = {}
    for number, batch in enumerate(BATCHES[::2]):
        source.add([{"k": key, "v": value} for key, value in batch])
        for key, value in batch:
            model[key] += value
        expected[number] = {key: model[key] for key, _ in batch}
    function = foreach_batch_with_state_store(
        add_dicts(), write, store=store.name, key="k", schema=OUT
    )
    writer = source.stream(store.spark).writeStream.foreachBatch(function)
    checkpoint = str(streams.checkpoint("mapped"))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    assert written == expected
    assert store.state(2) == model


def test_the_helper_stops_a_stream_whose_batch_was_not_evaluated(
    store: Store, streams: Streams
) -> None:
    from redis_state import foreach_batch_with_state_store

    source = streams.input("events", IN)
    source.add([{"k": "a", "v": 1}])
    function = foreach_batch_with_state_store(
        add_dicts(), lambda *_: None, store=store.name, key="k", schema=OUT
    )
    writer = source.stream(store.spark).writeStream.foreachBatch(function)
    checkpoint = str(streams.checkpoint("mapped"))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="never ran to the end"):
        query.awaitTermination()
