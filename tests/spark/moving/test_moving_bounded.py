"""Moves with `redisMemory` far below the state: rows go into files, and Redis stays below it."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

import redis_state
from redis_state.errors import ConfigError
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from tests.spark.streams import HDFS, REDIS, Output, Streams
from tests.spark.test_redis_memory import SCHEMA, newest
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SHARE = 1 << 20
ROWS, PAD = 6000, 750
"""Of both partitions together 4.5 MB that hardly compress: two shares each."""


def memory(partitions: int) -> str:
    return f"{partitions * (SHARE + (64 << 10)) >> 10}k"


def size(text: str) -> int:
    return int(text[:-1]) << 10


class Moved:
    """A query beside one that never moves."""

    def __init__(self, streams: Streams, url: str) -> None:
        self.streams, self.url, self.spark = streams, url, streams.spark
        self.dice = random.Random(5)
        self.inputs = {one: streams.input(one, SCHEMA) for one in ("stays", "moves")}
        self.outputs: dict[str, Output] = {one: {} for one in self.inputs}

    def rows(self, count: int) -> list[dict[str, str]]:
        def pad() -> str:
            return base64.b64encode(self.dice.randbytes(PAD)).decode()

        return [{"k": f"k{self.dice.randrange(20_000)}", "pad": pad()} for _ in range(count)]

    def run(self, name: str, provider: str, count: int) -> None:
        """Runs one batch of both queries, whose rows are the same."""
        rows = self.rows(count)
        for one, at, of in (("stays", "stays", HDFS), ("moves", name, provider)):
            self.inputs[one].add(rows)
            frame = newest([self.inputs[one].stream(self.spark)])
            self.streams.run(frame, at, provider=of, output=self.outputs[one])
        given = [[rows for rows in self.outputs[one].values() if rows] for one in self.outputs]
        assert given[0] == given[1]

    def checkpoint(self, name: str) -> str:
        return str(self.streams.checkpoint(name))

    def files(self, name: str) -> list[Path]:
        """Returns the files of the checkpoint that the folder has now."""
        folder = self.streams.checkpoint(name)
        gen = gen_of(folder_at(str(folder)))
        return list((folder / "state" / "_redis_state_segments" / gen).glob("*/*.seg"))

    def segments(self, prefix: str) -> int:
        """Returns the number of segments in Redis."""
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            keys: Any = client.scan_iter(f"{{{prefix}:rs:*", count=1000)
            return sum(key.split("}:")[1][0] in "dsn" for key in keys)


@pytest.fixture
def moved(streams: Streams, spark: SparkSession, shared_redis_server: RedisServer) -> Any:
    partitions = "spark.sql.shuffle.partitions"
    with kept(spark, partitions):
        spark.conf.set(partitions, "2")
        query = Moved(streams, shared_redis_server.url)
        query.run("old", HDFS, ROWS)
        yield query


def test_migrated_rescaled_and_repaired_state_passes_redis_by(
    moved: Moved, redis_conf: Callable[[dict[str, str]], None]
) -> None:
    spark, url = moved.spark, moved.url
    small: dict[str, Any] = {"key_prefix": "small", "redis_memory": "2m"}
    with pytest.raises(ConfigError, match="too few for the 2 partitions"):
        redis_state.migrate(
            spark, moved.checkpoint("old"), moved.checkpoint("new"), to=url, **small
        )
    options: dict[str, Any] = {"key_prefix": "migrated", "redis_memory": memory(2)}
    with MemorySampler(url, "migrated") as sampler:
        done = redis_state.migrate(
            spark, moved.checkpoint("old"), moved.checkpoint("new"), to=url, **options
        )
    assert done.stores[0].source == done.stores[0].target
    assert done.rows > ROWS / 2
    assert sampler.peak < SHARE // 16
    assert moved.segments("migrated") == 0
    assert sum(one.stat().st_size for one in moved.files("new")) > 1.5 * size(memory(2))

    redis_conf({"keyPrefix": "migrated", "redisMemory": memory(2), "versionsToRetain": "5"})
    with MemorySampler(url, "migrated") as sampler:
        moved.run("new", REDIS, 700)
        moved.run("new", REDIS, 700)
    assert 0 < sampler.peak <= size(memory(2))

    options = {"key_prefix": "rescaled", "redis_memory": memory(3)}
    with MemorySampler(url, "rescaled") as sampler:
        done = redis_state.rescale(
            spark, moved.checkpoint("new"), moved.checkpoint("wide"), 3, url=url, **options
        )
    assert done.stores[0].source == done.stores[0].target
    assert sampler.peak < SHARE // 16
    assert len(moved.files("wide")) == 3
    redis_conf({"keyPrefix": "rescaled", "redisMemory": memory(3), "versionsToRetain": "5"})
    moved.run("wide", REDIS, 300)

    (columns,) = redis_state.bootstrap_columns(spark, moved.checkpoint("wide"))
    assert columns.columns is not None
    state = spark.read.format("statestore").load(moved.checkpoint("wide"))
    rows = state.select("key.*", "value.*")
    with MemorySampler(url, "rescaled") as sampler:
        given = redis_state.bootstrap(
            spark, rows, moved.checkpoint("wide"), moved.checkpoint("given")
        )
    assert given.stores[0].source == given.stores[0].target
    assert sampler.peak <= size(memory(3))
    assert len(moved.files("given")) == 3
    moved.run("given", REDIS, 300)


def test_state_that_moves_at_its_start_passes_redis_by(
    moved: Moved, redis_conf: Callable[[dict[str, str]], None]
) -> None:
    own = {"keyPrefix": "adopted", "versionsToRetain": "5"}
    redis_conf(own | {"redisMemory": memory(2), "adopt": "true"})
    with MemorySampler(moved.url, "adopted") as sampler:
        moved.run("old", REDIS, 300)
    assert sampler.peak <= size(memory(2))
    assert sum(one.stat().st_size for one in moved.files("old")) > 1.5 * size(memory(2))
    redis_conf(own | {"redisMemory": memory(3), "rescaleTo": "3"})
    with MemorySampler(moved.url, "adopted") as sampler:
        moved.run("old", REDIS, 300)
    # The partitions of before stay until they are purged.
    assert sampler.peak <= size(memory(2)) + size(memory(3))
    assert len(moved.files("old")) >= 3
    folder = moved.streams.checkpoint("old")
    assert not list(folder.glob("_redis_state_scratch*"))
    moved.run("old", REDIS, 300)
