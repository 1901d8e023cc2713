"""Counts words in real-time mode, killed and started once, and prints what came out.

    python real_time_job.py FOLDER REDIS_URL

Real-time mode runs all stages of a batch at once, so it needs more cores than the tests' session.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from tests.support.waiting import wait_until

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SHORTEST_BATCH = "spark.sql.streaming.realTimeMode.minBatchDuration"
ROUNDS = ((["a", "b", "a"], {"a": 2, "b": 1}), (["b", "c"], {"a": 2, "b": 2, "c": 1}))


def session(folder: Path, url: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(FORMAT, "2")
        .config(SHORTEST_BATCH, "2s")
    )
    return redis_state.configure(builder, url=url, real_time=True).getOrCreate()


def appending(path: Path) -> Callable[[Row], None]:
    """Keeps rows in a file, each in one write."""

    def keep(row: Row) -> None:
        with path.open("a") as out:
            out.write(json.dumps(row.asDict()) + "\n")

    return keep


def highest(path: Path) -> dict[str, int]:
    """Of each word the highest count that came out: a batch that is run again says less first."""
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        found[row["value"]] = max(row["count"], found.get(row["value"], 0))
    return found


def committed(query: StreamingQuery, words: int) -> bool:
    """Returns whether a batch ended with that many words in the state."""
    if (error := query.exception()) is not None:
        raise error
    progress = query.lastProgress
    return progress is not None and progress.stateOperators[0].numRowsTotal == words


def main(folder: Path, url: str) -> None:
    spark = session(folder, url)
    jvm: Any = spark._jvm
    package = jvm.org.apache.spark.sql.execution.streaming.sources
    strings = jvm.org.apache.spark.sql.Encoders.STRING()
    stream = package.LowLatencyMemoryStream.singlePartition(spark._jsparkSession, strings)
    out = folder / "rows.txt"
    writer: Any = (  # its stub lacks real time
        DataFrame(stream.toDF(), spark)
        .groupBy("value")
        .count()
        .writeStream.outputMode("update")
        .foreach(appending(out))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    metrics: set[str] = set()
    for words, expected in ROUNDS:
        query = writer.trigger(realTime="2 seconds").start()
        stream.addData(jvm.PythonUtils.toSeq(words))
        wait_until(
            lambda query=query, expected=expected: (  # type: ignore[misc]  # bound at once
                committed(query, len(expected)) and highest(out) == expected
            ),
            "the counts of a batch that ended",
        )
        progress = query.lastProgress
        assert progress is not None
        metrics |= set(progress.stateOperators[0].customMetrics)
        query.stop()
        print(json.dumps({"counts": highest(out), "metrics": sorted(metrics)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
