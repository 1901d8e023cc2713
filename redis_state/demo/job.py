"""The Spark job: a process of its own that may be killed at any time and started again."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery as RunningQuery

import redis_state
from redis_state.demo import sink
from redis_state.demo.data import COLUMNS
from redis_state.demo.queries import QUERIES, StreamingQuery

_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    # The files of a batch make few tasks, and are listed without a job of their own.
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
}


class ProgressWriter(StreamingQueryListener):
    """Appends Spark's progress report of every batch to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Ignores the event."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Appends the report."""
        line = " ".join(event.progress.json.split("\n"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Ignores the event."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Ignores the event."""


def _end_with_parent() -> None:
    """Waits for the end of standard input, which the parent holds open, and exits.

    Spark's JVM watches this process in the same way.
    """
    # Not through `sys.stdin`: its lock would be held when the interpreter ends.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _session(folder: Path, url: str) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("flights")
    for name, value in _CONF.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.local.dir", str(folder / "spark"))
    # A JVM that lives for a minute gains nothing from thorough compilation, and a killed JVM leaves
    # its temporary files.
    java = f'-XX:TieredStopAtLevel=1 "-Djava.io.tmpdir={folder}"'
    builder = builder.config("spark.driver.extraJavaOptions", java)
    return redis_state.configure(builder, url=url).getOrCreate()


def _start(
    spark: SparkSession, query: StreamingQuery, folder: Path, files_per_batch: int
) -> RunningQuery:
    flights = (
        spark.readStream.schema(COLUMNS)
        .option("maxFilesPerTrigger", files_per_batch)
        .csv(str(folder / "days"))
    )
    results = folder / "results" / query.name
    results.mkdir(parents=True, exist_ok=True)
    return (
        query.stream(flights)
        .writeStream.queryName(query.name)
        .outputMode(query.mode)
        .option("checkpointLocation", str(folder / "checkpoints" / query.name))
        .trigger(availableNow=True)
        .foreachBatch(sink.writer(results))
        .start()
    )


def main() -> None:
    """Runs all queries until every file has been read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--files-per-batch", type=int, required=True)
    arguments = parser.parse_args()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    spark = _session(arguments.folder, arguments.url)
    spark.sparkContext.setLogLevel("WARN")
    spark.streams.addListener(ProgressWriter(arguments.folder / "progress.jsonl"))
    running = [
        _start(spark, query, arguments.folder, arguments.files_per_batch) for query in QUERIES
    ]
    for query in running:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
