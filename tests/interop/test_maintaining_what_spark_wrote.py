"""A worker without Spark maintains a query of Spark, which then goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from redis_state import keys
from redis_state.cli.main import main
from redis_state.ids import PartitionId, StoreId
from redis_state.live import Reader
from redis_state.maintain.compaction import add_snapshot
from redis_state.protocol import PartitionClient
from redis_state.reader import Query
from tests.interop.test_reading_what_spark_wrote import SCHEMA, rows_of
from tests.spark.streams import HDFS, REDIS, Output, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

# Fewer than the executor's own maintenance waits for, so that each snapshot is the worker's.
BATCHES_BEFORE = 3
BATCHES = 5
Build = Callable[[list[DataFrame]], DataFrame]


def aggregation(inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].groupBy("k").agg(sf.sum("v").alias("total"), sf.count("*").alias("n"))


def session_windows(inputs: list[DataFrame]) -> DataFrame:
    watermarked = inputs[0].withWatermark("ts", "1 minute")
    return watermarked.groupBy(sf.session_window("ts", "10 seconds"), "k").count()


def join(inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].join(inputs[1].select("k", sf.col("v").alias("w")), "k")


def partitions(query: Query) -> list[PartitionId]:
    return [
        PartitionId(StoreId(query.info.gen, info.operator, info.store), number)
        for info in query.operators()
        for number in range(info.partitions)
    ]


def state_of(query: Query, version: int) -> dict[tuple[int, str], list[str]]:
    return {
        (info.operator, info.store): sorted(
            str(row) for row in query.operator(info.operator, info.store).items(version=version)
        )
        for info in query.operators()
    }


def only_snapshots(reader: Reader, server: RedisServer, ids: list[PartitionId]) -> int:
    """Adds a snapshot to each partition and takes away what only older readers need."""
    raw, added = server.client(), 0
    for id_ in ids:
        partition = PartitionClient(reader.client, id_, versions_to_retain=1)
        opened = partition.open("", BATCHES_BEFORE)
        assert all(not segment.snapshot for segment in opened.segments)
        added += add_snapshot(partition, opened) is not None
        for segment in opened.segments:
            raw.unlink(keys.segment(id_, segment.ident))
    return added


@pytest.mark.parametrize(
    ("build", "mode"), [(aggregation, "update"), (session_windows, "append"), (join, "append")]
)
def test_query_continues_from_the_workers_snapshots(
    streams: Streams,
    reader: Reader,
    shared_redis_server: RedisServer,
    build: Build,
    mode: str,
) -> None:
    outputs: dict[str, Output] = {}
    for provider in (HDFS, REDIS):
        inputs = [streams.input(f"{provider[-30:]}{number}", SCHEMA) for number in range(2)]
        output: Output = {}
        found: Any = None
        for batches in (range(BATCHES_BEFORE), range(BATCHES_BEFORE, BATCHES)):
            if found is not None:
                query = reader.query(str(found.id))
                before = state_of(query, BATCHES_BEFORE)
                ids = partitions(query)
                assert only_snapshots(reader, shared_redis_server, ids) == len(ids)
                assert state_of(query, BATCHES_BEFORE) == before
            for batch in batches:
                for number, source in enumerate(inputs):
                    source.add(rows_of(batch)[: 40 if number else None])
            frame = build([source.stream(streams.spark) for source in inputs])
            ran = streams.run(frame, provider[-30:], mode=mode, provider=provider, output=output)
            found = ran if provider == REDIS else None
        outputs[provider] = output
    assert outputs[REDIS] == outputs[HDFS]
    assert any(outputs[HDFS].values())


def test_the_command_leaves_what_spark_needs(
    streams: Streams,
    reader: Reader,
    shared_redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = streams.input("in", SCHEMA)
    for batch in range(BATCHES_BEFORE):
        source.add(rows_of(batch))
    frame = aggregation([source.stream(streams.spark)])
    query = reader.query(str(streams.run(frame, "q").id))
    states = [state_of(query, version) for version in range(1, BATCHES_BEFORE + 1)]
    command = ["maintain", "--url", shared_redis_server.url, "--once", "--deep"]
    assert main([*command, query.info.gen]) == 0, capsys.readouterr().err
    assert "2 partitions of 1 checkpoints maintained" in capsys.readouterr().out
    assert [state_of(query, version) for version in range(1, BATCHES_BEFORE + 1)] == states
