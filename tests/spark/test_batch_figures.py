"""Metrics of Python's stores in Spark's UI and in the progress of the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from redis_state import foreach_batch_with_state_store
from redis_state.spark.partition_task import BatchStore
from redis_state.store.metrics import BATCH_METRICS
from tests.spark.streams import Streams
from tests.spark.test_map_partitions import BATCHES, IN, OUT, Store, add_dicts, store
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

__all__ = ["store"]  # a fixture


def shown(spark: SparkSession, store: str) -> list[dict[str, str]]:
    """The figures of the store in each query that the UI lists, as it shows them."""
    state = spark._jsparkSession.sharedState().statusStore()
    listed = state.executionsList()
    found = []
    for number in range(listed.size()):
        execution = listed.apply(number)
        values = state.executionMetrics(execution.executionId())
        nodes = state.planGraph(execution.executionId()).allNodes()
        for node in (nodes.apply(n) for n in range(nodes.size())):
            if node.name() == f"Redis state of {store}":
                metrics = (node.metrics().apply(n) for n in range(node.metrics().size()))
                found.append(
                    {
                        one.name(): str(values.apply(one.accumulatorId()))
                        for one in metrics
                        if values.contains(one.accumulatorId())
                    }
                )
    return found


def test_operator_in_the_ui_has_the_metrics(store: Store, spark: SparkSession) -> None:
    store.run(BATCHES[0], 0)
    wait_until(lambda: shown(spark, store.name) != [], "the UI to list the query")
    (figures,) = shown(spark, store.name)
    assert figures["rows that commits set"] == "2"
    assert figures["keys after the batch"] == "2"
    assert figures["bytes that commits sent"].startswith("total (min, med, max")
    assert "ms" in figures["time to encode, send and publish changes"]
    assert len(figures) == len(BATCH_METRICS)


def test_schema_without_nulls_is_kept(store: Store) -> None:
    schema = StructType(
        [StructField("k", StringType(), False), StructField("total", LongType(), False)]
    )
    mapped = store.map(BATCHES[0], 0, schema=schema)
    assert mapped.schema == schema
    assert {tuple(row) for row in mapped.collect()} == {("a", 4), ("b", 2)}
    mapped.verify_committed()


def test_mapped_rows_support_self_join_cache_and_column_pruning(store: Store) -> None:
    mapped = store.map(BATCHES[0], 0)
    joined = mapped.alias("l").join(mapped.alias("r"), "k").where("l.total > 2")
    assert [tuple(row) for row in joined.collect()] == [("a", 4, 4)]
    assert sorted(row["total"] for row in mapped.select("total").collect()) == [2, 4]
    assert mapped.count() == 2
    kept = mapped.persist()
    assert kept.groupBy().sum("total").collect()[0][0] == 6
    kept.unpersist()
    mapped.verify_committed()


def test_mapped_rows_join_rows_of_another_session(store: Store, spark: SparkSession) -> None:
    other = spark.newSession().createDataFrame([("z", 0)], OUT)
    found = other.unionAll(store.map(BATCHES[0], 0)).collect()
    assert {tuple(row) for row in found} == {("z", 0), ("a", 4), ("b", 2)}


def test_query_progress_has_the_metrics_of_its_stores(store: Store, streams: Streams) -> None:
    def count(_: BatchStore, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            _.put(row["k"], 1)
        yield from ()

    def write(mapped: DataFrame, _batch_id: int) -> None:
        mapped.collect()

    settings: dict[str, Any] = {"key": "k", "schema": OUT}
    first = foreach_batch_with_state_store(add_dicts(), write, store=store.name, **settings)
    second = foreach_batch_with_state_store(
        count, write, store=f"{store.name} second", partitions=3, **settings
    )

    def both(df: DataFrame, batch_id: int) -> None:
        first(df, batch_id)
        second(df, batch_id)

    source = streams.input("events", IN)
    source.add([{"k": key, "v": value} for key, value in BATCHES[0]])
    writer = source.stream(store.spark).writeStream.foreachBatch(both)
    writer = writer.option("checkpointLocation", str(streams.checkpoint("mapped")))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    names = {f"redis_state.{store.name}", f"redis_state.{store.name} second"}
    wait_until(
        lambda: set(query.recentProgress[0].observedMetrics) == names, "the listener to be told"
    )
    figures = query.recentProgress[0].observedMetrics[f"redis_state.{store.name}"]
    assert (figures["num_keys"], figures["rows_put"], figures["rows_removed"]) == (2, 2, 0)
    assert figures["commit_bytes"] > 0
    assert f"redis_state.{store.name}" in query.recentProgress[0].json
