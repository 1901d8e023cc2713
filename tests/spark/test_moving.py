"""State that moves to another provider: a query goes on there as one that never moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from tests.spark.streams import FORMAT, HDFS, PREFIX, REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, events, joined, two_inputs
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

Build = Callable[[Sequence[DataFrame]], DataFrame]
Batches = Sequence[Sequence[Sequence[dict[str, Any]]]]
CALLED = {HDFS: "hdfs-backed", ROCKSDB: "rocksdb"}


def aggregation(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "5 minutes")
    return late.groupBy(sf.window("ts", "10 minutes"), "k").agg(sf.sum("v"))


def deduplication(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(["k"])


def sessions(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "5 minutes")
    return late.groupBy(sf.session_window("ts", "3 minutes"), "k").agg(sf.sum("v"))


def join(inputs: Sequence[DataFrame]) -> DataFrame:
    return joined(inputs, "full_outer")


FAMILIES: dict[str, tuple[Build, Batches]] = {
    "aggregation": (aggregation, events(2)),
    "deduplication": (deduplication, events(5)),
    "session windows": (sessions, events(7)),
    "join": (join, two_inputs(6)),
}


class Mover:
    """A query that runs half of its batches in one provider, and the rest in others."""

    def __init__(self, streams: Streams, family: str, url: str) -> None:
        self.streams, self.url = streams, url
        self.build, self.batches = FAMILIES[family]
        self.inputs = [
            streams.input(str(number), EVENTS) for number in range(len(self.batches[0]))
        ]
        self.done = 0

    def run(self, name: str, provider: str, batches: int, output: Output) -> None:
        for batch in self.batches[self.done : self.done + batches]:
            for source, rows in zip(self.inputs, batch, strict=True):
                source.add(rows)
        self.done += batches
        frame = self.build([source.stream(self.streams.spark) for source in self.inputs])
        self.streams.run(frame, name, mode="append", provider=provider, output=output)

    def move(self, name: str, to_name: str, target: str) -> redis_state.Migration:
        return redis_state.migrate(
            self.streams.spark,
            str(self.streams.checkpoint(name)),
            str(self.streams.checkpoint(to_name)),
            to=CALLED.get(target, self.url),
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("source", "format_"), [(HDFS, "1"), (ROCKSDB, "1"), (ROCKSDB, "2")]
)
def test_there_and_back(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    family: str,
    source: str,
    format_: str,
) -> None:
    spark.conf.set(FORMAT, format_)
    try:
        stays: Output = {}
        expected = Mover(Streams(spark, streams.folder / "expected"), family, "")
        for batches in (2, 1, 1):
            expected.run("stays", source, batches, stays)

        moves: Output = {}
        mover = Mover(streams, family, shared_redis_server.url)
        mover.run("old", source, 2, moves)
        there = mover.move("old", "new", REDIS)
        again = mover.move("new", "third", source)
        mover.run("new", REDIS, 1, moves)
        back = mover.move("new", "back", source)
        mover.run("back", source, 1, moves)
    finally:
        spark.conf.set(FORMAT, "1")
    assert moves == stays
    assert any(stays.values())
    assert there.rows > 0
    assert [s.source for s in there.stores] == [s.target for s in there.stores]
    assert [s.source for s in again.stores] == [s.source for s in there.stores]
    assert (there.source, there.target, there.format) == (source, REDIS, int(format_))
    assert back.target == source
