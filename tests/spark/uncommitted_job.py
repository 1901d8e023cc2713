"""A driver to be killed while a batch of its query runs.

    python -m tests.spark.uncommitted_job FOLDER REDIS_URL QUERY

`deduplication` and `aggregation` run in real-time mode over the lines of FOLDER/log.txt. Their
batches are short until FOLDER/long exists, and an hour long after that. `slow` is an ordinary query
over the files of FOLDER/in: behind its deduplication the plan sleeps for each row.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from redis_state.config import conf_prefix
from tests.spark.real_time import MemoryStream, session

NAME = "running"
SHORT, LONG = "2 seconds", "1 hour"
EVERY = "50ms"
_ROW_MS = 100
_PAUSE_S = 0.05


def _first_of_each(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k"])


def _counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(sf.count("*").alias("n"))


REAL_TIME: dict[str, Callable[[DataFrame], DataFrame]] = {
    "deduplication": _first_of_each,
    "aggregation": _counted,
}


class RealTimeJob:
    """The query over the lines of a file."""

    def __init__(self, folder: Path, url: str, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self._spark = session(folder, url)
        self._spark.conf.set(f"{conf_prefix()}publishEvery", EVERY)

    def run(self) -> None:
        long = self._folder / "long"
        if not long.exists():
            self._feed(self._start(SHORT), long.exists)
        self._feed(self._start(LONG), lambda: False)

    def _start(self, batch: str) -> tuple[StreamingQuery, MemoryStream]:
        stream = MemoryStream(self._spark)
        rows = stream.frame.select(sf.col("value").alias("k"))
        writer: Any = REAL_TIME[self._kind](rows).writeStream  # its stub lacks real time
        query: StreamingQuery = (
            writer.outputMode("update")
            .queryName(NAME)
            .format("console")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(realTime=batch)
            .start()
        )
        return query, stream

    def _feed(
        self, started: tuple[StreamingQuery, MemoryStream], is_over: Callable[[], bool]
    ) -> None:
        """Adds the lines of the file to the source until the query is over."""
        query, stream = started
        added, pause = 0, threading.Event()
        while not is_over():
            if (error := query.exception()) is not None:
                raise error
            log = self._folder / "log.txt"
            lines = log.read_text().split() if log.exists() else []
            if len(lines) > added:
                stream.add(lines[added:])
                added = len(lines)
            pause.wait(_PAUSE_S)
        query.stop()


def run_slow(folder: Path, url: str) -> None:
    """Runs the ordinary query. Its tasks write one row after another, each after a sleep."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(f"{conf_prefix()}publishEvery", EVERY)
    )
    spark = redis_state.configure(builder, url=url).getOrCreate()
    rows = spark.readStream.format("text").load(str(folder / "in"))
    slept = sf.expr(f"java_method('java.lang.Thread', 'sleep', {_ROW_MS}L)")
    found = _first_of_each(rows.select(sf.col("value").alias("k"))).withColumn("slept", slept)
    query = (
        found.writeStream.outputMode("update")
        .queryName(NAME)
        .format("console")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()


def main(folder: Path, url: str, kind: str) -> None:
    if kind == "slow":
        run_slow(folder, url)
    else:
        RealTimeJob(folder, url, kind).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
