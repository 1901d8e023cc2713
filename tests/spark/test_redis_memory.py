"""Queries with `redisMemory` far below their state: the same rows, and Redis below the bound."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import base64
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import redis
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.spark.streams import ROCKSDB, Streams
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept, unload_stores

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

PARTITIONS = 2
SHARE = 1 << 20
BOUND = PARTITIONS * (SHARE + (64 << 10))
BATCHES, ROWS, PAD = 10, 700, 750
SCHEMA = "k string, pad string"
TIMED = f"{SCHEMA}, ts timestamp"


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


def pairs() -> list[list[list[dict[str, str]]]]:
    """Rows of both sides of a join, one minute after the other."""

    def side(rows: list[dict[str, str]], others: list[dict[str, str]], minute: int) -> Any:
        ts = f"2024-01-01T10:{minute:02d}:00Z"
        both = zip(rows, others, strict=True)
        return [{"k": one["k"], "pad": one["pad"] + other["pad"], "ts": ts} for one, other in both]

    few = ROWS // 2
    return [
        [side(rows[:few], rows[-few:], minute), side(rows[-few:], rows[:few], minute)]
        for minute, (rows,) in enumerate(batches())
    ]


def near(how: str, frames: Sequence[DataFrame]) -> DataFrame:
    left, right = (
        frame.withWatermark("ts", "1 minute").alias(name)
        for frame, name in zip(frames, "lr", strict=True)
    )
    interval = "r.ts between l.ts - interval 5 minutes and l.ts + interval 4 minutes"
    return left.join(right, f.expr(f"l.k = r.k and {interval}"), how)


class Longest(StatefulProcessor):
    """The greatest text of a key, in each kind of state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", "pad string")
        self._list = handle.getListState("list", "pad string")
        self._map = handle.getMapState("map", "first string", "pad string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        pads = [pad for frame in rows for pad in frame["pad"]]
        longest = max([*pads, *(self._value.get() or ())])
        self._value.update((longest,))
        self._list.appendValue((longest[:40],))
        self._map.updateValue((longest[:1],), (longest,))
        found = [str(len(list(self._list.get()))), *sorted(k[0] for k, _ in self._map.iterator())]
        yield pd.DataFrame([{"k": key[0], "pad": longest + ",".join(found)}])


def processed(frames: Sequence[DataFrame]) -> DataFrame:
    rows = frames[0].withColumn("pad", f.repeat("pad", 3))
    return rows.groupBy("k").transformWithStateInPandas(
        Longest(), outputStructType=SCHEMA, outputMode="Update", timeMode="None"
    )


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


@pytest.mark.parametrize(
    "how",
    [
        "left_outer",
        pytest.param("inner", marks=pytest.mark.long),
        pytest.param("left_semi", marks=pytest.mark.long),
    ],
)
def test_join_with_a_bound_gives_the_same_rows(
    how: str,
    spark: SparkSession,
    streams: Streams,
    redis_conf: Callable[[dict[str, str]], None],
) -> None:
    """Four stores, whose rows neither Redis nor the executor can hold."""
    redis_conf({"redisMemory": f"{4 * BOUND >> 10}k", "localMemory": "2m"})
    unload_stores(spark)
    partitions = "spark.sql.shuffle.partitions"
    with kept(spark, partitions):
        spark.conf.set(partitions, str(PARTITIONS))
        streams.same_on_both(partial(near, how), [TIMED, TIMED], pairs(), mode="append")
    folder: Path = streams.checkpoint("RedisStateStoreProvider")
    files = list((folder / "state" / "_redis_state_segments").glob("*/*/*.seg"))
    # A semi join keeps no rows on the left that have matched.
    assert how == "left_semi" or sum(one.stat().st_size for one in files) > SHARE


@pytest.mark.long
def test_processor_with_a_bound_gives_the_same_rows(
    spark: SparkSession,
    streams: Streams,
    redis_conf: Callable[[dict[str, str]], None],
) -> None:
    """Rows are read ahead in another thread than that of the processor's state."""
    redis_conf({"redisMemory": f"{BOUND >> 10}k", "localMemory": "2m"})
    unload_stores(spark)
    partitions = "spark.sql.shuffle.partitions"
    with kept(spark, partitions):
        spark.conf.set(partitions, str(PARTITIONS))
        few = [[rows[0][:200]] for rows in batches()]
        streams.same_on_both(processed, [SCHEMA], few, oracle=ROCKSDB)
