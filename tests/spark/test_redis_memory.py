"""Queries with `redisMemory` far below their state: the same rows, and Redis below the bound."""

from __future__ import annotations

import base64
import random
import time
from collections import Counter
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


def test_hot_rows_stay_in_redis_and_a_new_executor_goes_on_from_them(
    spark: SparkSession,
    streams: Streams,
    redis_conf: Callable[[dict[str, str]], None],
    shared_redis_server: RedisServer,
) -> None:
    redis_conf({"redisMemory": f"{BOUND >> 10}k", "keyPrefix": "hot", "versionsToRetain": "5"})
    unload_stores(spark)
    dice, source, counts = random.Random(5), streams.input("hot", SCHEMA), Counter[str]()

    def add(keys: Sequence[int]) -> None:
        counts.update(f"k{number}" for number in keys)
        pads = [base64.b64encode(dice.randbytes(PAD)).decode() for _ in keys]
        source.add([{"k": f"k{n}", "pad": pad} for n, pad in zip(keys, pads, strict=True)])

    def named(begin: str) -> int:
        """Returns the number of partitions whose manifest has such a field."""
        with redis.Redis.from_url(shared_redis_server.url, decode_responses=True) as client:
            fields = [client.hkeys(key) for key in client.scan_iter("{hot:rs:*:m")]
        return sum(any(str(name).startswith(begin) for name in some) for some in fields)

    frame, output = newest([source.stream(spark)]), dict[int, list[str]]()
    with kept(spark, "spark.sql.shuffle.partitions"):
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        for start in range(0, 3000, 600):
            add(range(start, start + 600))
        query = streams.start(frame, "hot")
        deadline = time.monotonic() + 120
        while named("r:") < PARTITIONS:
            assert time.monotonic() < deadline, "no hot run was made"
            add(range(40))
            query.processAllAvailable()
        query.stop()
        unload_stores(spark)
        add(range(50))
        streams.run(frame, "hot", output=output)
    (rows,) = output.values()
    found = {row.split("'")[1]: int(row.split("n=")[1].rstrip(")")) for row in rows}
    assert found == {key: counts[key] for key in found}
    assert len(found) == 50
    assert named("a:s:") == PARTITIONS
