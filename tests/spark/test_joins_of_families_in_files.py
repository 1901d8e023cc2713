"""Joins of the state formats 3 and 4, one store with families, with `redisMemory`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.streams import REDIS, ROCKSDB, Output, Streams
from tests.spark.test_join_format_4 import begin_as
from tests.spark.test_operators import FORMAT_3, FORMAT_4, JOIN_FORMAT
from tests.spark.test_redis_memory import BOUND, PARTITIONS, TIMED, near, pairs
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept, unload_stores

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]

SHUFFLED = "spark.sql.shuffle.partitions"
RUNS = (4, 7, 10)
FORMATS = [pytest.param("3", marks=FORMAT_3), pytest.param("4", marks=FORMAT_4)]


def of_keys(frames: Sequence[DataFrame]) -> DataFrame:
    """Pairs of all times, which are kept for ever."""
    left, right = (frame.alias(name) for frame, name in zip(frames, "lr", strict=True))
    return left.join(right, f.expr("l.k = r.k"), "inner")


def of_windows(frames: Sequence[DataFrame]) -> DataFrame:
    """Pairs of a key in one window, whose end the watermark passes."""
    left, right = (
        frame.withWatermark("ts", "1 minute").withColumn("w", f.window("ts", "6 minutes"))
        for frame in frames
    )
    return left.drop("ts").join(right.drop("ts"), ["k", "w"], "left_outer")


@pytest.fixture
def families(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    with kept(spark, JOIN_FORMAT, SHUFFLED):
        spark.conf.set(JOIN_FORMAT, request.param)
        spark.conf.set(SHUFFLED, str(PARTITIONS))
        yield request.param


@pytest.mark.parametrize("families", FORMATS, indirect=True)
@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("keys", of_keys),
        ("windows", of_windows),
        ("near", partial(near, "inner")),
        ("outer", partial(near, "left_outer")),
    ],
)
def test_join_past_its_bound_gives_the_rows_of_rocksdb_over_restarts(
    name: str,
    build: Callable[[Sequence[DataFrame]], DataFrame],
    families: str,
    streams: Streams,
    redis_conf: Callable[[dict[str, str]], None],
    shared_redis_server: RedisServer,
) -> None:
    """Neither Redis nor the executor holds the state; each run begins with nothing in memory."""
    prefix = f"families-{name}-{families}"
    bound = {"redisMemory": f"{BOUND >> 10}k", "localMemory": "2m", "versionsToRetain": "5"}
    redis_conf({**bound, "keyPrefix": prefix})
    inputs = [streams.input(side, TIMED) for side in ("left", "right")]
    theirs: Output = {}
    ours: Output = {}
    fed = 0
    with MemorySampler(shared_redis_server.url, prefix) as sampler:
        for until in RUNS:
            for batch in pairs()[fed:until]:
                for source, rows in zip(inputs, batch, strict=True):
                    source.add(rows)
            frame = build([source.stream(streams.spark) for source in inputs])
            streams.run(frame, "theirs", mode="append", provider=ROCKSDB, output=theirs)
            if not fed:
                begin_as(streams.checkpoint("theirs"), streams.checkpoint("ours"), families)
            unload_stores(streams.spark)
            streams.run(frame, "ours", mode="append", provider=REDIS, output=ours)
            assert ours == theirs
            fed = until
    assert sum(map(bool, theirs.values())) > 3
    assert BOUND / 3 < sampler.peak <= BOUND
    folder: Path = streams.checkpoint("ours")
    files = list((folder / "state" / "_redis_state_segments").glob("*/*/*.seg"))
    assert sum(one.stat().st_size for one in files) > BOUND
