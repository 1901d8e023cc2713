"""A query whose figures Spark's own endpoint shows: `python -m tests.spark.gauges_job FOLDER URL`.

Prints the names and values that begin with our source's name, as JSON: while the query runs; after
it has ended; and in a second session, which began when the first was stopped amid a query, with two
queries of one name.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from tests.spark.streams import Input
from tests.spark.test_checkpoints import NAME, batch, counted
from tests.support.waiting import wait_until
from tools.jvm import SHORT_LIVED

SERVLET = "spark.metrics.conf.*.sink.prometheusServlet"
BATCH = "metrics_job_driver_redisState_counts_of_events_batch_Value"


def session(folder: Path, url: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state gauges")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", " ".join(SHORT_LIVED))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.metrics.namespace", "job")
        .config(f"{SERVLET}.class", "org.apache.spark.metrics.sink.PrometheusServlet")
        .config(f"{SERVLET}.path", "/metrics/prometheus")
    )
    return redis_state.configure(builder, url=url).getOrCreate()


def figures(spark: SparkSession) -> dict[str, float]:
    """Metrics that our source reports to Prometheus."""
    url = f"{spark.sparkContext.uiWebUrl}/metrics/prometheus"
    with urllib.request.urlopen(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    words = [line.rsplit(" ", 1) for line in lines if "redisState" in line]
    return {name.partition("{")[0]: float(value) for name, value in words}


def started(spark: SparkSession, source: Input, checkpoint: Path, name: str) -> StreamingQuery:
    """A query that has done all batches, and waits for more."""
    query = (
        counted(source, spark)
        .writeStream.queryName(name)
        .outputMode("complete")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.processAllAvailable()
    return query


def main() -> None:
    folder, url = Path(sys.argv[1]), sys.argv[2]
    spark = session(folder, url)
    spark.sparkContext.setLogLevel("ERROR")
    source = Input(folder / "events", "k string, v long")
    for number in range(2):
        source.add(batch(number))
    query = started(spark, source, folder / "checkpoint", f"{NAME}.of events")
    wait_until(lambda: figures(spark).get(BATCH) == 1, "the figures of the second batch")
    print(json.dumps(figures(spark)), flush=True)
    query.stop()
    wait_until(lambda: not figures(spark), "the gauges of the query to go")
    print(json.dumps(figures(spark)), flush=True)
    started(spark, source, folder / "stopped", "stopped")
    wait_until(lambda: bool(figures(spark)), "the gauges of a query whose session is stopped")
    spark.stop()

    spark = session(folder, url)
    spark.sparkContext.setLogLevel("ERROR")
    for number, one in enumerate((spark, spark.newSession())):
        started(one, source, folder / f"twin-{number}", "twin")
        wait_until(lambda: batches(figures(spark)) == number + 1, "the gauges of a query")  # noqa: B023  # waited for here
    print(json.dumps(figures(spark)), flush=True)
    spark.stop()


def batches(found: dict[str, float]) -> int:
    """Number of queries in the metrics."""
    return sum(name.endswith("_batch_Value") for name in found)


if __name__ == "__main__":
    main()
