"""Replays of queries whose state has several variables: Spark's processors, and ours."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import redis_state
from redis_state.errors import UsageError
from redis_state.testing import Replay, replay
from tests.spark import test_transform_with_state as transform
from tests.spark.streams import PROVIDER, REDIS
from tests.spark.test_checkpoint_format_2 import format_of
from tests.spark.test_operators import EVENTS
from tests.support.redis_server import RedisServer

# A worker of Spark has no module of this name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("interpreted")]
STORE = "visits of a replay"
Build = Callable[[DataFrame, str], DataFrame]


@pytest.fixture(autouse=True)
def format_2(spark: SparkSession) -> Iterator[None]:
    """Unique ids of versions, whose order Spark alone knows."""
    with format_of(spark, "2"):
        yield


class Doubled(transform.Everything):
    """Counts the values twice."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        doubled = (frame.assign(v=frame["v"] * 2) for frame in rows)
        return super().handleInputRows(key, doubled, timerValues)


def ours(processor: Any) -> Build:
    return lambda rows, store: redis_state.transform_with_state(
        rows.withWatermark("ts", "1 minute"),
        processor,
        store=store,
        key="k",
        schema=transform.OUT,
        time_mode="EventTime",
    )


def sparks(processor: Any) -> Build:
    return lambda rows, _: (
        rows.withWatermark("ts", "1 minute")
        .groupBy("k")
        .transformWithStateInPandas(
            processor, outputStructType=transform.OUT, outputMode="Update", timeMode="EventTime"
        )
    )


class Production:
    """Four batches of two keys, of which the last one has one key alone."""

    def __init__(self, spark: SparkSession, folder: Path, build: Callable[[Any], Build]) -> None:
        self.spark, self.folder, self.build = spark, folder, build
        self.checkpoint = str(folder / "checkpoint")
        (folder / "in").mkdir()
        spark.conf.set(PROVIDER, REDIS)
        for number in range(4):
            names = ("a", "b") if number < 3 else ("a",)
            at = f"2024-01-01T10:{number:02}:00Z"
            rows = [{"k": name, "v": number + 1, "ts": at} for name in names]
            path = folder / "in" / f"{number}.json"
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (1_000_000_000 + number,) * 2)
        writer = self.query(transform.Everything(), STORE).foreachBatch(
            lambda rows, _: rows.count()
        )
        writer = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()

    def query(self, processor: Any, store: str) -> Any:
        source = self.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        frame = self.build(processor)(source.json(f"{self.folder}/in"), store)
        return frame.writeStream.outputMode("update")

    def replayed(self, url: str, processor: Any, batch: int, **given: Any) -> Any:
        def query(_: SparkSession, told: Replay) -> Any:
            return self.query(processor, told.store(STORE))

        settings = {"batch": batch, "checkpoint": self.checkpoint, "url": url, **given}
        return replay(self.spark, query, **settings)


@pytest.mark.parametrize("build", [ours, sparks], ids=["ours", "Spark's"])
def test_replay_compares_every_variable(
    spark: SparkSession,
    tmp_path: Path,
    shared_redis_server: RedisServer,
    build: Callable[[Any], Build],
) -> None:
    shared_redis_server.client().flushdb()
    production = Production(spark, tmp_path, build)
    url = shared_redis_server.url
    with production.replayed(url, transform.Everything(), 3) as run:
        assert run.state.same
        changed = {one.store[2]: one.produced for one in run.state.stores if one.produced}
        assert {"total", "seen", "bySign"} <= changed.keys()
    with production.replayed(url, Doubled(), 3) as run:
        found = {one.store[2]: (one.produced, one.replayed) for one in run.state.keys}
        assert set(found) == {"total", "seen"}
        assert list(found["total"][1].values()) == [1 + 2 + 3 + 2 * 4]
        assert {one.name for one in run.state.keys} == {STORE if build is ours else ""}
    if build is ours:
        with production.replayed(url, transform.Everything(), 0) as run:
            assert run.state.same


def test_replay_of_a_processor_leaves_production_alone(
    spark: SparkSession, tmp_path: Path, shared_redis_server: RedisServer
) -> None:
    raw = shared_redis_server.client()
    raw.flushdb()
    production = Production(spark, tmp_path, ours)
    names = set(raw.keys("{rs:*:m"))
    before = {name: raw.hgetall(name) for name in names}
    for _ in range(2):
        with production.replayed(shared_redis_server.url, Doubled(), 2):
            pass
        assert {name: raw.hgetall(name) for name in raw.keys("{rs:*:m")} == before
        assert raw.hlen("{rs}:n") == 1
    # The function forgets to ask for the store's name in the replay.
    with pytest.raises(UsageError, match="the batch failed"):
        replay(
            spark,
            lambda *_: production.query(Doubled(), STORE),
            batch=2,
            checkpoint=production.checkpoint,
            url=shared_redis_server.url,
        )
    assert {name: raw.hgetall(name) for name in raw.keys("{rs:*:m")} == before


def test_scratch_folder_is_removed_unless_it_is_kept(
    spark: SparkSession, tmp_path: Path, shared_redis_server: RedisServer
) -> None:
    production = Production(spark, tmp_path, sparks)
    scratch, url = tmp_path / "scratch", shared_redis_server.url
    with production.replayed(url, transform.Everything(), 1, scratch=str(scratch)):
        assert (scratch / "checkpoint" / "commits" / "1").exists()
    assert not scratch.exists()
    with production.replayed(url, transform.Everything(), 1, scratch=str(scratch), keep=True):
        pass
    assert (scratch / "output").is_dir()
    with pytest.raises(UsageError, match="the scratch folder has files"):
        production.replayed(url, transform.Everything(), 1, scratch=str(scratch))
    assert (scratch / "output").is_dir()
