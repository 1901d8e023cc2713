"""Schemas of state that change between restarts, which needs Avro: the answers of RocksDB."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import ArrayType, DayTimeIntervalType, StructField, StructType
from pyspark.testing.objects import ExamplePointUDT

import redis_state
from redis_state.errors import UsageError
from tests.spark.streams import PROVIDER, REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, events
from tests.spark.test_transform_with_state import ROWS
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
OUT = "k string, what string"

# Each is a restart: fields are widened, renamed (one goes, one comes), reordered, added inside.
TOTALS = ("n int, low int", "low long, n long, mean double", "mean double, best string, n long")
LISTS = ("v int", "v long, at int", "at int, v long")
MAPS = ("n int, in struct<a int>", "in struct<a long, b string>, n long", "n long, more string")


class Evolving(StatefulProcessor):
    """Writes what its schemas name, and gives out all that it finds."""

    def __init__(self, stage: int) -> None:
        self._stage = stage

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", TOTALS[self._stage])
        self._seen = handle.getListState("seen", LISTS[self._stage])
        self._signs = handle.getMapState("signs", "sign string", MAPS[self._stage])

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = sorted(row["v"] for row in rows)
        before = self._found()
        self._total.update(_row(TOTALS[self._stage], values))
        if len(values) > 3:
            self._seen.put([_row(LISTS[self._stage], values)])
        for value in values:
            self._seen.appendValue(_row(LISTS[self._stage], [value]))
        sign = ("minus" if values[0] < 0 else "plus",)
        self._signs.updateValue(sign, _row(MAPS[self._stage], values))
        # Some of the timers lie before 1970.
        self._handle.registerTimer(values[0] * 1000)
        self._handle.registerTimer(1_704_105_000_000 + 60_000 * abs(values[0]))
        yield Row(k=key[0], what=f"{before} then {self._found()}")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(k=key[0], what=f"timer {expiredTimerInfo.getExpiryTimeInMs()}")
        if expiredTimerInfo.getExpiryTimeInMs() > 0:
            self._signs.removeKey(("minus",))

    def _found(self) -> str:
        total = self._total.get() if self._total.exists() else None
        signs = sorted(self._signs.iterator(), key=str)
        return f"{total} {list(self._seen.get())} {signs}"


def _row(schema: str, values: list[int]) -> tuple[Any, ...]:
    """A value for each field, by its name."""
    known = {
        "n": sum(values),
        "low": values[0],
        "mean": values[0] / 2,
        "best": f"best {values[-1]}",
        "v": values[0],
        "at": len(values),
        "in": (values[0], "b") if "b string" in schema else (values[0],),
        "more": None,
    }
    flat = schema.replace("struct<a long, b string>", "s").replace("struct<a int>", "s")
    return tuple(known[field.split()[0]] for field in flat.split(", "))


def _frame(source: DataFrame, stage: int) -> DataFrame:
    grouped = source.withWatermark("ts", "1 minute").groupBy("k")
    return grouped.transformWithState(
        Evolving(stage), outputStructType=OUT, outputMode="Update", timeMode="EventTime"
    )


@pytest.fixture
def avro(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(ENCODING, "avro")
    yield
    spark.conf.unset(ENCODING)


def _read(streams: Streams, label: str, **options: Any) -> list[str]:
    streams.spark.conf.set(PROVIDER, REDIS)
    reader = streams.spark.read.format("statestore").options(**options)
    return sorted(str(row) for row in reader.load(str(streams.checkpoint(label))).collect())


@ROWS
@pytest.mark.usefixtures("avro")
@pytest.mark.compatibility("transformWithState in Python, rows", "Avro encoding, evolving schemas")
def test_fields_are_added_removed_reordered_and_widened(streams: Streams) -> None:
    outputs: list[Output] = []
    states: list[dict[str, list[str]]] = []
    batches = events(51, rows=14, keys=4)
    for provider in (ROCKSDB, REDIS):
        label = provider.rsplit(".", 1)[-1]
        source = streams.input(label, EVENTS)
        output: Output = {}
        state = {}
        for stage in range(len(TOTALS)):
            source.add(batches[stage][0])
            frame = _frame(source.stream(streams.spark), stage)
            streams.run(frame, label, provider=provider, output=output)
            for variable in ("total", "seen", "signs"):
                state[f"{stage} {variable}"] = _read(streams, label, stateVarName=variable)
        state["timers"] = _read(streams, label, readRegisteredTimers=True)
        outputs.append(output)
        states.append(state)
    assert outputs[1] == outputs[0]
    assert states[1] == states[0]
    text = str(outputs[1])
    assert "[(None, " in text, "no row of an older schema was read"
    assert "timer -" in text, "no timer before 1970 was handled"


def test_state_columns_of_types_that_cannot_be_stored_raise_in_the_call(
    spark: SparkSession, streams: Streams, shared_redis_server: RedisServer
) -> None:
    """No batch has to fail first."""
    frame = streams.input("in", EVENTS).stream(spark)
    point = StructType([StructField("at", ArrayType(ExamplePointUDT()))])
    interval = StructType([StructField("at", DayTimeIntervalType())])
    for state, found in ((point, "user-defined type .*ExamplePointUDT"), (interval, "interval")):
        with pytest.raises(UsageError, match=f"column 'at'.*{found}.*cannot be stored"):
            redis_state.transform_columns_with_state(
                frame,
                lambda *_: None,
                store="points",
                key="k",
                state=state,
                schema="k string",
                url=shared_redis_server.url,
            )


@pytest.mark.usefixtures("avro")
def test_a_schema_that_cannot_follow_is_refused(streams: Streams) -> None:
    source = streams.input("in", EVENTS)
    source.add(events(52, rows=6, keys=2)[0][0])
    streams.run(_frame(source.stream(streams.spark), 1), "cp")
    source.add(events(53, rows=6, keys=2)[1][0])
    with pytest.raises(PySparkException, match="STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"):
        streams.run(_frame(source.stream(streams.spark), 0), "cp")
