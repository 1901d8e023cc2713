"""Checkpoints that are not meant to stay: every key has a time to live, which the query renews."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.spark.streams import PROVIDER, REDIS, Streams
from tests.spark.test_checkpoints import Job, batch, counted
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
SHARED = b"{rs}:c"  # the list of checkpoints


def expiries(server: RedisServer) -> dict[bytes, int]:
    """Milliseconds that each key of a checkpoint has left; -1 for those that stay."""
    with server.client() as client:
        keys = [key for key in client.scan_iter(count=1000) if key != SHARED]
        return {key: client.pttl(key) for key in keys}


def beat(spark: SparkSession, url: str) -> None:
    """Sends the heartbeat that a thread sends to this server every minute."""
    registry = getattr(
        spark.sparkContext._jvm,  # no public name leads there
        "org.apache.spark.sql.redisstate.executor.ExecutorRegistry",
    )
    registry.beat(url)


def test_a_temporary_checkpoint_expires_unless_its_query_runs(
    spark: SparkSession,
    streams: Streams,
    redis_conf: Callable[..., None],
    redis_server: RedisServer,
) -> None:
    redis_conf({"url": redis_server.url})
    spark.conf.set(PROVIDER, REDIS)
    source = streams.input("events", "k string, v long")
    writer = counted(source, spark).writeStream.outputMode("update").format("noop")
    query = writer.start()  # without a checkpointLocation Spark makes a folder of its own
    try:
        for number in range(3):
            source.add(batch(number))
        query.processAllAvailable()
        left = expiries(redis_server)
        assert len(left) >= 5
        assert {key: ms for key, ms in left.items() if not 0 < ms <= HOUR_MS} == {}

        with redis_server.client() as client:
            for key in left:
                client.pexpire(key, 60_000)
        beat(spark, redis_server.url)
        soon = {key for key, ms in expiries(redis_server).items() if ms <= 60_000}
        # The registration of an instance is renewed for a minute only.
        assert {key for key in soon if b"}:i:" not in key} == set()
    finally:
        query.stop()


def test_permanent_run_keeps_the_state_of_an_ephemeral_one(
    streams: Streams, redis_conf: Callable[..., None], redis_server: RedisServer
) -> None:
    redis_conf({"url": redis_server.url, "ephemeral": "true"})
    job = Job(streams)
    job.feed(2)
    job.run()
    assert {key for key, ms in expiries(redis_server).items() if ms == -1} == set()

    redis_conf({"ephemeral": "false"})
    job.feed(1)
    job.run()
    job.check()
    kept = {key for key, ms in expiries(redis_server).items() if ms == -1}
    assert {key for key in kept if key.endswith(b":m")}
    published = {key for key in expiries(redis_server) if b":d:" in key}
    assert published - kept == set()
