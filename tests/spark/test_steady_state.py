"""What a query costs once it runs: round trips, keys, and the metrics that tell of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.streams import PROVIDER, REDIS, Input, Streams
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PREFIX = "spark.sql.streaming.stateStore.redis."
PARTITIONS = 2
KEYS = 8
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
        "Snapshots",
        "LocalBytes",
    ]
}


class Running:
    """One query that goes on, fed batch by batch, on a server that nothing else uses."""

    def __init__(self, source: Input, query: StreamingQuery, server: RedisServer) -> None:
        self.source = source
        self.query = query
        self.server = server

    def feed(self, batches: int) -> None:
        for _ in range(batches):
            self.source.add([{"k": f"k{i}"} for i in range(KEYS)])
        self.query.processAllAvailable()

    def calls(self) -> dict[str, int]:
        with self.server.client() as client:
            stats = client.info("commandstats")
        names = ("multi", "exec", "evalsha", "eval")
        return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names}

    def footprint(self) -> int:
        """Keys without expiry, and the fields of their hashes."""
        total = 0
        with self.server.client() as client:
            for key in client.scan_iter(count=1000):
                if client.ttl(key) == -1:
                    total += 1 + (client.hlen(key) if client.type(key) == b"hash" else 0)
        return total

    def await_maintenance(self) -> None:
        """Until two passes after this call have begun, so that one of them is over."""
        self._await_evalsha()
        self._await_evalsha()

    def _await_evalsha(self) -> None:
        # Between batches nothing but maintenance runs scripts; a pass is a burst of them.
        before = self.calls()["evalsha"]
        end = time.monotonic() + 15
        while self.calls()["evalsha"] == before:
            assert time.monotonic() < end, "no maintenance within 15 s"
            time.sleep(0.1)
        time.sleep(0.5)


@pytest.fixture
def start(
    spark: SparkSession, streams: Streams, redis_server: RedisServer
) -> Iterator[Callable[..., Running]]:
    before: dict[str, str | None] = {}
    queries: list[StreamingQuery] = []

    def start(**options: str) -> Running:
        for name, value in {"url": redis_server.url, **options}.items():
            before[PREFIX + name] = spark.conf.get(PREFIX + name, None)
            spark.conf.set(PREFIX + name, value)
        spark.conf.set(PROVIDER, REDIS)
        source = streams.input("events", "k string")

        def keep(batch: DataFrame, _batch_id: int) -> None:
            batch.collect()

        writer = source.stream(spark).groupBy("k").count().writeStream.outputMode("update")
        query = (
            writer.option("checkpointLocation", str(streams.checkpoint("steady")))
            .foreachBatch(keep)
            .start()
        )
        queries.append(query)
        return Running(source, query, redis_server)

    yield start
    for query in queries:
        query.stop()
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def test_two_round_trips_a_batch_and_store(start: Callable[..., Running]) -> None:
    """Redis counts the commits exactly, and the scripts exactly where no maintenance came between.

    A batch is one `open`, by hash, and one `MULTI … EXEC` with two scripts in it, by text.
    Maintenance only adds scripts, never a transaction; so every window has at least these, and
    one without maintenance has no more.
    """
    running = start()
    running.feed(4)
    window = 2
    stores = window * PARTITIONS
    extra = []
    for _ in range(8):
        before = running.calls()
        running.feed(window)
        after = running.calls()
        change = {name: after[name] - before[name] for name in after}
        assert change["exec"] == change["multi"] == stores, change
        extra.append((change["evalsha"] - stores, change["eval"] - 2 * stores))
    assert min(extra) == (0, 0), extra
    assert min(more for pair in extra for more in pair) == 0, extra
    # The stores' own count, which has maintenance of the time before the batch in it.
    trips = [
        progress.stateOperators[0].customMetrics["redisStateRoundTrips"]
        for progress in running.query.recentProgress[4:]
        if progress.numInputRows
    ]
    assert min(trips) == 2 * PARTITIONS, trips


def test_redis_holds_no_more_after_150_batches_than_after_75(
    start: Callable[..., Running],
) -> None:
    running = start(versionsToRetain="5")
    footprints = []
    for _ in range(2):
        running.feed(75)
        running.await_maintenance()
        footprints.append(running.footprint())
    print(footprints)
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
