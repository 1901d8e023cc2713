"""Runs each operator in real-time mode on RocksDB and on Redis, and prints what came out.

    python -m tests.spark.real_time_operators_job FOLDER REDIS_URL

One JSON line for each operator, with the sorted rows or the error of each provider. Both queries of
an operator run at the same time, and are stopped and started again half way.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

import redis_state
from tests.spark import test_transform_with_state as transform
from tests.spark.real_time import MemoryStream, appending, session
from tests.spark.streams import FORMAT, PREFIX, PROVIDER, REDIS
from tests.spark.test_operators import EVENTS, events, joined, running_sum, two_inputs
from tests.support.spark_sessions import kept
from tests.support.waiting import wait_until

BATCH = "1 second"
CORES = 14
NAME = "aggregation redis"
PARTITIONS = "spark.sql.shuffle.partitions"
LANES = ("rocksdb", "redis")
Rows = Sequence[dict[str, Any]]
_STARTING = threading.Lock()
Build = Callable[[Sequence[DataFrame]], DataFrame]


@dataclass(frozen=True)
class Case:
    """A query with one operator."""

    build: Build
    mode: str = "update"
    inputs: int = 1


def _aggregated(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].groupBy("k").agg(sf.sum("v"), sf.count("*"), sf.max("ts"))


def _windows(inputs: Sequence[DataFrame]) -> DataFrame:
    # No row is late, whichever batch Spark reads it in.
    late = inputs[0].withWatermark("ts", "2 hours")
    return late.groupBy(sf.window("ts", "10 minutes"), "k").agg(sf.sum("v"))


def _sessions(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "10 minutes")
    return late.groupBy(sf.session_window("ts", "3 minutes"), "k").agg(sf.sum("v"))


def _groups(inputs: Sequence[DataFrame]) -> DataFrame:
    columns = "k string, total long, timed_out boolean"
    keyed = inputs[0].where("k is not null").groupBy("k")
    return keyed.applyInPandasWithState(
        running_sum(), columns, "total long", "update", GroupStateTimeout.NoTimeout
    )


def _processed(inputs: Sequence[DataFrame]) -> DataFrame:
    return (
        inputs[0]
        .groupBy("k")
        .transformWithStateInPandas(
            transform.Everything(),
            outputStructType=transform.OUT,
            outputMode="Update",
            timeMode="ProcessingTime",
        )
    )


def _in_rows(inputs: Sequence[DataFrame]) -> DataFrame:
    return (
        inputs[0]
        .groupBy("k")
        .transformWithState(
            transform.Everything(),
            outputStructType=transform.OUT,
            outputMode="Update",
            timeMode="ProcessingTime",
        )
    )


def _of_ours(inputs: Sequence[DataFrame]) -> DataFrame:
    return redis_state.transform_with_state(
        inputs[0],
        transform.Everything(),
        store="real-time",
        key="k",
        schema=transform.OUT,
        time_mode="ProcessingTime",
    )


def _several(inputs: Sequence[DataFrame]) -> DataFrame:
    once = inputs[0].withWatermark("ts", "2 hours").dropDuplicates(["k", "v"])
    # Rows come from two partitions in any order, which the running counts do not show.
    return once.groupBy("k").count()


CASES = {
    "aggregation": Case(_aggregated),
    "aggregation, complete mode": Case(_aggregated, mode="complete"),
    "windows": Case(_windows),
    "windows, append mode": Case(_windows, mode="append"),
    "without a key": Case(lambda inputs: inputs[0].agg(sf.sum("v"), sf.count("k"))),
    "deduplication": Case(lambda inputs: inputs[0].dropDuplicates(["k", "v"])),
    "deduplication within watermark": Case(
        lambda inputs: (
            inputs[0].withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(["k"])
        )
    ),
    "join": Case(lambda inputs: joined(inputs, "inner"), inputs=2),
    "sessions, append mode": Case(_sessions, mode="append"),
    "limit": Case(lambda inputs: inputs[0].limit(90), mode="append"),
    "several": Case(_several),
    "groups": Case(_groups),
    "transformWithStateInPandas": Case(_processed),
    "transformWithState, rows": Case(_in_rows),
    "transform_with_state": Case(_of_ours),
}


@dataclass
class Lane:
    """One query on one provider over streams of its own."""

    spark: SparkSession
    folder: Path
    case: Case
    provider: str
    name: str
    streams: list[MemoryStream]
    query: StreamingQuery | None = None

    def outcome(self, batches: Sequence[Sequence[Rows]]) -> dict[str, Any]:
        """Returns the sorted rows of the query, stopped half way, or the error that ended it."""
        half = len(batches) // 2
        try:
            self.run(batches[:half])
            self.run(batches[half:])
        except PySparkException as error:
            return {"error": str(error)}
        return {"rows": sorted(self._out.read_text().splitlines())}

    def run(self, batches: Sequence[Sequence[Rows]]) -> None:
        """Feeds one run of the query.

        Raises:
            PySparkException: Spark does not serve the query in this mode.
        """
        self.query = self._start()
        wanted = 0
        for batch in batches:
            for stream, rows in zip(self.streams, batch, strict=True):
                stream.add([json.dumps(row) for row in rows])
                wanted += len(rows)
            wait_until(partial(self._has_read, wanted), f"a batch of {self.provider}")
        self.query.stop()

    @property
    def _out(self) -> Path:
        return self.folder / f"{self.provider}.txt"

    def _start(self) -> StreamingQuery:
        frames = [
            stream.frame.select(sf.from_json("value", EVENTS).alias("e")).select("e.*")
            for stream in self.streams
        ]
        writer: Any = self.case.build(frames).writeStream  # its stub lacks real time
        writer = (
            writer.outputMode(self.case.mode)
            .queryName(self.name)
            .foreach(appending(self._out))
            .option("checkpointLocation", str(self.folder / self.provider))
            .trigger(realTime=BATCH)
        )
        with _STARTING:
            # A query keeps the settings with which it started.
            self.spark.conf.set(f"{PREFIX}realTime", str(self.provider == "redis").lower())
            query: StreamingQuery = writer.start()
        return query

    def _has_read(self, rows: int) -> bool:
        assert self.query is not None
        if (error := self.query.exception()) is not None:
            raise error
        return sum(progress.numInputRows for progress in self.query.recentProgress) == rows


def _writer(frame: DataFrame, folder: Path, name: str) -> Any:
    writer: Any = frame.groupBy("value").count().writeStream  # its stub lacks real time
    return writer.outputMode("update").option("checkpointLocation", str(folder / name))


def _of_rate(spark: SparkSession, folder: Path) -> StreamingQuery:
    frame = spark.readStream.format("rate").load()
    query: StreamingQuery = (
        _writer(frame, folder, "rate").format("console").trigger(realTime=BATCH).start()
    )
    return query


def _of_changes(spark: SparkSession, folder: Path) -> StreamingQuery:
    url = spark.conf.get(f"{PREFIX}url")
    source = spark.readStream.format("redis_state").option("url", url)
    frame = source.option("query", NAME).option("since", "start").load()
    frame = frame.selectExpr("'x' AS value")
    query: StreamingQuery = (
        _writer(frame, folder, "changes").format("console").trigger(realTime=BATCH).start()
    )
    return query


def _to_batches(spark: SparkSession, folder: Path) -> StreamingQuery:
    writer = _writer(MemoryStream(spark).frame, folder, "batches")
    query: StreamingQuery = (
        writer.foreachBatch(lambda batch, _: batch.collect()).trigger(realTime=BATCH).start()
    )
    return query


def _too_short(spark: SparkSession, folder: Path) -> StreamingQuery:
    writer = _writer(MemoryStream(spark).frame, folder, "short").format("console")
    query: StreamingQuery = writer.trigger(realTime="100 milliseconds").start()
    return query


def _without_cores(spark: SparkSession, folder: Path) -> StreamingQuery:
    with kept(spark, PARTITIONS):
        spark.conf.set(PARTITIONS, str(CORES))
        writer = _writer(MemoryStream(spark).frame, folder, "wide").format("console")
        query: StreamingQuery = writer.trigger(realTime=BATCH).start()
    return query


def _session_of_format_1(spark: SparkSession, folder: Path) -> StreamingQuery:
    with kept(spark, FORMAT):
        spark.conf.set(FORMAT, "1")
        writer = _writer(MemoryStream(spark).frame, folder, "format-1").format("console")
        query: StreamingQuery = writer.trigger(realTime=BATCH).start()
    return query


def _checkpoint_of_format_1(spark: SparkSession, folder: Path) -> StreamingQuery:
    stream = MemoryStream(spark)
    stream.add(["a"])
    writer = _writer(stream.frame, folder, "older").format("console")
    with kept(spark, FORMAT):
        spark.conf.set(FORMAT, "1")
        writer.trigger(availableNow=True).start().awaitTermination()
    query: StreamingQuery = writer.trigger(realTime=BATCH).start()
    return query


def _named_provider(spark: SparkSession, folder: Path) -> StreamingQuery:
    with kept(spark, PROVIDER):
        spark.conf.set(PROVIDER, REDIS)
        writer = _writer(MemoryStream(spark).frame, folder, "named").format("console")
        query: StreamingQuery = writer.trigger(realTime=BATCH).start()
    return query


REFUSED: dict[str, Callable[[SparkSession, Path], StreamingQuery]] = {
    "source without real-time mode": _of_rate,
    "changes of a query": _of_changes,
    "foreachBatch": _to_batches,
    "short batch": _too_short,
    "fewer cores than tasks": _without_cores,
    "session with checkpoint format 1": _session_of_format_1,
    "checkpoint of format 1": _checkpoint_of_format_1,
    "session with a provider": _named_provider,
}


def refusal(start: Callable[[], StreamingQuery]) -> str:
    """Returns the error of a query that cannot start, or cannot run its first batch."""
    try:
        query = start()
        wait_until(lambda: not query.isActive, "the end of a query that is refused")
        return str(query.exception())
    except PySparkException as error:
        return str(error)


def main(folder: Path, url: str) -> None:
    spark = session(folder, url, cores=CORES, shortest="1s")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")  # compiling would take most of the time
    with ThreadPoolExecutor(len(LANES)) as threads:
        for name, case in CASES.items():
            place = folder / name.replace(" ", "-")
            place.mkdir()
            batches = events(1) if case.inputs == 1 else two_inputs(6)
            lanes = [
                Lane(
                    spark,
                    place,
                    case,
                    one,
                    f"{name} {one}",
                    [MemoryStream(spark) for _ in range(case.inputs)],
                )
                for one in LANES
            ]
            started = [threads.submit(lane.outcome, batches) for lane in lanes]
            found = [one.result() for one in started]
            print(json.dumps({"case": name, **dict(zip(LANES, found, strict=True))}), flush=True)
    spark.conf.set(f"{PREFIX}realTime", "true")
    for name, start in REFUSED.items():
        error = refusal(partial(start, spark, folder))
        print(json.dumps({"refused": name, "error": error}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
