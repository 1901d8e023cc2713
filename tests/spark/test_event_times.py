"""Late rows and timers of processors, beside Spark's own operator: what its page says of both."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from tests.spark.streams import ROCKSDB, Input, Output, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
IN, OUT = "k string, at timestamp", "what string"
Batches = Sequence[Sequence[str | None]]
NOON = "2024-01-01 12:0"
CASES: list[tuple[str, Batches]] = [
    ("0 seconds", [[NOON + "0:00", NOON + "1:00"],
                   [NOON + "1:00", NOON + "0:30", NOON + "2:00"],
                   [NOON + "2:00", NOON + "1:30", NOON + "3:00"]]),
    ("1 minute", [[NOON + "0:00", NOON + "1:00"],
                  [NOON + "0:00", NOON + "0:30", NOON + "5:00"],
                  [NOON + "4:00", NOON + "3:30"],
                  [NOON + "4:00", NOON + "4:01"]]),
    ("0 seconds", [[NOON + "0:00.000999"],
                   [NOON + "0:00.000998", NOON + "0:00.000001", NOON + "0:00.001000"],
                   [NOON + "0:00.000999", NOON + "0:00.001000", NOON + "0:00.001001"]]),
    ("0 seconds", [["1969-12-31 23:00:00", "1970-01-01 00:00:00", "1970-01-01 00:00:01"],
                   ["1969-12-31 23:00:00", "1960-01-01 00:00:00"],
                   ["1970-01-01 00:05:00", "1969-01-01 00:00:00"],
                   ["1970-01-01 00:00:00", "1970-01-01 00:04:00"]]),
    ("1 minute", [["1960-01-01 00:00:00"], ["1959-01-01 00:00:00", "1960-01-01 00:10:00"]]),
    ("0 seconds", [[NOON + "5:00", None], [None, NOON + "0:00"], [None, NOON + "0:00"]]),
]  # fmt: skip


class Watching(StatefulProcessor):
    """Emits the rows it receives and the time of each timer, which fires a minute after its row."""

    def __init__(self, *, timers: bool = True) -> None:
        self._has_timers = timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        times = pd.concat([frame["at"] for frame in rows])
        count = (self._count.get() or (0,))[0] + len(times)
        self._count.update((count,))
        for at in times.dropna() if self._has_timers else ():
            self._handle.registerTimer(int(at.timestamp() * 1000) + 60_000)
        watermark = timerValues.getCurrentWatermarkInMs()
        text = f"{count} {sorted(map(str, times))} {watermark}"
        yield pd.DataFrame({"what": [text]})

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        at, watermark = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield pd.DataFrame({"what": [f"timer {at} {watermark}"]})

    def close(self) -> None:
        pass


class Runs:
    """One query on Spark's operator and one here, over the same batches."""

    def __init__(self, streams: Streams, url: str, delay: str, mode: str = "EventTime") -> None:
        self._streams, self._url, self._delay, self._mode = streams, url, delay, mode
        self._store = uuid.uuid4().hex
        self._made = Watching(timers=mode == "EventTime")

    def both(self, batches: Batches, *, each: bool) -> tuple[Output, Output]:
        """Outputs of Spark's operator and of ours.

        Args:
            each: The query is started for each batch, so Spark has one without data behind it.
        """
        return (
            self._run("spark", batches, self._theirs, each=each),
            self._run("here", batches, self._ours, each=each),
        )

    def _run(
        self, name: str, batches: Batches, build: Callable[[DataFrame], DataFrame], *, each: bool
    ) -> Output:
        source, output = self._streams.input(name, IN), Output()
        for batch in batches:
            source.add([{"k": "a", "at": at} for at in batch])
            if each:
                self._go(source, name, build, output)
        if not each:
            self._go(source, name, build, output)
        return output

    def _go(
        self, source: Input, name: str, build: Callable[[DataFrame], DataFrame], output: Output
    ) -> None:
        rows = source.stream(self._streams.spark).withWatermark("at", self._delay)
        self._streams.run(build(rows), name, provider=ROCKSDB, output=output)

    def _theirs(self, rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").transformWithStateInPandas(self._made, OUT, "update", self._mode)

    def _ours(self, rows: DataFrame) -> DataFrame:
        return redis_state.transform_with_state(
            rows, self._made, store=self._store, key="k", schema=OUT, time_mode=self._mode,
            url=self._url,
        )  # fmt: skip


def told(output: Output) -> list[list[str]]:
    """Output of each batch that has any."""
    return [rows for _, rows in sorted(output.items()) if rows]


@pytest.mark.parametrize(("delay", "batches"), CASES)
def test_late_rows_and_timers_equal_sparks_while_batches_have_data(
    streams: Streams, shared_redis_server: RedisServer, delay: str, batches: Batches
) -> None:
    """Rows up to 1970 are late from the first batch on: Spark's watermark is 0 before it rises."""
    spark, here = Runs(streams, shared_redis_server.url, delay).both(batches, each=False)
    with_data = {number: rows for number, rows in spark.items() if number < len(batches)}
    assert here == with_data


@pytest.fixture  # by processing time there are such batches for ever, and `availableNow` waits
def no_batches_without_data(streams: Streams) -> Iterator[None]:
    streams.spark.conf.set(NO_DATA, "false")
    yield
    streams.spark.conf.unset(NO_DATA)


@pytest.mark.usefixtures("no_batches_without_data")
@pytest.mark.parametrize(("delay", "batches"), CASES[:4])
def test_query_restarted_for_each_batch_equals_sparks_without_empty_batches(
    streams: Streams, shared_redis_server: RedisServer, delay: str, batches: Batches
) -> None:
    spark, here = Runs(streams, shared_redis_server.url, delay).both(batches, each=True)
    assert here == spark


def test_empty_batch_makes_rows_late_one_batch_earlier_in_spark(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    """As the page says: with a delay of 0 a row of the newest time is late there."""
    spark, here = Runs(streams, shared_redis_server.url, "0 seconds").both(CASES[0][1], each=True)
    rows = [[row for row in batch if "timer" not in row] for batch in told(spark)]
    assert [batch for batch in rows if batch] == [
        ["Row(what=\"2 ['2024-01-01 12:00:00', '2024-01-01 12:01:00'] 0\")"],
        ["Row(what=\"3 ['2024-01-01 12:02:00'] 1704110460000\")"],
        ["Row(what=\"4 ['2024-01-01 12:03:00'] 1704110520000\")"],
    ]
    counts = [row[len('Row(what="')] for batch in told(here) for row in batch if "timer" not in row]
    assert counts == ["2", "5", "8"]


@pytest.mark.usefixtures("no_batches_without_data")
@pytest.mark.parametrize("mode", ["None", "ProcessingTime"])
@pytest.mark.parametrize(("delay", "batches"), [CASES[1], CASES[3]])
def test_no_row_is_late_in_other_time_modes(
    streams: Streams, shared_redis_server: RedisServer, mode: str, delay: str, batches: Batches
) -> None:
    """No row is late. By processing time Spark tells the watermark, and here it is 0."""
    runs = Runs(streams, shared_redis_server.url, delay, mode)
    spark, here = runs.both(batches, each=False)
    if mode == "None":
        assert here == spark
    assert [[_without_watermark(row) for row in rows] for rows in told(here)] == [
        [_without_watermark(row) for row in rows] for rows in told(spark)
    ]


def _without_watermark(row: str) -> str:
    return row.rpartition(" ")[0]
