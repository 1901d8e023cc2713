"""A join of state format 4, started again and again: the rows of Spark's RocksDB provider."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import redis_state
from tests.spark.streams import PROVIDER, REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, JOIN_FORMAT, joined, two_inputs
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

_RUNS = 3


@pytest.fixture
def format_4(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(JOIN_FORMAT, "4")
    yield
    spark.conf.unset(JOIN_FORMAT)


def begin_as(begun: Path, checkpoint: Path, state_format: str = "4") -> None:
    """Make a checkpoint whose first batch was planned, with this provider, and did not run.

    Spark 4.3 begins joins of formats 3 and 4 with RocksDB's provider only; a query that Spark 4.2
    began with ours has such an offset log.
    """
    for source in sorted((begun / "sources").iterdir()):
        folder = checkpoint / "sources" / source.name
        folder.mkdir(parents=True)
        shutil.copy(source / "0", folder / "0")
    shutil.copy(begun / "metadata", checkpoint / "metadata")
    version, planned, *offsets = (begun / "offsets" / "0").read_text().splitlines()
    entry = json.loads(planned)
    assert entry["conf"][JOIN_FORMAT] == state_format
    entry["conf"][PROVIDER] = REDIS
    (checkpoint / "offsets").mkdir()
    text = "\n".join((version, json.dumps(entry), *offsets))
    (checkpoint / "offsets" / "0").write_text(text)


@pytest.mark.parametrize("how", ["inner", pytest.param("full_outer", marks=pytest.mark.long)])
@pytest.mark.usefixtures("format_4")
def test_join_continues_over_restarts(
    streams: Streams, shared_redis_server: RedisServer, how: str
) -> None:
    inputs = [streams.input(name, EVENTS) for name in ("left", "right")]
    theirs: Output = {}
    ours: Output = {}
    batches = two_inputs(9)
    for run in range(_RUNS):
        for source, rows in zip(inputs, batches[run], strict=True):
            source.add(rows)
        frame = joined([source.stream(streams.spark) for source in inputs], how)
        streams.run(frame, "theirs", mode="append", provider=ROCKSDB, output=theirs)
        if run == 0:
            begin_as(streams.checkpoint("theirs"), streams.checkpoint("ours"))
        query = streams.run(frame, "ours", mode="append", provider=REDIS, output=ours)
        assert ours == theirs
    assert sum(map(bool, theirs.values())) >= _RUNS
    with redis_state.connect(shared_redis_server.url) as reader:
        state = reader.query(query.id).operator(0, family="left-keyWithTsToValues")
        keys = [key for key, _ in state.list_items()]
    assert keys
    assert all(list(key) == ["field0", "__event_time"] for key in keys)
