"""`transformWithState` and `transformWithStateInPandas`: the answers of RocksDB's provider."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, GroupedData, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from tests.spark.streams import PROVIDER, REDIS, ROCKSDB, Input, Output, Streams, run_to_end
from tests.spark.test_operators import EVENTS, events
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

OUT = "k string, what string, n long"
ROWS = pytest.mark.compatibility(
    refused={"4.0": ("no attribute 'transformWithState'", "its Python has no row-based one")}
)
Build = Callable[[DataFrame], DataFrame]


class Everything(StatefulProcessor):
    """Value, list and map state, and a timer two minutes after the last event of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "n long")
        self._seen = handle.getListState("seen", "v long")
        self._by_sign = handle.getMapState("bySign", "sign string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.concat(list(rows)).sort_values(["ts", "v"])
        total = (self._total.get() or (0,))[0] + int(frame["v"].sum())
        self._total.update((total,))
        if len(frame) > 4:
            self._seen.put([(int(v),) for v in frame["v"].head(2)])
        for value in frame["v"]:
            self._seen.appendValue((int(value),))
            sign = ("minus" if value < 0 else "plus",)
            known = self._by_sign.containsKey(sign)
            count = (self._by_sign.getValue(sign) if known else None) or (0,)
            self._by_sign.updateValue(sign, (count[0] + 1,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(int(frame["ts"].max().timestamp() * 1000) + 120_000)
        yield self._rows(key[0], "input")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        yield self._rows(key[0], f"timer {expiredTimerInfo.getExpiryTimeInMs()}")
        self._seen.clear()
        self._by_sign.removeKey(("minus",))
        if (self._total.get() or (0,))[0] < 0:
            self._total.clear()

    def _rows(self, key: str | None, what: str) -> pd.DataFrame:
        seen = [v[0] for v in self._seen.get()]
        signs = sorted((k[0], n[0]) for k, n in self._by_sign.iterator())
        total = (self._total.get() if self._total.exists() else None) or (0,)
        text = f"{what}: seen {seen} signs {signs}"
        return pd.DataFrame([{"k": key, "what": text, "n": total[0]}])


class Ageing(StatefulProcessor):
    """Processing time: state that has expired by the next batch, state that has not, a timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._short = handle.getValueState("short", "n long", 1)
        self._long = handle.getValueState("long", "n long", 3_600_000)
        self._list = handle.getListState("list", "v long", 3_600_000)
        self._map = handle.getMapState("map", "v long", "n long", 3_600_000)
        self._gone = handle.getListState("gone", "v long", 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        values = sorted(int(v) for frame in rows for v in frame["v"])
        text = self._state("input")
        count = (self._long.get() or (0,))[0] + len(values)
        self._short.update((count,))
        self._long.update((count,))
        self._list.appendList([(v,) for v in values])
        self._gone.appendList([(v,) for v in values])
        for value in values:
            self._map.updateValue((value % 5,), (value,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield pd.DataFrame([{"k": key[0], "what": text, "n": count}])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame([{"k": key[0], "what": self._state("timer"), "n": -1}])

    def _state(self, what: str) -> str:
        items = sorted((k[0], n[0]) for k, n in self._map.iterator())
        lists = [v[0] for v in self._list.get()], [v[0] for v in self._gone.get()]
        return f"{what}: {self._short.get()} {self._long.get()} {lists} {items}"


class Started(StatefulProcessor):
    """Rows instead of frames, from an initial state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._total.update((initialState["start"],))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total = (self._total.get() or (0,))[0] + sum(row["v"] for row in rows)
        self._total.update((total,))
        yield Row(k=key[0], what="total", n=total)


class StartedInPandas(StatefulProcessor):
    """The processor with an initial state, on frames instead of rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._total.update((int(initialState["start"].sum()),))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total = (self._total.get() or (0,))[0] + sum(int(frame["v"].sum()) for frame in rows)
        self._total.update((total,))
        yield pd.DataFrame([{"k": key[0], "what": "total", "n": total}])


def started(frame: DataFrame, *, in_pandas: bool) -> DataFrame:
    """A query that goes on from an initial state."""
    start = frame.sparkSession.createDataFrame(
        [(f"k{i}", 1000 * i) for i in range(12)], "k string, start long"
    )
    grouped = _grouped(frame)
    run = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    return run(
        StartedInPandas() if in_pandas else Started(),
        outputStructType=OUT,
        outputMode="Update",
        timeMode="None",
        initialState=start.groupBy("k"),
    )


def _same_as_rocksdb(streams: Streams, build: Build, seed: int) -> Output:
    """Runs a query on both providers, restarted half way; the outputs must be equal."""
    outputs: dict[str, Output] = {}
    for provider in (ROCKSDB, REDIS):
        label = provider.rsplit(".", 1)[-1]
        source = streams.input(label, EVENTS)
        output: Output = {}
        batches = events(seed, rows=16, keys=5)
        for part in (batches[:2], batches[2:]):
            for batch in part:
                source.add(batch[0])
            frame = build(source.stream(streams.spark))
            streams.run(frame, label, provider=provider, output=output)
        outputs[label] = output
    first, second = outputs.values()
    assert second == first
    assert any(first.values()), "the query gave nothing out: the test would prove nothing"
    return second


def _grouped(frame: DataFrame) -> GroupedData:
    return frame.withWatermark("ts", "1 minute").groupBy("k")


@pytest.mark.compatibility(
    "transformWithStateInPandas", "value, list and map state, event-time timers"
)
def test_every_kind_of_state_and_event_timers_equal_rocksdb(streams: Streams) -> None:
    def build(frame: DataFrame) -> DataFrame:
        return _grouped(frame).transformWithStateInPandas(
            Everything(), outputStructType=OUT, outputMode="Update", timeMode="EventTime"
        )

    rows = _same_as_rocksdb(streams, build, 31)
    assert any("timer" in row for batch in rows.values() for row in batch)


def test_a_union_behind_a_processor_adds_no_partitions_to_its_store(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    """The stage has more tasks than the operator has partitions."""
    source, other = streams.input("in", EVENTS), streams.input("other", EVENTS)
    for batch in events(37, rows=16, keys=5)[:2]:
        source.add(batch[0])
        other.add(batch[0])
        processed = _grouped(source.stream(streams.spark)).transformWithStateInPandas(
            StartedInPandas(), outputStructType=OUT, outputMode="Update", timeMode="None"
        )
        plain = other.stream(streams.spark).repartition(3)
        union = processed.union(plain.selectExpr("k", "'plain' AS what", "v AS n"))
        query = streams.run(union, "union")
    with redis_state.connect(shared_redis_server.url) as reader:
        (store,) = reader.query(query.id).status().stores
        assert len(store.partitions) == 2  # as many as shuffles have
        assert store.name == "transformWithStateInPandasExec"


def _once(streams: Streams, source: Input, provider: str, batch: int, output: Output) -> None:
    """One batch: with processing time there is always a further one to run."""
    frame = _grouped(source.stream(streams.spark)).transformWithStateInPandas(
        Ageing(), outputStructType=OUT, outputMode="Update", timeMode="ProcessingTime"
    )

    def keep(rows: DataFrame, batch_id: int) -> None:
        output[batch_id] = sorted(str(row) for row in rows.collect())

    streams.spark.conf.set(PROVIDER, provider)
    checkpoint = streams.checkpoint(provider.rsplit(".", 1)[-1])
    writer = (
        frame.writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(keep)
        .trigger(once=True)
    )
    run_to_end(writer.start)
    assert batch in output


@pytest.mark.compatibility("transformWithStateInPandas", "time to live, processing-time timers")
def test_time_to_live_and_processing_timers_equal_rocksdb(streams: Streams) -> None:
    outputs: list[Output] = []
    for provider in (ROCKSDB, REDIS):
        source = streams.input(provider.rsplit(".", 1)[-1], EVENTS)
        output: Output = {}
        for number, batch in enumerate(events(32, rows=12, keys=4)[:3]):
            source.add(batch[0])
            _once(streams, source, provider, number, output)
        outputs.append(output)
    assert outputs[1] == outputs[0]
    text = str(outputs[1])
    assert "input: None (" in text, "the short state should be gone, the long one not"


@ROWS
@pytest.mark.compatibility("transformWithState in Python, rows", "initial state")
def test_rows_with_an_initial_state_equal_rocksdb(streams: Streams) -> None:
    _same_as_rocksdb(streams, lambda frame: started(frame, in_pandas=False), 33)


@pytest.mark.compatibility("transformWithStateInPandas", "initial state")
def test_frames_with_an_initial_state_equal_rocksdb(streams: Streams) -> None:
    _same_as_rocksdb(streams, lambda frame: started(frame, in_pandas=True), 33)


@pytest.mark.compatibility("transformWithStateInPandas", "a second stateful operator behind it")
def test_chained_stateful_operator_equals_rocksdb(streams: Streams) -> None:
    def build(frame: DataFrame) -> DataFrame:
        states = _grouped(frame).transformWithStateInPandas(
            Everything(), outputStructType=OUT, outputMode="Update", timeMode="EventTime"
        )
        return states.dropDuplicates(["k", "n"])

    _same_as_rocksdb(streams, build, 34)
