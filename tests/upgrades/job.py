"""Runs a part of several queries, each on its checkpoint, on the pyspark of this interpreter.

    python -m tests.upgrades.job PROVIDER URL FOLDER PARTS QUERY...

Part 0 feeds the first half of the input and part 1 the second; PARTS is 0, 1 or 01, with a restart
between. What each batch gave out, or how the query ended, is one line of JSON per query.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupStateTimeout

import redis_state
from tests.spark.streams import Output, Streams
from tests.spark.test_operators import EVENTS, events, joined, running_sum, two_inputs
from tests.spark.test_transform_with_state import OUT, Everything

Build = Callable[[Sequence[DataFrame]], DataFrame]


def aggregation(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].groupBy("k").agg(sf.sum("v"), sf.count("*"), sf.max("ts"))


def windows(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "5 minutes")
    return late.groupBy(sf.window("ts", "10 minutes"), "k").agg(sf.sum("v"))


def sessions(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "10 minutes")
    return late.groupBy(sf.session_window("ts", "3 minutes"), "k").agg(sf.sum("v"))


def deduplication(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].dropDuplicates(["k", "v"])


def deduplication_within_watermark(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(["k", "v"])


def pandas_with_state(inputs: Sequence[DataFrame], lasts_ms: int = 60_000) -> DataFrame:
    late = inputs[0].where("k is not null").withWatermark("ts", "1 minute")
    return late.groupBy("k").applyInPandasWithState(
        running_sum(lasts_ms),
        "k string, total long, timed_out boolean",
        "total long",
        "update",
        GroupStateTimeout.EventTimeTimeout,
    )


def transform_with_state(inputs: Sequence[DataFrame]) -> DataFrame:
    return (
        inputs[0]
        .withWatermark("ts", "1 minute")
        .groupBy("k")
        .transformWithStateInPandas(
            Everything(), outputStructType=OUT, outputMode="Update", timeMode="EventTime"
        )
    )


QUERIES: dict[str, tuple[Build, str]] = {
    "aggregation": (aggregation, "update"),
    "aggregation in event-time windows": (windows, "append"),
    "session windows": (sessions, "append"),
    "dropDuplicates": (deduplication, "append"),
    "dropDuplicatesWithinWatermark": (deduplication_within_watermark, "append"),
    "stream-stream join, inner": (lambda inputs: joined(list(inputs), "inner"), "append"),
    "stream-stream join, full_outer": (lambda inputs: joined(list(inputs), "full_outer"), "append"),
    "applyInPandasWithState": (pandas_with_state, "update"),
    "transformWithStateInPandas": (transform_with_state, "update"),
}


def session(url: str, folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state upgrade")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    spark = redis_state.configure(builder, url=url).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(streams: Streams, query: str, part: int, provider: str, output: Output) -> None:
    build, mode = QUERIES[query]
    batches = two_inputs(41) if "join" in query else [[batch[0]] for batch in events(42)]
    inputs = [streams.input(f"{query} {i}", EVENTS) for i in range(len(batches[0]))]
    # What was there before is written once more, with the same name and time: Spark has seen it.
    for batch in batches if part else batches[: len(batches) // 2]:
        for source, rows in zip(inputs, batch, strict=True):
            source.add(rows)
    frame = build([source.stream(streams.spark) for source in inputs])
    streams.run(frame, query, mode=mode, provider=provider, output=output)


def main(provider: str, url: str, folder: str, parts: str, *queries: str) -> int:
    spark = session(url, Path(folder))
    for query in queries:
        output: Output = {}
        result: dict[str, object] = {"query": query, "output": output}
        try:
            for part in parts:
                run(Streams(spark, Path(folder)), query, int(part), provider, output)
        except PySparkException as error:
            result["error"] = str(error)
        print(json.dumps(result), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
