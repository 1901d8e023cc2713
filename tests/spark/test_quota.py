"""A query whose state reaches its limit stops, says so, and goes on once it may have more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from redis_state import connect, keys
from tests.spark.test_checkpoints import NAME, Job, counted, failure, job
from tests.spark.test_ephemeral import beat
from tests.support.redis_server import RedisServer

__all__ = ["job"]
pytestmark = pytest.mark.spark


def size(server: RedisServer) -> int:
    with connect(server.url) as reader:
        (status,) = reader.status()
        return status.bytes


def newest_versions(server: RedisServer) -> list[int]:
    with connect(server.url) as reader:
        (status,) = reader.status()
        return [one.newest for store in status.stores for one in store.partitions]


def age(server: RedisServer) -> None:
    """As if the state had been measured long ago."""
    with server.client() as client:
        for gen, text in client.hgetall(keys.sizes()).items():
            client.hset(keys.sizes(), gen, json.dumps({**json.loads(text), "at": 0}))


def test_query_stops_at_its_limit_and_continues_with_a_higher_one(
    job: Job,
    spark: SparkSession,
    redis_conf: Callable[[dict[str, str]], None],
    redis_server: RedisServer,
) -> None:
    redis_conf({"url": redis_server.url})
    job.feed(4)
    job.run()
    used = size(redis_server)

    # While it runs: the heartbeat measures, the next batch is refused.
    limit = used + used // 2
    redis_conf({"stateBytesMax": f"{limit}b"})
    begun: list[int] = []

    def measured(batch: DataFrame, number: int) -> None:
        begun.append(number)
        age(redis_server)
        beat(spark, redis_server.url)
        batch.collect()

    job.feed(7)
    query = (
        counted(job.source, spark)
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(job.streams.checkpoint(NAME)))
        .foreachBatch(measured)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException) as refused:
        query.awaitTermination()
    said = str(refused.value)
    assert "[REDIS_QUOTA]" in said
    # Maintenance may drop versions after the look that refused.
    found = re.search(r"(\d+) bytes in Redis, and the option stateBytesMax allows (\d+)", said)
    assert found is not None
    held = int(found[1])
    assert int(found[2]) == limit
    assert "Largest of this query: operator 0 partition" in said
    # A batch was between two looks, and no more.
    assert limit <= held <= limit + used
    assert 4 < begun[-1] < 10

    # A start is refused as well, before it writes a version; maintenance may go on.
    newest = newest_versions(redis_server)
    age(redis_server)
    assert "[REDIS_QUOTA]" in failure(job.run)
    assert newest_versions(redis_server) == newest

    with connect(redis_server.url) as reader:
        (status,) = reader.status()
        assert status.bytes_max == limit
        assert status.limit_share is not None
        assert status.limit_share >= 1

    redis_conf({"stateBytesMax": "1g"})
    job.run()
    job.check()


def test_query_with_a_damaged_registry_is_not_counted(
    job: Job,
    redis_conf: Callable[[dict[str, str]], None],
    redis_server: RedisServer,
) -> None:
    neighbour = "f" * 32
    with redis_server.client() as client:
        client.hset(keys.checkpoints(), neighbour, "{}")
        client.hset(keys.query(neighbour), "op:0:default", "damaged")
    redis_conf({"url": redis_server.url, "prefixBytesMax": "1g"})
    job.feed(2)
    job.run()
    job.check()
    with redis_server.client() as client:
        # It has an entry, so that it is not measured at each look.
        assert json.loads(client.hget(keys.sizes(), neighbour) or b"")["bytes"] == 0
