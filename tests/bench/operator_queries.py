"""The queries of `tests.bench.operators`: what each does, and the rows that it is fed."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

OUT = "k string, n long"
SCHEMA = "k string, ts timestamp, v long"
LIST_MAX = 8
TIMER_AFTER_MS = 90_000
_START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_BATCH = timedelta(minutes=1)

Frames = Iterator[pd.DataFrame]


class Value(StatefulProcessor):
    """A sum for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Frames:
        total = (self._total.get() or (0,))[0] + sum(int(frame["v"].sum()) for frame in rows)
        self._total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})


class List(StatefulProcessor):
    """The newest values of each key: appended, read, and cut when there are too many."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getListState("seen", "v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Frames:
        values = sorted(int(v) for frame in rows for v in frame["v"])
        self._seen.appendList([(v,) for v in values])
        seen = [v[0] for v in self._seen.get()]
        if len(seen) > LIST_MAX:
            self._seen.put([(v,) for v in seen[-LIST_MAX // 2 :]])
        yield pd.DataFrame({"k": [key[0]], "n": [sum(seen)]})


class Map(StatefulProcessor):
    """A count for each key and last digit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._counts = handle.getMapState("counts", "digit long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Frames:
        total = 0
        for value in sorted(int(v) for frame in rows for v in frame["v"]):
            digit = (value % 10,)
            count = (self._counts.getValue(digit) or (0,))[0] + 1
            self._counts.updateValue(digit, (count,))
            total += count
        yield pd.DataFrame({"k": [key[0]], "n": [total]})


class Timers(StatefulProcessor):
    """A timer some time after the last event of a key; what is pending is replaced."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "ms long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Frames:
        last = max(int(frame["ts"].max().timestamp() * 1000) for frame in rows)
        before = self._last.get()
        if before is not None:
            self._handle.deleteTimer(before[0])
        self._last.update((last + TIMER_AFTER_MS,))
        self._handle.registerTimer(last + TIMER_AFTER_MS)
        yield pd.DataFrame({"k": [key[0]], "n": [last]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Frames:
        self._last.clear()
        yield pd.DataFrame({"k": [key[0]], "n": [-expiredTimerInfo.getExpiryTimeInMs()]})


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """A query and its input: in each batch `rows` rows of random keys out of `keys`.

    Attributes:
        inputs: How many streams the query reads; each gets `rows` rows.
        mode: Output mode.
        tiny: Whether opening and committing is what the batch is about.
    """

    name: str
    build: Callable[[Sequence[DataFrame]], DataFrame]
    keys: int
    rows: int
    inputs: int = 1
    mode: str = "update"
    tiny: bool = False

    def scaled(self, by: float) -> OperatorWork:
        """Scales the numbers of keys and rows of the query."""
        return replace(self, keys=int(self.keys * by), rows=int(self.rows * by))

    def batch(self, number: int, side: int) -> pa.Table:
        """Rows of one minute of event time; the same for everyone who asks."""
        rng = random.Random(f"{self.name} {number} {side}")
        start = _START + number * _BATCH
        keys = [f"key-{rng.randrange(self.keys):08d}" for _ in range(self.rows)]
        stamps = [start + rng.random() * _BATCH for _ in range(self.rows)]
        values = [rng.randrange(1_000_000) for _ in range(self.rows)]
        return pa.table({"k": keys, "ts": pa.array(stamps, pa.timestamp("us", "UTC")), "v": values})


def _processor(kind: type[StatefulProcessor], time_mode: str) -> Callable[..., DataFrame]:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        late = inputs[0].withWatermark("ts", "10 seconds")
        return late.groupBy("k").transformWithStateInPandas(
            kind(), outputStructType=OUT, outputMode="Update", timeMode=time_mode
        )

    return build


def _join(inputs: Sequence[DataFrame]) -> DataFrame:
    left = inputs[0].withWatermark("ts", "10 seconds").alias("l")
    right = inputs[1].withWatermark("ts", "10 seconds").alias("r")
    near = sf.expr(
        "l.k = r.k and r.ts between l.ts - interval 1 minute and l.ts + interval 1 minute"
    )
    pairs = left.join(right, near, "leftOuter")
    return pairs.select("l.k", sf.col("l.v").alias("v"), sf.col("r.v").alias("w"))


def _sessions(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "10 seconds")
    windows = late.groupBy(sf.session_window("ts", "90 seconds"), "k").agg(
        sf.sum("v").alias("n"), sf.count("*").alias("rows")
    )
    return windows.select("k", "session_window", "n", "rows")


_PANDAS = "transformWithStateInPandas"

WORKS = (
    OperatorWork(f"{_PANDAS}, value state, tiny", _processor(Value, "None"), 2_000, 100, tiny=True),
    OperatorWork(f"{_PANDAS}, value state", _processor(Value, "None"), 15_000, 3_000),
    OperatorWork(f"{_PANDAS}, list state", _processor(List, "None"), 6_000, 1_200),
    OperatorWork(f"{_PANDAS}, map state", _processor(Map, "None"), 6_000, 1_200),
    OperatorWork(f"{_PANDAS}, timers", _processor(Timers, "EventTime"), 5_000, 1_000),
    OperatorWork("left outer join", _join, 10_000, 10_000, inputs=2, mode="append"),
    OperatorWork("session windows", _sessions, 20_000, 10_000, mode="append"),
)
