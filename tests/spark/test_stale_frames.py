"""Frames of `transform_with_state` that are evaluated under the properties of another batch."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from redis_state.spark.processor.transform_with_state import (
    transform_columns_with_state,
    transform_with_state,
)
from tests.spark.streams import Streams
from tests.spark.test_stateful_processors import Queries, queries
from tests.support.redis_server import RedisServer

__all__ = ["queries"]

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

INPUT = "k long, use boolean"
OUT = "k long, n long"
KEYS = range(8)

Build = Callable[[DataFrame, str], DataFrame]


class Counting(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n = (self._count.get() or (0,))[0] + sum(map(len, rows))
        self._count.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        """Nothing is open."""


def by_group(frame: DataFrame, store: str) -> DataFrame:
    return transform_with_state(frame, Counting(), store=store, key="k", schema=OUT, partitions=4)


def by_columns(frame: DataFrame, store: str) -> DataFrame:
    def count(state: redis_state.ColumnState, table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        new = table.group_by("k").aggregate([("k", "count")])
        n = pc.add(pc.fill_null(state.get(new["k"])["n"], 0), new["k_count"])
        state.put(new["k"], pa.table({"n": n}))
        return pa.table({"k": new["k"], "n": n})

    return transform_columns_with_state(
        frame, count, store=store, key="k", state="n long", name="count", schema=OUT, partitions=4
    )


def counts(store: str, server: RedisServer) -> dict[int, int]:
    """The newest version that the partitions have."""
    with redis_state.connect(server.url) as reader:
        found = reader.query(store).operator(0, family="count").items(at="latest")
        return {key["k"]: value["n"] for key, value in found}


@pytest.mark.parametrize("build", [by_group, by_columns])
@pytest.mark.parametrize("rows_before", [0, 3, 8])
def test_frame_of_an_earlier_batch_changes_nothing(
    queries: Queries, shared_redis_server: RedisServer, build: Build, rows_before: int
) -> None:
    """The earlier batch has rows in no partition, in some, or in all of them."""
    source = queries.streams.input("in", INPUT)
    store = f"{queries.folder} stale"
    source.add([{"k": k, "use": k < rows_before} for k in KEYS])
    for _ in range(2):
        source.add([{"k": k, "use": True} for k in KEYS])
    kept: list[DataFrame] = []
    found: list[str] = []

    def evaluate(batch: DataFrame, batch_id: int) -> None:
        kept.append(batch)
        given = {row.k: row.n for row in batch.collect()}
        if batch_id == 0:
            assert len(given) == rows_before
            return
        assert given == {k: batch_id + (k < rows_before) for k in KEYS}
        for stale in kept[:-1]:
            with pytest.raises(Exception, match="the DataFrame belongs to batch") as told:
                stale.collect()
            found.append(str(told.value))

    frame = source.stream(queries.spark).where("use")
    queries.run(build(frame, store), "q", evaluate)
    assert len(found) == 1 + 2
    assert counts(store, shared_redis_server) == {k: 2 + (k < rows_before) for k in KEYS}


def test_frame_of_an_earlier_batch_evaluated_first_changes_nothing(
    queries: Queries, shared_redis_server: RedisServer
) -> None:
    """The frame of a batch without rows is evaluated before the one of the batch."""
    source = queries.streams.input("in", INPUT)
    store = f"{queries.folder} first"
    for use in (True, False, True):
        source.add([{"k": k, "use": use} for k in KEYS])
    kept: list[DataFrame] = []

    def evaluate(batch: DataFrame, batch_id: int) -> None:
        kept.append(batch)
        if batch_id == 2:
            with pytest.raises(Exception, match="the DataFrame belongs to batch 1"):
                kept[1].collect()
        batch.collect()

    queries.run(by_group(source.stream(queries.spark).where("use"), store), "q", evaluate)
    assert counts(store, shared_redis_server) == dict.fromkeys(KEYS, 2)


def test_frame_of_an_earlier_start_changes_nothing(
    queries: Queries, shared_redis_server: RedisServer
) -> None:
    """The function fails in a batch, the query is started again, and it keeps the older frame."""
    source = queries.streams.input("in", INPUT)
    store = f"{queries.folder} again"
    kept: list[DataFrame] = []
    for use in (True, False):
        source.add([{"k": k, "use": use} for k in KEYS])

    def evaluate(batch: DataFrame, batch_id: int) -> None:
        kept.append(batch)
        batch.collect()
        if batch_id == 1 and len(kept) == 2:
            raise ValueError("no luck with this batch")
        if batch_id == 1:
            with pytest.raises(Exception, match="belongs to this batch, but of an earlier start"):
                kept[1].collect()

    stream = by_group(source.stream(queries.spark).where("use"), store)
    with pytest.raises(StreamingQueryException, match="no luck"):
        queries.run(stream, "q", evaluate)
    queries.run(stream, "q", evaluate)
    assert len(kept) == 3
    assert counts(store, shared_redis_server) == dict.fromkeys(KEYS, 1)


def test_recomputed_cached_frame_changes_nothing(
    queries: Queries, shared_redis_server: RedisServer
) -> None:
    """A cached frame loses its blocks; Spark computes them under the next batch's properties."""
    source = queries.streams.input("in", INPUT)
    store = f"{queries.folder} evicted"
    for use in (False, True):
        source.add([{"k": k, "use": use} for k in KEYS])
    kept: list[DataFrame] = []

    def evaluate(batch: DataFrame, batch_id: int) -> None:
        batch.persist().count()
        kept.append(batch)
        if batch_id == 1:
            assert kept[0].count() == 0
            kept[0].unpersist(blocking=True)
            with pytest.raises(Exception, match="the DataFrame belongs to batch 0"):
                kept[0].collect()

    queries.run(by_group(source.stream(queries.spark).where("use"), store), "q", evaluate)
    assert counts(store, shared_redis_server) == dict.fromkeys(KEYS, 1)


def test_two_calls_with_one_store_in_a_query_are_refused(streams: Streams) -> None:
    queries = Queries(streams)
    source = streams.input("in", INPUT)
    source.add([{"k": k, "use": True} for k in KEYS])
    store = f"{streams.folder} twice"
    one, two = (by_group(source.stream(streams.spark), store) for _ in range(2))
    # The two are told apart by what their tasks show, not by the name of a metric.
    united = one.repartition(2).union(two.repartition(2))
    with pytest.raises(StreamingQueryException, match="two calls of transform_with_state"):
        queries.start(united, "q", [])


def test_coalesce_after_the_operator_is_refused_in_the_first_batch(queries: Queries) -> None:
    source = queries.streams.input("in", INPUT)
    source.add([{"k": k, "use": True} for k in KEYS])
    store = f"{queries.folder} merged"
    merged = by_group(source.stream(queries.spark), store).coalesce(1)
    with pytest.raises(StreamingQueryException, match="union or coalesce after"):
        queries.start(merged, "q", [])


def test_progress_counts_the_rows_of_the_source_alone(queries: Queries) -> None:
    source = queries.streams.input("in", INPUT)
    source.add([{"k": k, "use": k > 2} for k in KEYS])
    frame = by_group(source.stream(queries.spark), f"{queries.folder} counted")
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(queries.streams.checkpoint("q")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [one.numInputRows for one in query.recentProgress] == [len(KEYS)]
