"""`transform_with_state` in a query of several sources, of which only some have something new."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.spark.test_stateful_processors import (
    OPS,
    Given,
    Queries,
    batches,
    by_batch,
    queries,
)

__all__ = ["queries"]

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Counting(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self._count.get() or (0,)
        count = before[0] + sum(map(len, rows))
        self._count.update((count,))
        yield pd.DataFrame({"k": [key[0]], "n": [key[1]], "seq": [count], "what": ["rows"]})

    def close(self) -> None:
        """Nothing is open."""


def test_operator_begins_each_batch_without_rows_too(queries: Queries) -> None:
    """The query has no watermark, for which Spark would keep the shuffle."""
    sources = [queries.streams.input(name, OPS) for name in ("left", "right")]
    first, second, third = batches(58, count=3)

    def given_by(store: str) -> Given:
        one, two = (
            queries.ours(
                source.stream(queries.spark), Counting(), f"{store} {at}", time_mode="None"
            )
            for at, source in enumerate(sources)
        )
        given: Given = []
        queries.start(one.repartition(2).union(two.repartition(2)), store, given)
        return given

    found: Given = []
    for at, rows in ((0, first), (1, second), (0, third)):
        sources[at].add(rows)
        found += given_by("step by step")
    assert len(found) == 3
    assert all(rows for _, rows in found)
    assert set(by_batch(found)) == {0, 1, 2}
