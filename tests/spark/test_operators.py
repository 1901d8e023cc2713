"""Every operator of HDFSBacked: the same output, batch for batch, a restart included."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.streams import ROCKSDB, Streams

pytestmark = pytest.mark.spark

StatefulFunction = Callable[
    [tuple[str], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]
]
EVENTS = "k string, v long, ts timestamp"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_BATCHES = 4
UNKNOWN_3 = ("Valid versions are", "it has join state formats 1 and 2 only")
UNKNOWN_4 = ("Valid versions are", "it has no join state format 4")
_UNFINISHED = ("under development", "join state format 4 is under development there")
FORMAT_3 = pytest.mark.compatibility(refused={"4.0": UNKNOWN_3})
FORMAT_4 = pytest.mark.compatibility(
    refused={"4.0": UNKNOWN_4, "4.1": UNKNOWN_4, "4.2": _UNFINISHED}
)


def events(seed: int, *, rows: int = 40, keys: int = 9) -> list[list[list[dict[str, Any]]]]:
    """Batches of events whose times rise by ten minutes a batch, with some late ones."""
    rng = random.Random(seed)

    def event(batch: int) -> dict[str, Any]:
        return {
            "k": None if rng.random() < 0.05 else f"k{rng.randrange(keys)}",
            "v": rng.randrange(-50, 50),
            "ts": f"2024-01-01T10:{batch * 10 + rng.randrange(10):02d}:00.000Z",
        }

    return [[[event(batch) for _ in range(rows)]] for batch in range(_BATCHES)]


def two_inputs(seed: int) -> list[list[list[dict[str, Any]]]]:
    left, right = events(seed, rows=15, keys=6), events(seed + 1, rows=15, keys=6)
    return [[a[0], b[0]] for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("mode", ["update", "complete"])
@pytest.mark.compatibility("aggregation", "{mode} mode")
def test_aggregation(streams: Streams, mode: str) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        return inputs[0].groupBy("k").agg(sf.sum("v"), sf.count("*"), sf.max("ts"))

    streams.same_on_both(build, [EVENTS], events(1), mode=mode)


@pytest.mark.compatibility("aggregation", "event-time windows, append mode")
def test_windowed_aggregation_in_append_mode(streams: Streams) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        late = inputs[0].withWatermark("ts", "5 minutes")
        return late.groupBy(sf.window("ts", "10 minutes"), "k").agg(sf.sum("v"))

    streams.same_on_both(build, [EVENTS], events(2), mode="append")


@pytest.mark.compatibility("aggregation", "without a key")
def test_global_aggregation(streams: Streams) -> None:
    streams.same_on_both(
        lambda inputs: inputs[0].agg(sf.sum("v"), sf.count("k")),
        [EVENTS],
        events(3),
    )


@pytest.mark.compatibility("dropDuplicates")
def test_deduplication(streams: Streams) -> None:
    streams.same_on_both(
        lambda inputs: inputs[0].dropDuplicates(["k", "v"]), [EVENTS], events(4), mode="append"
    )


@pytest.mark.compatibility("dropDuplicatesWithinWatermark")
def test_deduplication_within_watermark(streams: Streams) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        return inputs[0].withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(["k"])

    streams.same_on_both(build, [EVENTS], events(5), mode="append")


def joined(inputs: Sequence[DataFrame], how: str) -> DataFrame:
    left = inputs[0].withWatermark("ts", "5 minutes").alias("l")
    right = inputs[1].withWatermark("ts", "5 minutes").alias("r")
    near = sf.expr("l.k = r.k and r.ts between l.ts and l.ts + interval 10 minutes")
    return left.join(right, near, how)


@pytest.mark.parametrize(
    "how",
    [
        "inner",
        "full_outer",
        pytest.param("left_outer", marks=pytest.mark.long),
        pytest.param("left_semi", marks=pytest.mark.long),
    ],
)
@pytest.mark.compatibility("stream-stream join", "{how}, state format 2")
def test_stream_stream_join(streams: Streams, how: str) -> None:
    """State format 2: since 4.2 Spark itself refuses to start a new query with format 1."""

    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        return joined(inputs, how)

    streams.same_on_both(build, [EVENTS, EVENTS], two_inputs(6), mode="append")


@pytest.mark.parametrize("how", ["full_outer", pytest.param("inner", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "state_format", [pytest.param("3", marks=FORMAT_3), pytest.param("4", marks=FORMAT_4)]
)
@pytest.mark.compatibility(
    "stream-stream join", "{how}, state format {state_format} asked for (4.3 takes 2)"
)
def test_stream_stream_join_with_column_families(
    streams: Streams, spark: SparkSession, state_format: str, how: str
) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        return joined(inputs, how)

    spark.conf.set(JOIN_FORMAT, state_format)
    try:
        streams.same_on_both(build, [EVENTS, EVENTS], two_inputs(6), mode="append", oracle=ROCKSDB)
    finally:
        spark.conf.unset(JOIN_FORMAT)
    header = (streams.checkpoint("RedisStateStoreProvider") / "offsets" / "0").read_text()
    taken = json.loads(header.splitlines()[1])["conf"][JOIN_FORMAT]
    # docs/compatibility.md, "What Spark ties to RocksDB"
    assert taken == ("2" if spark.version >= "4.3" else state_format)


@pytest.mark.compatibility("session windows", "append mode")
def test_session_windows(streams: Streams) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        late = inputs[0].withWatermark("ts", "10 minutes")
        return late.groupBy(sf.session_window("ts", "3 minutes"), "k").agg(sf.sum("v"))

    streams.same_on_both(build, [EVENTS], events(7), mode="append")


@pytest.mark.compatibility("limit")
def test_limit(streams: Streams) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        return inputs[0].limit(90).select(sf.lit(1).alias("one"))

    streams.same_on_both(build, [EVENTS], events(8), mode="append")


def running_sum(lasts_ms: int = 60_000) -> StatefulFunction:
    """A closure, so that it travels by value: Python workers cannot import this module."""
    event_time = GroupStateTimeout.EventTimeTimeout

    def step(
        key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            (total,) = state.get
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "total": [total], "timed_out": [True]})
            return
        total = (state.get[0] if state.exists else 0) + sum(int(f["v"].sum()) for f in frames)
        if total % 7 == 0 and state.exists:
            state.remove()
        else:
            state.update((total,))
            if state._timeout_conf == event_time:
                state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + lasts_ms)
        yield pd.DataFrame({"k": [key[0]], "total": [total], "timed_out": [False]})

    return step


@pytest.mark.parametrize(
    "timeout", [GroupStateTimeout.NoTimeout, GroupStateTimeout.EventTimeTimeout]
)
@pytest.mark.compatibility("applyInPandasWithState", "{timeout}")
def test_apply_in_pandas_with_state(streams: Streams, timeout: str) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        late = inputs[0].where("k is not null").withWatermark("ts", "1 minute")
        return late.groupBy("k").applyInPandasWithState(
            running_sum(),
            "k string, total long, timed_out boolean",
            "total long",
            "update",
            timeout,
        )

    streams.same_on_both(build, [EVENTS], events(9))


@pytest.mark.compatibility("several stateful operators in one query")
def test_several_operators_in_one_query(streams: Streams) -> None:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        late = inputs[0].withWatermark("ts", "5 minutes").dropDuplicates(["k", "v", "ts"])
        small = late.groupBy(sf.window("ts", "5 minutes"), "k").agg(sf.sum("v").alias("v"))
        return small.groupBy(sf.window(sf.window_time("window"), "10 minutes")).agg(sf.sum("v"))

    streams.same_on_both(build, [EVENTS], events(10), mode="append")
