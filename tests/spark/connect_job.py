"""A client of Spark Connect, with a local server: queries, each run twice on its checkpoint.

    python connect_job.py FOLDER REDIS_URL QUERY ...

The last line of the output says, as JSON, what each run gave out. `limits` alone instead runs a
query with batches without rows, and what is refused.
"""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from redis_state.errors import UsageError

INPUT = (["a", "b", "a"], ["b", "c"])
SEEN = "word string, n long"


class Seen(StatefulProcessor):
    """Counts the earlier occurrences of a word."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        before = (self._total.get() or (0,))[0]
        self._total.update((before + sum(len(frame) for frame in rows),))
        yield pd.DataFrame([{"word": key[0], "n": before}])


def session(folder: Path, url: str) -> SparkSession:
    builder = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    return redis_state.configure(builder, url=url).getOrCreate()


def counts(words: DataFrame) -> DataStreamWriter:
    writer = words.groupBy("word").count().writeStream.outputMode("complete")
    return writer.format("memory").queryName("counts")


def processor(words: DataFrame) -> DataStreamWriter:
    seen = words.groupBy("word").transformWithStateInPandas(
        Seen(), outputStructType=SEEN, outputMode="append", timeMode="none"
    )
    return seen.writeStream.outputMode("append").format("json")


def in_the_worker(words: DataFrame) -> DataStreamWriter:
    seen = redis_state.transform_with_state(
        words, Seen(), store="seen over Connect", key="word", schema=SEEN
    )
    return seen.writeStream.outputMode("append").format("json")


QUERIES: dict[str, Callable[[DataFrame], DataStreamWriter]] = {
    "counts": counts,
    "processor": processor,
    "in the worker": in_the_worker,
}


def ended(query: StreamingQuery) -> int:
    """Waits for the end; gives the rows that went to Redis, by the metric of our provider, or 0."""
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    operators = progress.stateOperators
    return int(operators[0].customMetrics["redisStateRowsWritten"]) if operators else 0


def batches_without_rows(spark: SparkSession, folder: Path) -> list[list[Any]]:
    """Returns the rows of a query whose first and third batch have none."""
    source, out = folder / "filtered input", folder / "filtered"
    source.mkdir()
    for number, word in enumerate(("left out", "kept", "left out", "kept")):
        (source / f"{number}.json").write_text(json.dumps({"word": word}))
        os.utime(source / f"{number}.json", (number, number))
    stream = spark.readStream.schema("word string").option("maxFilesPerTrigger", 1)
    words = stream.json(str(source)).where("word = 'kept'")
    seen = redis_state.transform_with_state(
        words, Seen(), store="filtered over Connect", key="word", schema=SEEN
    )
    writer = seen.writeStream.format("json").option("path", str(out / "rows"))
    writer = writer.option("checkpointLocation", str(out / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.schema(SEEN).json(str(out / "rows")).collect()
    return sorted([row.word, row.n] for row in rows)


def refused_in_foreach_batch(spark: SparkSession, folder: Path) -> str:
    """Returns what a processor says in the function of foreachBatch: its batch is not there."""
    words = spark.readStream.schema("word string").json(str(folder / "filtered input"))
    seen = redis_state.transform_with_state(
        words, Seen(), store="foreachBatch over Connect", key="word", schema=SEEN
    )

    def evaluate(batch: DataFrame, _batch_id: int) -> None:
        batch.collect()

    writer = seen.writeStream.foreachBatch(evaluate).trigger(availableNow=True)
    try:
        writer.option("checkpointLocation", str(folder / "each")).start().awaitTermination()
    except StreamingQueryException as error:
        return str(error)
    return ""


def refused_watermarks(spark: SparkSession) -> list[str]:
    """Error messages of the call for plans with several watermarks."""

    def rate() -> DataFrame:
        return spark.readStream.format("rate").load()

    first = rate().withWatermark("timestamp", "1 minute")
    first.createOrReplaceTempView("first")
    second = rate().withWatermark("timestamp", "2 hours")
    told = []
    for united in (
        first.unionAll(second),
        first.unionAll(rate()),
        spark.table("first").unionAll(second),
        rate().unionAll(rate()).withWatermark("timestamp", "1 minute"),
    ):
        try:
            redis_state.transform_with_state(
                united, Seen(), store="s", key="value", schema=SEEN, time_mode="EventTime"
            )
        except UsageError as error:
            told.append(str(error))
    return told


def main(folder: Path, url: str, names: list[str]) -> None:
    spark = session(folder, url)
    if names == ["limits"]:
        told = {
            "filtered": batches_without_rows(spark, folder),
            "foreachBatch": refused_in_foreach_batch(spark, folder),
            "watermarks": refused_watermarks(spark),
        }
        print(json.dumps({"session": type(spark).__module__, **told}))
        spark.stop()
        return
    source = folder / "input"
    source.mkdir()
    queries = {name: QUERIES[name] for name in names}
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number, words in enumerate(INPUT):
        text = "".join(json.dumps({"word": word}) + "\n" for word in words)
        (source / f"{number}.json").write_text(text)
        for name, build in queries.items():
            stream = spark.readStream.schema("word string").json(str(source))
            out = folder / name
            writer = build(stream).option("checkpointLocation", str(out / "checkpoint"))
            writer = writer.option("path", str(out / "rows")).trigger(availableNow=True)
            written = ended(writer.start())
            if build is counts:
                rows = spark.table("counts").collect()
            else:
                rows = spark.read.schema(SEEN).json(str(out / "rows")).collect()
            pairs = sorted([row[0], row[1]] for row in rows)
            found[name].append({"rows": pairs, "written": written})
    print(json.dumps({"session": type(spark).__module__, **found}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
