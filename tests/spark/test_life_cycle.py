"""Spark's settings of a provider's life cycle change no answer: it equals that of Spark's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.streams import PROVIDER, REDIS, ROCKSDB, Output, Row, Streams
from tests.support.redis_server import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

STORE = "spark.sql.streaming.stateStore."
SCHEMA = "k string, v long"
BATCHES: Sequence[Sequence[Sequence[Row]]] = [
    [[{"k": f"k{(number + i) % 5}", "v": number * 10 + i} for i in range(8)]] for number in range(6)
]


@pytest.fixture
def spark_conf(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets any conf of Spark's for one test."""
    before: dict[str, str | None] = {}

    def use(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield use
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def counted(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].groupBy("k").agg(sf.sum("v").alias("sum"), sf.count("*").alias("n"))


@pytest.mark.parametrize(
    "conf",
    ["unloadOnCommit", "commitValidation.enabled", "rowChecksum.enabled"],
)
def test_life_cycle_settings_change_no_answer(
    conf: str, streams: Streams, spark_conf: Callable[[str, str], None]
) -> None:
    spark_conf(STORE + conf, "true")
    streams.same_on_both(counted, [SCHEMA], BATCHES, oracle=ROCKSDB)


def test_unloaded_store_loads_each_version(
    streams: Streams, spark_conf: Callable[[str, str], None]
) -> None:
    spark_conf(STORE + "unloadOnCommit", "true")
    query, _ = run(streams)
    metrics = [custom(progress.json) for progress in query.recentProgress]
    assert [batch["redisStateCacheHits"] for batch in metrics] == [0] * len(BATCHES)
    assert all(batch["redisStateCacheMisses"] == 2 for batch in metrics)


def test_progress_has_the_newest_snapshots(
    streams: Streams, spark_conf: Callable[[str, str], None]
) -> None:
    spark_conf(STORE + "numStateStoreInstanceMetricsToReport", "4")
    query, output = run(streams)
    last = custom(query.recentProgress[-1].json)
    snapshots = {name: value for name, value in last.items() if "SnapshotLastUploaded" in name}
    assert set(snapshots) == {f"SnapshotLastUploaded.partition_{i}_default" for i in range(2)}
    assert all(-1 <= value <= len(BATCHES) for value in snapshots.values())
    assert len(output) == len(BATCHES)


def run(streams: Streams) -> tuple[StreamingQuery, Output]:
    source = streams.input("events", SCHEMA)
    for batch in BATCHES:
        source.add(batch[0])
    output: Output = {}
    query = streams.run(counted([source.stream(streams.spark)]), "counts", output=output)
    return query, output


def custom(progress: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(progress)["stateOperators"][0]["customMetrics"]
    return found


def test_query_stopped_during_its_start_removes_the_listener(
    streams: Streams, redis_conf: Callable[[dict[str, str]], None]
) -> None:
    """The query waits for a server that does not answer when it is stopped."""
    spark = streams.spark
    redis_conf({"url": f"redis://127.0.0.1:{free_port()}", "deadline": "60s"})
    spark.conf.set(PROVIDER, REDIS)
    source = streams.input("events", SCHEMA)
    writer = counted([source.stream(spark)]).writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", str(streams.checkpoint("stopped")))
    before = listeners(spark)
    assert any(name.endswith("RedisStateQueryListener") for name in before)
    starting = threading.Thread(target=writer.start)
    starting.start()
    wait_until(lambda: bool(spark.streams.active), "the query to start")
    wait_until(lambda: "onQueryStarted" in stacks(spark), "the listener to be told")
    spark.streams.active[0].stop()
    starting.join()
    assert listeners(spark) == before


def listeners(spark: SparkSession) -> list[str]:
    found = spark._jsparkSession.streams().listListeners()
    return [one.getClass().getName() for one in found]


def stacks(spark: SparkSession) -> str:
    """Stack frames of the JVM's threads that run queries."""
    jvm = spark._jvm
    assert jvm is not None
    found = jvm.java.lang.Thread.getAllStackTraces()
    return "\n".join(
        str(frame)
        for thread in found.keySet()
        if thread.getName().startswith("stream execution")
        for frame in found.get(thread)
        if "RedisStateQueryListener" in frame.getClassName()
    )
