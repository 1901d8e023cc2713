"""A driver to be killed: a real-time query over a log of rows, until there is FOLDER/enough.

    python -m tests.spark.real_time_restart_job FOLDER REDIS_URL QUERY RUN

The source is Spark's in-memory one over the lines of FOLDER/log.txt, as a topic is a log: a new
process adds the lines of the earlier ones first, so that the offsets of the checkpoint hold. Each
run writes its rows with the number of their batch into FOLDER/out-RUN.txt. When the query has read
the whole log, an ordinary query on RocksDB's provider reads it too, into FOLDER/ordinary.txt.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.real_time import MemoryStream, session
from tests.spark.streams import PROVIDER, ROCKSDB
from tests.support.waiting import wait_until

NAME = "killed"
BATCH = "1 second"
_ROWS = 20
_PAUSE_S = 0.05


def _counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(sf.count("*").alias("n"), sf.sum("v").alias("total"))


def _first_of_each(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k"])


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregation": _counted,
    "deduplication": _first_of_each,
}


def line_of(place: int) -> str:
    """Returns the row at a place of the log: an old key or a new one, and the place."""
    return f"{random.Random(place).randrange(place // 2 + 1)},{place}"


class Sink:
    """Writes rows with their batch, each in one write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batch = -1

    def open(self, _: int, batch: int) -> bool:
        self._batch = batch
        return True

    def process(self, row: Row) -> None:
        with self._path.open("a") as out:
            out.write(json.dumps({"batch": self._batch, **row.asDict()}) + "\n")


class Log:
    """The rows of the source, in a file and in Spark's memory."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self._path = path
        self.stream = MemoryStream(spark)
        lines = path.read_text().splitlines() if path.exists() else []
        self.length = len(lines)
        self.stream.add(lines)

    def grow(self) -> None:
        lines = [line_of(place) for place in range(self.length, self.length + _ROWS)]
        with self._path.open("a") as out:
            out.write("".join(line + "\n" for line in lines))
        self.stream.add(lines)
        self.length += len(lines)

    def rows(self) -> DataFrame:
        parts = sf.split("value", ",")
        return self.stream.frame.select(
            parts[0].cast("long").alias("k"), parts[1].cast("long").alias("v")
        )


def start(frame: DataFrame, folder: Path, name: str, out: Path, trigger: dict[str, Any]) -> Any:
    writer: Any = frame.writeStream  # its stub lacks real time
    return (
        writer.outputMode("update")
        .queryName(name)
        .foreach(Sink(out))
        .option("checkpointLocation", str(folder / "checkpoints" / name))
        .trigger(**trigger)
        .start()
    )


def has_read(query: StreamingQuery, rows: int) -> bool:
    """Returns whether a batch has ended with all rows of the log read."""
    if (error := query.exception()) is not None:
        raise error
    progress = query.lastProgress
    end = None if progress is None else progress.sources[0].endOffset
    return bool(end) and sum(json.loads(str(end)).values()) == rows


def main(folder: Path, url: str, kind: str, run: str) -> None:
    spark = session(folder, url, shortest="1s")
    log = Log(folder / "log.txt", spark)
    frame = QUERIES[kind](log.rows())
    query = start(frame, folder, NAME, folder / f"out-{run}.txt", {"realTime": BATCH})
    pause = threading.Event()
    while not (folder / "enough").exists():
        if (error := query.exception()) is not None:
            raise error
        log.grow()
        pause.wait(_PAUSE_S)
    wait_until(lambda: has_read(query, log.length), "a batch that has read all")
    query.stop()
    spark.conf.set(PROVIDER, ROCKSDB)
    ordinary = start(frame, folder, "ordinary", folder / "ordinary.txt", {"availableNow": True})
    ordinary.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
