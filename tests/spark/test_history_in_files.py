"""Queries with `history=files`: reads in their past, rewinds, and an equal query without it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import DataFrame, SparkSession

import redis_state
from redis_state.cli.main import main
from tests.spark.streams import Input, Output, Streams
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept, unload_stores

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KEYS = [f"k{n}" for n in range(30)]
BATCHES = 36
BATCHES_MORE_MAX = 120
PAUSE_S = 1.0
RETAINED_BATCHES = "200"
RETAINED = "spark.sql.streaming.minBatchesToRetain"


class Counted:
    """A query that counts each key once a batch, so that a count tells the batch."""

    def __init__(self, streams: Streams, server: RedisServer) -> None:
        self.server = server
        self.source: Input = streams.input("counted", "k string")
        self.frame: DataFrame = self.source.stream(streams.spark).groupBy("k").count()
        self.folder: Path = streams.checkpoint("counts")
        self.output: Output = {}
        self.batches = 0
        self.id = ""
        self._streams = streams

    def run(self, more: int) -> None:
        for _ in range(more):
            self._add_batch()
        self.id = str(self._streams.run(self.frame, "counts", output=self.output).id)

    def run_until_moved(self) -> None:
        """Runs a batch a second until maintenance, which serves active queries, has moved history.

        Stores of other tests, whose servers have gone, would delay maintenance by minutes.
        """
        unload_stores(self._streams.spark)
        query = self._streams.start(self.frame, "counts")
        try:
            for _ in range(BATCHES_MORE_MAX):
                self._add_batch()
                query.processAllAvailable()
                if self.moved():
                    return
                time.sleep(PAUSE_S)
        finally:
            query.stop()

    def _add_batch(self) -> None:
        self.source.add([{"k": key} for key in KEYS])
        self.batches += 1

    def moved(self) -> list[str]:
        """Returns the segments in files, and removes the keys that live a minute more."""
        gen = json.loads((self.folder / "state" / "_redis_state").read_text())["gen"]
        found = []
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            for meta in client.scan_iter(f"{{rs:{gen}:*:m", count=1000):
                for field, place in client.hgetall(meta).items():
                    if field.startswith("a:") and place.startswith("f "):
                        found.append(field)
                        client.delete(meta[:-1] + field[2:])
        return found


@pytest.fixture
def retained(spark: SparkSession) -> Iterator[None]:
    with kept(spark, RETAINED):
        spark.conf.set(RETAINED, RETAINED_BATCHES)
        yield


@pytest.mark.usefixtures("retained")
def test_past_of_a_query_is_read_from_files(
    spark: SparkSession,
    streams: Streams,
    redis_conf: Callable[[dict[str, str]], None],
    shared_redis_server: RedisServer,
) -> None:
    """Python, Spark's state reader and a rewind find each batch where maintenance has moved it."""
    redis_conf({"history": "files", "versionsToRetain": RETAINED_BATCHES})
    query = Counted(streams, shared_redis_server)
    query.run(BATCHES)
    query.run_until_moved()
    assert query.moved()
    assert list((query.folder / "state" / "_redis_state_segments").glob("*/*/*.seg"))

    past = [0, 2, BATCHES // 2, query.batches - 2]
    with redis_state.connect(query.server.url) as reader:
        state = reader.query(query.id).operator(0)
        for batch in past:
            counts = {key["k"]: value["count"] for key, value in state.items(at=batch)}
            assert counts == dict.fromkeys(KEYS, batch + 1)
    for batch in past:
        rows = (
            spark.read.format("statestore")
            .option("batchId", batch)
            .load(str(query.folder))
            .select("key.k", "value.count")
            .collect()
        )
        assert {row["k"]: row["count"] for row in rows} == dict.fromkeys(KEYS, batch + 1)

    place = ["--url", query.server.url, "--checkpoint", str(query.folder)]
    assert main(["rewind", *place, "--to-batch", "2", "--yes", "--force"]) == 0
    query.output.clear()
    query.run(1)
    # Batch 3 reads all files behind batch 2 anew.
    newest = max(query.output)
    assert query.output[newest] == sorted(f"Row(k='{key}', count={query.batches})" for key in KEYS)
    with redis_state.connect(query.server.url) as reader:
        state = reader.query(query.id).operator(0)
        counts = {key["k"]: value["count"] for key, value in state.items(at=2)}
        assert counts == dict.fromkeys(KEYS, 3)
