"""`readStream` of the changes of a running query: replayed they are its state, in whole queries."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from redis_state.spark.live.change_stream import has_limits
from tests.spark.streams import STARTS, WORKER_LATE, Streams, run_to_end
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


class Counts:
    """A query that counts keys in windows and forgets old ones, so that keys go, too."""

    def __init__(self, streams: Streams, url: str) -> None:
        self.source = streams.input("counted", "k string, at timestamp")
        rows = self.source.stream(streams.spark).withWatermark("at", "1 minute")
        self.frame = rows.dropDuplicatesWithinWatermark(["k"])
        self.batches = 0
        self.id = ""
        self._dice = random.Random(5)
        self._streams = streams
        self._url = url

    def run(self, batches: int) -> None:
        """Runs that many batches, and waits until a reader sees the last one."""
        for _ in range(batches):
            minute = self.batches
            keys = self._dice.sample(range(30), 10)
            at = f"2024-01-01T00:{minute:02}:00.000Z"
            self.source.add({"k": f"k{key}", "at": at} for key in keys)
            self.batches += 1
        query = self._streams.run(self.frame, "counts", mode="append")
        self.id = str(query.id)
        progress = query.lastProgress
        assert progress is not None
        last = progress.batchId
        with redis_state.connect(self._url) as reader:
            found = reader.query(self.id)
            wait_until(lambda: found.status().confirmed_batch == last, "the batch is confirmed")

    def state(self) -> dict[str, int]:
        with redis_state.connect(self._url) as reader:
            rows = reader.query(self.id).operator().items()
            return {key["k"]: value["expiresAtMicros"] for key, value in rows}


class Replica:
    """A sink that applies changes.

    Attributes:
        seen: How often each change of a key came, those of a batch that failed left out.
        fails: Fail behind the rows of this batch, once.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.seen: Counter[tuple[int, str]] = Counter()
        self.runs: list[int] = []
        self.parts: list[int] = []
        self.fails: int | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        found = batch.sort("batch").collect()
        self.parts.append(batch.rdd.getNumPartitions())
        if self.fails == number:
            self.fails = None
            raise ValueError("the sink is away")
        self.runs.append(number)
        for row in found:
            self.seen[row["batch"], row["key"]["k"]] += 1
            if row["change"] == "removed":
                assert row["value"] is None
                self.rows.pop(row["key"]["k"], None)
            else:
                self.rows[row["key"]["k"]] = row["value"]["expiresAtMicros"]


@pytest.fixture
def counts(streams: Streams, shared_redis_server: RedisServer) -> Counts:
    return Counts(streams, shared_redis_server.url)


def changes(spark: SparkSession, counts: Counts, url: str, **options: str) -> DataFrame:
    given = {"url": url, "query": counts.id, "since": "start", **options}
    return spark.readStream.format("redis_state").options(**given).load()


def follow(streams: Streams, frame: DataFrame, replica: Replica) -> StreamingQuery:
    """Applies the changes that there are."""
    writer = frame.writeStream.foreachBatch(replica).trigger(availableNow=True)
    return run_to_end(writer.option("checkpointLocation", str(streams.checkpoint("replica"))).start)


@pytest.mark.compatibility("data source redis_state", "readStream of changes")
def test_replayed_changes_are_the_state_over_restarts(
    spark: SparkSession,
    streams: Streams,
    counts: Counts,
    shared_redis_server: RedisServer,
) -> None:
    replica = Replica()
    counts.run(2)
    frame = changes(spark, counts, shared_redis_server.url)
    follow(streams, frame, replica)
    assert replica.rows == counts.state()
    assert replica.parts[-1] == 2
    # A batch whose sink fails is repeated as it was, though the state has gone on.
    counts.run(1)
    replica.fails = replica.runs[-1] + 1
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        follow(streams, frame, replica)
    counts.run(1)
    follow(streams, frame, replica)
    if not has_limits():
        # There a run is one micro-batch, and this one was the repeated one.
        follow(streams, frame, replica)
    assert replica.rows == counts.state()
    assert set(replica.seen.values()) == {1}
    before = len(replica.seen)
    follow(streams, frame, replica)
    assert len(replica.seen) == before


def test_batch_limit_applies_to_each_micro_batch(
    spark: SparkSession,
    streams: Streams,
    counts: Counts,
    shared_redis_server: RedisServer,
) -> None:
    if not has_limits():
        pytest.skip("Spark 4.0 and 4.1 hand no limits to Python")
    counts.run(1)
    options = {"since": "0", "maxBatchesPerTrigger": "1"}
    frame = changes(spark, counts, shared_redis_server.url, **options)
    replica = Replica()
    counts.run(3)
    follow(streams, frame, replica)
    batches = sorted({number for number, _ in replica.seen})
    assert len(batches) > 1
    # A micro-batch for each batch that could be seen, also for one that changed nothing.
    assert len(replica.runs) >= len(batches)


def test_running_stream_follows_and_ends_with_advice(
    spark: SparkSession,
    streams: Streams,
    counts: Counts,
    shared_redis_server: RedisServer,
) -> None:
    counts.run(1)
    frame = changes(spark, counts, shared_redis_server.url)
    replica = Replica()
    writer = frame.writeStream.foreachBatch(replica)
    writer = writer.option("checkpointLocation", str(streams.checkpoint("replica")))
    query = writer.start()

    def has_ended_or_come_as_far() -> bool:
        return replica.rows == counts.state() or not query.isActive

    try:
        counts.run(2)
        for _ in range(STARTS):
            wait_until(has_ended_or_come_as_far, "the stream has come as far")
            if query.isActive or WORKER_LATE not in str(query.exception()):
                break
            query = writer.start()
        assert replica.rows == counts.state()
        shared_redis_server.client().flushdb()
        with pytest.raises(StreamingQueryException, match=r"REDIS_NOT_FOUND|REDIS_STATE_LOST"):
            query.awaitTermination(120)
    finally:
        query.stop()


def test_stream_without_since_is_refused(
    spark: SparkSession, streams: Streams, counts: Counts, shared_redis_server: RedisServer
) -> None:
    counts.run(1)
    options = {"url": shared_redis_server.url, "query": counts.id}
    frame = spark.readStream.format("redis_state").options(**options).load()
    with pytest.raises(StreamingQueryException, match="the start of the stream is not set"):
        follow(streams, frame, Replica())
