"""Bytes in Redis that nobody of ours wrote, and rows that are too large: named, never misread."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.spark.streams import Streams
from tests.spark.test_checkpoints import Job
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

MIB = 1 << 20


def blocks(server: RedisServer) -> dict[tuple[bytes, bytes], bytes]:
    """Each block of each published segment, by key and field."""
    found: dict[tuple[bytes, bytes], bytes] = {}
    with server.client() as client:
        for key in client.scan_iter(count=1000):
            if b":d:" in key or b":s:" in key:
                found |= {(key, field): block for field, block in client.hgetall(key).items()}
    return found


def plant(server: RedisServer, planted: dict[tuple[bytes, bytes], bytes]) -> None:
    with server.client() as client:
        for (key, field), block in planted.items():
            client.hset(key, field, block)


def test_damaged_and_foreign_blocks_are_named_and_not_read(
    streams: Streams, redis_conf: Callable[..., None], redis_server: RedisServer
) -> None:
    redis_conf({"url": redis_server.url})
    job = Job(streams)
    job.feed(2)
    job.run()
    good = blocks(redis_server)
    assert good
    job.feed(1)
    damages: dict[str, Callable[[bytes], bytes]] = {
        "truncated": lambda block: block[:-3],
        "empty": lambda block: block[:0],
        "foreign": lambda block: b"of another program"[: len(block)],
        "one bit": lambda block: block[:-1] + bytes([block[-1] ^ 1]),
    }
    for name, damage in damages.items():
        plant(redis_server, {place: damage(block) for place, block in good.items()})
        with pytest.raises(StreamingQueryException) as caught:
            job.run()
        assert "[REDIS_FORMAT]" in str(caught.value), name
    plant(redis_server, good)
    job.run()
    job.check()


def failure_of_key_or_value(streams: Streams, *, key_bytes: int, value_bytes: int) -> str:
    source = streams.input("events", "k string")
    source.add([{"k": "x"}])
    frame = source.stream(streams.spark)
    key, value = (sf.repeat("k", sf.lit(size)) for size in (key_bytes, value_bytes))
    counts = frame.groupBy(key.alias("k")).agg(sf.max(value).alias("v")).select(sf.length("v"))
    with pytest.raises(StreamingQueryException) as caught:
        streams.run(counts, "large")
    return str(caught.value)


def test_key_above_the_limit_is_named(streams: Streams) -> None:
    message = failure_of_key_or_value(streams, key_bytes=MIB, value_bytes=1)
    assert "[REDIS_LIMIT]" in message
    assert "key of" in message


def test_value_above_the_limit_is_named(streams: Streams, spark: SparkSession) -> None:
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    assert partitions is not None
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        message = failure_of_key_or_value(streams, key_bytes=1, value_bytes=64 * MIB)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
    assert "[REDIS_LIMIT]" in message
    assert "value of" in message
