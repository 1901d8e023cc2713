"""Processors for tests."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

INPUT = "user string, ts timestamp, n long"
OUTPUT = "user string, n long, what string"


class Variables(StatefulProcessor):
    """Value, list and map state of every user, and a timer a minute after the watermark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._seen = handle.getListState("seen", "n long, who string")
        self._signs = handle.getMapState("signs", "sign string, odd boolean", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        values = [int(n) for frame in rows for n in frame["n"]]
        for n in values:
            self._seen.appendValue((n, key[0]))
            self._signs.updateValue(("minus" if n < 0 else "plus", n % 2 == 1), (n,))
        before = self._count.get()
        count = len(values) + (before[0] if before else 0)
        self._count.update((count,))
        self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 60_000)
        yield pd.DataFrame({"user": [key[0]], "n": [count], "what": ["rows"]})

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        count = self._count.get()
        self._count.clear()
        yield pd.DataFrame({"user": [key[0]], "n": [count[0] if count else 0], "what": ["timer"]})


class Expiring(StatefulProcessor):
    """Counts that live for ten seconds of processing time, by two key columns, over `Row`s."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long", ttlDurationMs=10_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = self._count.get()
        count = sum(1 for _ in rows) + (before[0] if before else 0)
        self._count.update((count,))
        yield Row(user=key[0], site=key[1], n=count)


class Remembering(StatefulProcessor):
    """Keeps in itself what it should keep in state; fails where a row says so."""

    def __init__(self) -> None:
        self._batches = 0

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._batches += 1
        self._handle = handle
        self._rows = handle.getValueState("rows", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import pyarrow as pa

        for table in rows:
            if -1 in table["n"].to_pylist():
                raise ValueError("a row said so")
            self._rows.update((table.num_rows,))
            batch = self._handle.getQueryInfo().getBatchId()  # type: ignore[attr-defined]
            yield pa.table({"user": [key[0]], "batches": [self._batches], "batch": [batch]})
