"""The capacity plan against a query of Spark, until retention has set in."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from time import monotonic

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from redis_state.status.capacity import Workload, plan
from tests.spark.streams import PROVIDER, REDIS, Streams
from tests.spark.test_steady_state import maintenance_every
from tests.support.capacity import MINUTE_MS, SimulatedTime, compressed
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

__all__ = ["maintenance_every"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OFF_MAX = 0.2
ROWS, UPDATES, RETAINED, EACH_MINUTE, PARTITIONS = 4_000, 400, 6, 3, 2
BATCHES = 80
COLUMNS = 3  # of the value
ROW_BYTES = 8 + 8 + 8 + 8 * COLUMNS


def passes(server: RedisServer) -> int:
    """Number of manifests that were read; between two batches only maintenance reads them."""
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])


def has_passed(server: RedisServer, enough: int) -> bool:
    """Returns whether maintenance has read so many manifests."""
    return passes(server) >= enough


def test_memory_and_network_of_a_query_are_within_20_percent(
    spark: SparkSession,
    streams: Streams,
    redis_server: RedisServer,
    maintenance_every: Callable[[str], None],
    redis_conf: Callable[[dict[str, str]], None],
) -> None:
    maintenance_every("200ms")
    redis_conf({"url": redis_server.url, "versionsToRetain": str(RETAINED)})
    spark.conf.set(PROVIDER, REDIS)
    chance = random.Random(5)
    source = streams.input("events", "k long, v long")
    sums = [sf.sum("v").alias("sum"), sf.count("*").alias("n"), sf.max("v").alias("most")]
    writer = source.stream(spark).groupBy("k").agg(*sums).writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", str(streams.checkpoint("plan"))).format("noop")
    memory: list[int] = []
    received = 0
    query = writer.start()
    try:
        with redis_server.client() as client:
            time = SimulatedTime(client)
            for batch in range(BATCHES):
                began_s = monotonic()
                keys = range(ROWS) if not batch else chance.sample(range(ROWS), UPDATES)
                before = time.traffic()
                source.add([{"k": k, "v": chance.randrange(10_000)} for k in keys])
                query.processAllAvailable()
                # The first pass may have begun before the batch ended.
                enough = passes(redis_server) + 3 * PARTITIONS
                wait_until(partial(has_passed, redis_server, enough), "maintenance")
                if batch >= BATCHES // 2:
                    received += time.traffic().since(before).received
                    memory.append(time.used())
                # On the server's clock the batch has taken its own time already.
                passed_ms = round((monotonic() - began_s) * 1000)
                time.pass_ms(max(0, MINUTE_MS // EACH_MINUTE - passed_ms))
            work = Workload(
                ROWS,
                ROW_BYTES,
                UPDATES,
                EACH_MINUTE,
                compression=compressed(client) / ROW_BYTES,
                versions_to_retain=RETAINED,
                partitions=PARTITIONS,
                maintenance_s=60 / EACH_MINUTE,
            )
    finally:
        query.stop()
    planned = plan(work)
    pairs = {
        "memory": (planned.memory_bytes, sum(memory) / len(memory)),
        "received": (planned.network_in_bytes_s * 60 / EACH_MINUTE, received / len(memory)),
    }
    off = {name: one / real - 1 for name, (one, real) in pairs.items()}
    assert all(abs(one) <= OFF_MAX for one in off.values()), (off, pairs)
