"""Queries with `redisMemory` far below their state: the same rows, and Redis below the bound."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.streams import Streams
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept, unload_stores

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PARTITIONS = 2
SHARE = 1 << 20
BOUND = PARTITIONS * (SHARE + (64 << 10))
BATCHES, ROWS, PAD = 10, 700, 750
SCHEMA = "k string, pad string"


def batches() -> list[list[list[dict[str, str]]]]:
    dice = random.Random(3)

    def row() -> dict[str, str]:
        pad = base64.b64encode(dice.randbytes(PAD)).decode()
        return {"k": f"k{dice.randrange(8000)}", "pad": pad}

    return [[[row() for _ in range(ROWS)]] for _ in range(BATCHES)]


def newest(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy("k").agg(f.max("pad").alias("pad"), f.count("*").alias("n"))


def distinct(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].dropDuplicates(["pad"])


@pytest.mark.parametrize(("name", "build"), [("counts", newest), ("distinct", distinct)])
def test_query_with_a_bound_gives_the_same_rows_and_stays_below_it(
    name: str,
    build: Callable[[Sequence[DataFrame]], DataFrame],
    spark: SparkSession,
    streams: Streams,
    redis_conf: Callable[[dict[str, str]], None],
    shared_redis_server: RedisServer,
    tmp_path: Path,
) -> None:
    prefix = f"bound-{name}"
    options = {"redisMemory": f"{BOUND >> 10}k", "keyPrefix": prefix, "versionsToRetain": "5"}
    disk = tmp_path / "disk"
    if name == "counts":  # a process has one local disk
        options |= {"localDisk": "64m", "localDiskFolder": str(disk)}
    redis_conf(options)
    unload_stores(spark)
    partitions = "spark.sql.shuffle.partitions"
    with kept(spark, partitions), MemorySampler(shared_redis_server.url, prefix) as sampler:
        spark.conf.set(partitions, str(PARTITIONS))
        streams.same_on_both(build, [SCHEMA], batches())
    assert sampler.samples > 10
    assert (name == "counts") == any(one.stat().st_size for one in disk.glob("*/*.seg"))
    assert BOUND / 3 < sampler.peak <= BOUND
    folder: Path = streams.checkpoint("RedisStateStoreProvider")
    files = list((folder / "state" / "_redis_state_segments").glob("*/*/*.seg"))
    assert sum(one.stat().st_size for one in files) > BOUND
    with redis.Redis.from_url(shared_redis_server.url, decode_responses=True) as client:
        bounds = [client.hget(key, "h") for key in client.scan_iter(f"{{{prefix}:rs:*:m")]
    assert {str(one).split(" ")[0] for one in bounds} == {str(SHARE)}
