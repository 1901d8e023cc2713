"""Operators and formats that `test_moving.py` has not: there, to other partitions, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import redis_state
from tests.spark.moving.test_moving import processors
from tests.spark.streams import FORMAT, REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, JOIN_FORMAT, events, joined, two_inputs
from tests.spark.test_transform_with_state_schemas import ENCODING
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept
from tests.upgrades.job import pandas_with_state

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

SHUFFLE = "spark.sql.shuffle.partitions"
Build = Callable[[Sequence[DataFrame]], DataFrame]


def join(inputs: Sequence[DataFrame]) -> DataFrame:
    return joined(inputs, "full_outer")


def pandas(inputs: Sequence[DataFrame]) -> DataFrame:
    """Some of its groups are still there when their state moves, and time out afterwards."""
    return pandas_with_state(inputs, lasts_ms=15 * 60_000)


CASES: dict[str, tuple[Build, Any, str, dict[str, str]]] = {
    "processors, Avro": (processors, events(31), "update", {ENCODING: "avro"}),
    "join, state format 3": (join, two_inputs(6), "append", {JOIN_FORMAT: "3"}),
    "join, state format 4": (join, two_inputs(6), "append", {JOIN_FORMAT: "4"}),
    "applyInPandasWithState": (pandas, events(9), "update", {}),
}


@pytest.fixture
def confs(spark: SparkSession) -> Iterator[None]:
    with kept(spark, SHUFFLE, FORMAT, ENCODING, JOIN_FORMAT):
        yield


@pytest.mark.usefixtures("confs")
@pytest.mark.parametrize("format_", ["1", "2"])
@pytest.mark.parametrize("case", CASES)
def test_moved_query_continues_with_other_partitions_and_back(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    case: str,
    format_: str,
) -> None:
    build, batches, mode, confs = CASES[case]
    for name, value in {**confs, FORMAT: format_}.items():
        spark.conf.set(name, value)
    inputs = [streams.input(str(number), EVENTS) for number in range(len(batches[0]))]
    stays: Output = {}
    moves: Output = {}

    def run(name: str, provider: str, output: Output) -> None:
        frame = build([source.stream(spark) for source in inputs])
        streams.run(frame, name, mode=mode, provider=provider, output=output)

    def place(name: str) -> str:
        return str(streams.checkpoint(name))

    def feed(some: Sequence[Any]) -> None:
        for batch in some:
            for source, rows in zip(inputs, batch, strict=True):
                source.add(rows)
        run("stays", ROCKSDB, stays)

    feed(batches[:2])
    run("old", ROCKSDB, moves)
    entry = json.loads((streams.checkpoint("old") / "offsets" / "0").read_text().splitlines()[1])
    assert {name: entry["conf"].get(name) for name in confs} == confs
    url = shared_redis_server.url
    there = redis_state.migrate(spark, place("old"), place("new"), to=url)
    feed(batches[2:3])
    run("new", REDIS, moves)
    spread = redis_state.rescale(spark, place("new"), place("spread"), 3)
    back = redis_state.migrate(spark, place("spread"), place("back"), to="rocksdb")
    feed(batches[3:])
    run("spread", REDIS, moves)
    assert moves == stays
    again: Output = dict(moves)
    run("back", ROCKSDB, again)
    assert again == stays
    for done in (there, spread, back):
        assert done.rows > 0
        assert [one.source for one in done.stores] == [one.target for one in done.stores]
    assert [one.source for one in back.stores] == [one.source for one in spread.stores]
    assert any(stays.values())
