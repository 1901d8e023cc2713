"""`redis_state.transform_with_state` over more state than a Python worker holds."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.spark.streams import Streams
from tests.spark.test_stateful_processors import OPERATOR, OPS, Given, Queries

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Large(StatefulProcessor):
    """Keeps a few kB for each key, and counts the rows of it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n int, text string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n, text = self._count.get() or (0, text_of(key[1]))
        assert text == text_of(key[1])
        n += sum(map(len, rows))
        self._count.update((n, text))
        yield pd.DataFrame({"k": [key[0]], "n": [key[1]], "seq": [n], "what": [""]})


def text_of(n: int) -> str:
    """Text that does not compress."""
    return random.Random(n).randbytes(1500).hex()


@pytest.mark.compatibility(OPERATOR, "more state than a worker's memory")
def test_state_larger_than_worker_memory_is_processed(streams: Streams) -> None:
    queries = Queries(streams)
    source = queries.streams.input("in", OPS)
    keys = 1500
    for _ in range(3):
        source.add(
            {"k": "k", "n": n, "v": 1, "ts": "2024-01-01T00:00:00.000Z"} for n in range(keys)
        )
    given: Given = []
    memory = f"{os.cpu_count() or 1}m"
    frame = queries.ours(
        source.stream(queries.spark), Large(), "s", time_mode="None", local_memory=memory
    )
    queries.start(frame, "large", given)
    for number, rows in given:
        assert sorted(rows) == [("k", n, number + 1, "") for n in range(keys)]
    figures = frame.batch_metrics()
    assert [one["rows_read"] for one in figures.values()] == [keys] * 3
    assert figures[2]["num_keys"] == keys
    assert figures[2]["commit_bytes"] > 2 << 20, "a partition would fit into the memory"
    assert {"load_ms", "function_ms", "commit_ms", "memory_bytes"} < figures[0].keys()
    total = frame.state_metrics()
    assert total["rows_read"] == keys * 3
    assert total["rows_put"] == sum(one["rows_put"] for one in figures.values())
