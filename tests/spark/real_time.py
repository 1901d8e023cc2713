"""Parts of the tests' queries in real-time mode: a session, a source, and a sink of lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

import redis_state
from tests.spark.streams import FORMAT

SHORTEST_BATCH = "spark.sql.streaming.realTimeMode.minBatchDuration"


def session(folder: Path, url: str, *, cores: int = 4, shortest: str = "2s") -> SparkSession:
    """Starts a session whose new queries are served in real-time mode.

    Args:
        cores: Real-time mode runs all stages of a batch at once, each task on a core of its own.
        shortest: Shortest batch that a trigger may ask for.
    """
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(FORMAT, "2")
        .config(SHORTEST_BATCH, shortest)
    )
    return redis_state.configure(builder, url=url, real_time=True).getOrCreate()


class MemoryStream:
    """Spark's in-memory source of real-time mode, of strings in one partition.

    Its offsets are the numbers of rows that were added, in their order. So another process that
    adds the same rows first goes on where a checkpoint ends.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        jvm: Any = self._jvm
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        strings = jvm.org.apache.spark.sql.Encoders.STRING()
        one = sources.LowLatencyMemoryStream.singlePartition
        self._stream = one(spark._jsparkSession, strings)
        self.frame = DataFrame(self._stream.toDF(), spark)

    def add(self, rows: Sequence[str]) -> None:
        self._stream.addData(self._jvm.PythonUtils.toSeq(list(rows)))


def appending(path: Path) -> Callable[[Row], None]:
    """Returns a sink that keeps rows in a file, each in one write."""

    def keep(row: Row) -> None:
        with path.open("a") as out:
            out.write(json.dumps(row.asDict(recursive=True), default=str) + "\n")

    return keep
