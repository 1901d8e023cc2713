"""`redis_state.transform_with_state` on batch DataFrames, with Spark's own operator as oracle."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.errors import UsageError
from redis_state.spark.processor.columns import ColumnState
from redis_state.spark.processor.transform_with_state import transform_with_state
from tests.spark.streams import PROVIDER, ROCKSDB, Streams
from tests.spark.test_stateful_processors import (
    NO_ROWS,
    OPERATOR,
    OPS,
    OUT,
    Ageing,
    Machine,
    Rows,
    Timeless,
    batches,
)

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

NOWHERE = "redis://127.0.0.1:1"
"""A server that is not there: none is asked."""


class Timed(Machine):
    """Processor in event time: the watermark of a batch run is -1, and earlier timers fire."""

    def did(self, row: Any, timerValues: Any) -> str:
        assert timerValues.getCurrentWatermarkInMs() == -1
        if row.op == "timer":
            self._handle.registerTimer(int(row.v) - 30)
        return super().did(row, timerValues)


class Begun(Ageing):
    """Processor with an initial state."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        values = initialState["v"].tolist()
        self._value.update((sum(values), "initial"))
        self._items.put([(v,) for v in values])
        self._handle.registerTimer(2)


def rows_of(spark: SparkSession, seed: int, *, nulls: bool = False) -> DataFrame:
    made = [row for batch in batches(seed, count=3, nulls=nulls) for row in batch]
    frame = spark.createDataFrame(made, OPS.replace("ts timestamp", "ts string"))
    return frame.withColumn("ts", sf.col("ts").cast("timestamp"))


def theirs(
    frame: DataFrame, processor: Any, mode: str, initial: GroupedData | None = None
) -> list[Any]:
    frame.sparkSession.conf.set(PROVIDER, ROCKSDB)
    grouped = frame.groupBy("k", "n")
    with_rows = isinstance(processor, Rows)
    run = grouped.transformWithState if with_rows else grouped.transformWithStateInPandas
    made = run(processor, outputStructType=OUT, outputMode="Update", timeMode=mode,
               initialState=initial)  # fmt: skip
    return sorted((tuple(row) for row in made.collect()), key=str)


def ours(frame: DataFrame, processor: Any, mode: str, **options: Any) -> list[Any]:
    made = transform_with_state(frame, processor, store="none", key=["k", "n"], schema=OUT,
                                time_mode=mode, url=NOWHERE, **options)  # fmt: skip
    found = sorted((tuple(row) for row in made.collect()), key=str)
    # Spark may know that there is nothing to do.
    assert made.state_metrics().get("rows_read", 0) == frame.count()
    return found


@pytest.mark.compatibility(OPERATOR, "batch DataFrame")
@pytest.mark.parametrize(
    ("processor", "mode"),
    [(Timed(), "EventTime"), (Timeless(), "None"), (Ageing(), "ProcessingTime"),
     (Ageing(3_600_000), "ProcessingTime")],
)  # fmt: skip
def test_batch_output_equals_sparks_operator(
    spark: SparkSession, processor: Machine, mode: str
) -> None:
    frame = rows_of(spark, 61)
    if mode == "None":
        frame = frame.where("op not in ('timer', 'untimer')")
    if isinstance(processor, Ageing):
        frame = frame.where("op != 'untimer'")
    expected = theirs(frame, processor, mode)
    assert ours(frame, processor, mode) == expected
    assert ours(frame, processor, mode, partitions=3, ticks=True) == expected
    assert any(row[2] == -1 for row in expected) is (mode == "EventTime")
    # Late rows are not left out: nothing is late in a batch run.
    assert sum(row[2] != -1 for row in expected) == frame.count()


@pytest.mark.compatibility(OPERATOR, "batch DataFrame, rows instead of frames", absent=NO_ROWS)
def test_row_processor_with_null_keys_equals_sparks(spark: SparkSession) -> None:
    frame = rows_of(spark, 62, nulls=True).where("op not in ('timer', 'untimer')")
    expected = theirs(frame, Rows(), "EventTime")
    assert ours(frame, Rows(), "EventTime", rows="rows") == expected


@pytest.mark.compatibility(OPERATOR, "batch DataFrame, initial state")
def test_initial_state_without_rows_equals_sparks(spark: SparkSession) -> None:
    initial = spark.createDataFrame(
        [("a", 1, 5), ("a", 1, 6), ("z", 3, 7)], "k string, n int, v int"
    )
    for frame in (rows_of(spark, 63).where("op != 'untimer'"), rows_of(spark, 63).where("false")):
        expected = theirs(frame, Begun(), "ProcessingTime", initial.groupBy("k", "n"))
        assert ours(frame, Begun(), "ProcessingTime", initial_state=initial) == expected
        # A group of the initial state alone has a timer, too.
        assert ("z", 3, -1) in {row[:3] for row in expected}
    assert ours(rows_of(spark, 63).where("false"), Begun(), "ProcessingTime") == []


@pytest.mark.compatibility("redis_state.transform_columns_with_state", "batch DataFrame")
def test_column_processor_runs_on_a_batch_dataframe(spark: SparkSession) -> None:
    def count(state: ColumnState, table: pa.Table) -> pa.Table:
        new = table.group_by("k").aggregate([("v", "sum")])
        assert state.get(new["k"])["n"].null_count == new.num_rows
        state.put(new["k"], pa.table({"n": new["v_sum"]}))
        assert state.info.batch_id == 0
        assert state.times.watermark_ms == -1
        state.remove(pc.unique(table["k"]).slice(0, 1))
        return pa.table({"k": new["k"], "n": state.get(new["k"])["n"]})

    frame = rows_of(spark, 64)
    made = redis_state.transform_columns_with_state(
        frame, count, store="none", key="k", state="n long", schema="k string, n long",
        partitions=1, url=NOWHERE,
    )  # fmt: skip
    found = {row.k: row.n for row in made.collect()}
    expected = {row.k: row[1] for row in frame.groupBy("k").sum("v").collect()}
    assert found.keys() == expected.keys()
    assert sum(found[key] is None for key in found) == 1
    assert all(found[key] in (None, expected[key]) for key in found)


def test_a_batch_of_a_stream_is_refused(streams: Streams) -> None:
    """Its state would be gone with every batch."""
    source = streams.input("in", OPS)
    source.add(batches(65, count=1)[0])

    def write(batch: DataFrame, _batch_id: int) -> None:
        ours(batch, Timeless(), "None")

    query = (
        source.stream(streams.spark)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(streams.checkpoint("refused")))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="one batch of a streaming query"):
        query.awaitTermination()


def test_an_error_of_the_processor_names_what_is_wrong(spark: SparkSession) -> None:
    class Wrong(Timeless):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield pd.DataFrame({"k": ["a"]})

    with pytest.raises(Exception, match="rows without the column 'n'"):
        ours(rows_of(spark, 66), Wrong(), "None")
    with pytest.raises(UsageError, match="rows is 'dicts'"):
        ours(rows_of(spark, 66), Timeless(), "None", rows="dicts")
