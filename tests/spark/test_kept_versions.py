"""Kept versions of running queries: read as DataFrames, and made by the driver (`keepEvery`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import redis_state
from redis_state.forks.keep import keep, kept_versions
from redis_state.protocol.kept import KeptVersion
from tests.spark.streams import Input, Streams
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

KEYS = [f"k{n}" for n in range(20)]
NAME = "before-deploy"


class Counts:
    """A query that counts each key once a batch."""

    def __init__(self, streams: Streams, url: str) -> None:
        self.source: Input = streams.input("counted", "k string")
        self.frame = self.source.stream(streams.spark).groupBy("k").count()
        self.id = ""
        self._streams = streams
        self._url = url

    def run(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.source.add([{"k": key} for key in KEYS])
            self.id = str(self._streams.run(self.frame, "counts").id)
        files = len(list(self.source.folder.glob("[0-9]*.json")))
        with redis_state.connect(self._url) as reader:
            state = reader.query(self.id).operator(0)
            wait_until(lambda: state.get({"k": "k0"}) == {"count": files}, "the count is confirmed")


@pytest.mark.compatibility("kept version", "read as a DataFrame")
def test_data_source_reads_a_kept_version(
    spark: SparkSession, streams: Streams, shared_redis_server: RedisServer
) -> None:
    url = shared_redis_server.url
    counts = Counts(streams, url)
    counts.run(2)
    keep(url, counts.id, name=NAME)
    counts.run()
    read = spark.read.format("redis_state").option("url", url).option("query", counts.id)
    rows = read.option("at", NAME).load().collect()
    assert {(row["k"], row["count"]) for row in rows} == {(key, 2) for key in KEYS}
    newest = read.option("at", "confirmed").load().collect()
    assert {row["count"] for row in newest} == {3}
    with pytest.raises(PySparkException, match="no kept version"):
        read.option("at", "nothing").load().collect()


def test_driver_keeps_the_first_batch_of_an_interval(
    redis_conf: Callable[..., None], streams: Streams, shared_redis_server: RedisServer
) -> None:
    redis_conf({"keepEvery": "3650d", "keepFor": "2d"})
    url = shared_redis_server.url
    counts = Counts(streams, url)
    counts.run()

    def kept() -> list[KeptVersion]:
        return kept_versions(url, counts.id)

    wait_until(lambda: len(kept()) == 1, "the first batch is kept")
    (first,) = kept()
    assert (first.name, first.batch, first.version) == ("auto-0", 0, 1)
    assert first.expires_ms - first.at_ms == 2 * 86_400_000
    counts.run(2)
    assert kept() == [first]
    with redis_state.connect(url) as reader:
        state = reader.query(counts.id).operator(0)
        assert {value["count"] for _, value in state.items(at="auto-0")} == {1}
