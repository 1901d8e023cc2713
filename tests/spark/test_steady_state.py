"""Cost of a running query: round trips, keys, and the metrics of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.streams import PREFIX, PROVIDER, REDIS, Input, Streams
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import unload_stores

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARTITIONS = 2
KEYS = 8
CYCLE = 4
"""Versions from one snapshot to the next, when maintenance comes after each of them."""

METRICS = {
    "redisState" + name
    for name in [
        "RowsWritten",
        "RowsRemoved",
        "BytesSent",
        "BytesRead",
        "RoundTrips",
        "OpenMs",
        "LoadMs",
        "CommitMs",
        "MaintenanceMs",
        "CacheHits",
        "CacheMisses",
        "BucketsLoaded",
        "BucketsReloaded",
        "BucketsPrefetched",
        "BucketsLate",
        "FilterSkips",
        "Snapshots",
        "FileReads",
        "FileReadMs",
        "FileBytes",
        "DiskHits",
        "MovedBytes",
        "LocalBytes",
        "InternalKeys",
    ]
}


class Running:
    """One query that goes on, fed batch by batch, on a server that nothing else uses."""

    def __init__(
        self, source: Input, query: StreamingQuery, server: RedisServer, partitions: int
    ) -> None:
        self.source = source
        self.query = query
        self.server = server
        self.partitions = partitions

    def feed(self, batches: int) -> None:
        for _ in range(batches):
            self.source.add([{"k": f"k{i}"} for i in range(KEYS)])
        self.query.processAllAvailable()

    def calls(
        self, names: tuple[str, ...] = ("multi", "exec", "evalsha", "eval")
    ) -> dict[str, int]:
        with self.server.client() as client:
            stats = client.info("commandstats")
        return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names}

    def footprint(self) -> int:
        """Keys without expiry, and the fields of their hashes."""
        total = 0
        with self.server.client() as client:
            for key in client.scan_iter(count=1000):
                if client.ttl(key) == -1:
                    total += 1 + (client.hlen(key) if client.type(key) == b"hash" else 0)
        return total

    def settled(self) -> int:
        """The footprint when further passes of maintenance change nothing."""
        end = time.monotonic() + 60
        seen = -1
        while (now := self.footprint()) != seen:
            seen = now
            # Between batches only maintenance looks at manifests, once a store and pass at least.
            looks = ("hgetall",)
            enough = self.calls(looks)["hgetall"] + 4 * self.partitions
            while self.calls(looks)["hgetall"] < enough:
                assert time.monotonic() < end, "maintenance does not come or does not settle"
                time.sleep(0.05)
        return now


@pytest.fixture
def maintenance_every(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Sets the interval of maintenance; Spark reads it when it loads a first store."""
    name = "spark.sql.streaming.stateStore.maintenanceInterval"
    before = spark.conf.get(name)
    assert before is not None

    def use(interval: str) -> None:
        unload_stores(spark)
        spark.conf.set(name, interval)

    yield use
    use(before)


@pytest.fixture
def start(
    spark: SparkSession, streams: Streams, redis_server: RedisServer
) -> Iterator[Callable[..., Running]]:
    before: dict[str, str | None] = {}
    queries: list[StreamingQuery] = []

    def start(partitions: int = PARTITIONS, **options: str) -> Running:
        confs = {PREFIX + name: value for name, value in options.items()}
        confs[PREFIX + "url"] = redis_server.url
        confs["spark.sql.shuffle.partitions"] = str(partitions)
        confs["spark.sql.codegen.wholeStage"] = "false"  # no batch is worth a compilation
        for name, value in confs.items():
            before[name] = spark.conf.get(name, None)
            spark.conf.set(name, value)
        spark.conf.set(PROVIDER, REDIS)
        source = streams.input("events", "k string")

        writer = source.stream(spark).groupBy("k").count().writeStream.outputMode("update")
        query = (
            writer.option("checkpointLocation", str(streams.checkpoint("steady")))
            .format("noop")
            .start()
        )
        queries.append(query)
        return Running(source, query, redis_server, partitions)

    yield start
    for query in queries:
        query.stop()
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def test_each_store_needs_two_round_trips_a_batch(
    maintenance_every: Callable[[str], None], start: Callable[..., Running]
) -> None:
    """A batch is one `open`, and one `MULTI … EXEC` with `publish` in it, both by their hashes."""
    maintenance_every("1h")
    running = start()
    running.feed(4)
    for _ in range(3):
        before = running.calls()
        running.feed(2)
        after = running.calls()
        stores = 2 * PARTITIONS
        assert {name: after[name] - before[name] for name in after} == {
            "multi": stores,
            "exec": stores,
            "evalsha": 2 * stores,
            "eval": 0,
        }
    trips = [
        progress.stateOperators[0].customMetrics["redisStateRoundTrips"]
        for progress in running.query.recentProgress[4:]
        if progress.numInputRows
    ]
    assert set(trips) == {2 * PARTITIONS}, trips


@pytest.mark.parametrize("batches", [25, pytest.param(150, marks=pytest.mark.long)])
def test_redis_holds_no_more_after_twice_as_many_batches(
    maintenance_every: Callable[[str], None], start: Callable[..., Running], batches: int
) -> None:
    maintenance_every("50ms")
    retained = 3
    running = start(partitions=1, versionsToRetain=str(retained))
    footprints = []
    for _ in range(2):
        # A snapshot is due every fourth version; when maintenance comes late, it comes later. Where
        # it comes after each version what is kept repeats every four versions, as soon as the
        # oldest snapshot kept is one of these. The most of such a cycle does not depend on chance.
        slow = retained + 2 * CYCLE
        running.feed(batches - slow)
        seen = []
        for _ in range(slow):
            running.feed(1)
            seen.append(running.settled())
        footprints.append(max(seen[-CYCLE:]))
    assert running.query.lastProgress is not None
    assert running.query.lastProgress.batchId >= 2 * batches - 1
    assert footprints[1] <= footprints[0], footprints


def test_metrics_are_in_the_progress(start: Callable[..., Running]) -> None:
    running = start()
    running.feed(2)
    found = [p for p in running.query.recentProgress if p.numInputRows]
    assert len(found) == 2
    for progress in found:
        metrics = progress.stateOperators[0].customMetrics
        assert set(metrics) >= METRICS, METRICS - set(metrics)
        assert metrics["redisStateRowsWritten"] == KEYS
        assert metrics["redisStateBytesSent"] > 0
        assert metrics["redisStateLocalBytes"] > 0
