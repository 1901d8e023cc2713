"""Queries with `history=files` whose files lie in a real S3 server, by S3A, and in a real HDFS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from redis_state import keys
from redis_state.cli.main import main
from redis_state.format.entry import segments_in
from redis_state.ids import PartitionId, StoreId
from redis_state.places.moving import rows_of
from redis_state.recovery.marker import gen_of
from tests.file_systems.servers import Store
from tests.file_systems.test_queries import Job
from tests.spark.streams import PREFIX
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept

pytestmark = [pytest.mark.long, pytest.mark.spark]

AWS = {
    "AWS_ENDPOINT_URL": "endpoint_url",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
}
BATCHES = 30
TRIES_MAX = 90
RETAINED = "200"
RETAINED_BY_SPARK = "spark.sql.streaming.minBatchesToRetain"
DAY_MS = 86_400_000


class Past:
    """A query whose history lies in files of its file system."""

    def __init__(self, job: Job, server: RedisServer, options_file: Path) -> None:
        self.job, self.server = job, server
        self._options_file = options_file

    def run_until(self, done: Callable[[], Any]) -> None:
        """Runs a batch a second until maintenance, which serves active queries, is so far."""
        query: StreamingQuery = (
            self.job.writer().option("checkpointLocation", self.job.url).format("noop").start()
        )
        try:
            for _ in range(TRIES_MAX):
                self.job.feed(1)
                query.processAllAvailable()
                if done():
                    return
                time.sleep(1)
        finally:
            query.stop()
        raise AssertionError("maintenance did not come so far")

    @property
    def gen(self) -> str:
        return gen_of(self.job.folder())

    def ids(self) -> list[PartitionId]:
        return [PartitionId(StoreId(self.gen, 0, "default"), number) for number in range(2)]

    def moved(self) -> bool:
        """Returns whether each partition has a file, and drops the keys that live a minute more."""
        counts = []
        with self.server.client() as raw:
            for id_ in self.ids():
                placed = [
                    one.ident
                    for one in segments_in(raw.hgetall(keys.meta(id_)))
                    if one.place is not None
                ]
                counts.append(len(placed))
                for ident in placed:
                    raw.delete(keys.segment(id_, ident))
        return all(counts)

    def states(self) -> list[str]:
        with redis_state.connect(self.server.url) as reader:
            return [row.state for id_ in self.ids() for row in rows_of(reader.client, id_)]

    def age(self) -> None:
        """Makes all files older than the grace."""
        with self.server.client() as raw:
            for id_ in self.ids():
                for file, row in raw.hgetall(keys.files(id_)).items():
                    state, at, *rest = row.decode().split(" ")
                    later = " ".join([state, str(int(at) - DAY_MS - 1), *rest])
                    raw.hset(keys.files(id_), file, later)

    def in_store(self) -> list[str]:
        found = (self.job.folder() / "state/_redis_state_segments" / self.gen).items() or []
        folder = self.job.folder() / "state/_redis_state_segments" / self.gen
        return [
            item.name
            for under in found
            for item in (folder / under.name).items() or []
            if item.name.endswith(".seg")
        ]

    def places(self, *words: str) -> int:
        options = ["--storage-options", str(self._options_file)]
        return main(["places", self.gen, "--url", self.server.url, *options, *words])

    def command(self, name: str, *words: str) -> int:
        place = ["--url", self.server.url, "--checkpoint", self.job.url]
        return main([name, *place, "--storage-options", str(self._options_file), *words])


@pytest.fixture
def past(
    spark: SparkSession,
    store: Store,
    shared_redis_server: RedisServer,
    options_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Past]:
    if store.root:
        for name, option in AWS.items():
            monkeypatch.setenv(name, str(store.options[option]))
    else:
        monkeypatch.setitem(fsspec.config.conf, "webhdfs", dict(store.options))
    options = {
        "history": "files",
        "placesDelete": "true",
        "versionsToRetain": RETAINED,
        "copyEveryBatches": "0",
    }
    with kept(spark, *(PREFIX + name for name in options), RETAINED_BY_SPARK):
        for name, value in options.items():
            spark.conf.set(PREFIX + name, value)
        spark.conf.set(RETAINED_BY_SPARK, RETAINED)
        yield Past(Job(spark, store, tmp_path), shared_redis_server, options_file)


def test_past_is_moved_read_rewound_and_deleted(spark: SparkSession, past: Past) -> None:
    job = past.job
    job.feed(BATCHES)
    job.run()
    past.run_until(past.moved)
    assert past.in_store()

    def expected(batch: int) -> dict[str, int]:
        return {f"k{key}": sum(range(batch + 2)) for key in range(4)}

    with redis_state.connect(past.server.url) as reader:
        state = reader.query(past.gen).operator(0)
        for batch in (0, 3, BATCHES // 2):
            rows = {key["k"]: value["sum"] for key, value in state.items(at=batch)}
            assert rows == expected(batch)
    for batch in (0, BATCHES // 2):
        frame = spark.read.format("statestore").option("batchId", batch).load(job.url)
        rows = {row["k"]: row["sum"] for row in frame.select("key.k", "value.sum").collect()}
        assert rows == expected(batch)

    assert past.places("--verify", "--deep") == 0
    assert past.command("doctor") == 0
    assert past.places("--sweep", "--checkpoint", job.url) == 0

    assert past.command("rewind", "--to-batch", "3", "--yes", "--force") == 0
    job.output.clear()
    job.run()
    assert job.output[max(job.output)] == {f"k{key}": sum(range(job._fed + 1)) for key in range(4)}

    assert past.places("--bring-back") == 0
    assert set(past.states()) <= {"d", "n"}
    files = past.in_store()
    assert past.places("--verify", "--deep") == 0
    past.age()
    with redis_state.connect(past.server.url) as reader:
        state = reader.query(past.gen).operator(0)
        assert {k["k"]: v["sum"] for k, v in state.items(at=2)} == expected(2)
    assert past.places("--sweep", "--checkpoint", job.url) == 0
    assert set(past.in_store()) < set(files)


def test_maintenance_of_the_query_deletes_what_was_condemned(past: Past) -> None:
    past.job.feed(BATCHES)
    past.job.run()
    past.run_until(past.moved)
    assert past.places("--bring-back") == 0
    condemned = past.in_store()
    past.age()
    past.run_until(lambda: not set(condemned) & set(past.in_store()))
