"""Bounded queries whose file system is slow, refuses requests or shows files late for a moment."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.file_systems.bounded import Bounded, bound, reached
from tests.file_systems.faulty_proxy import Troubles, faulty_proxy
from tests.file_systems.servers import Store, set_safe_mode
from tests.spark.test_redis_memory import BATCHES, BOUND, batches
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import unload_stores

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]

BEGUN = 3
TROUBLE_S = 8
BATCH_S = 240


@pytest.fixture
def troubled(spark: SparkSession, s3_store: Store) -> Iterator[tuple[Store, Troubles]]:
    """A new bucket, which Spark reaches by a proxy, and other tools without it."""
    bucket = f"troubled-{uuid.uuid4().hex}"
    endpoint = f"fs.s3a.bucket.{bucket}.endpoint"
    s3_store.admin.call_s3("create_bucket", Bucket=bucket)
    with faulty_proxy(s3_store.options["endpoint_url"]) as (address, troubles):
        spark.conf.set(endpoint, address)
        yield dataclasses.replace(s3_store, url=f"s3a://{bucket}", root=bucket), troubles
        unload_stores(spark)
        spark.conf.unset(endpoint)


class Running:
    """A query that runs, fed batch by batch."""

    def __init__(self, job: Bounded) -> None:
        self.job = job
        self._fed = [rows for (rows,) in batches()]
        self._started: StreamingQuery | None = None

    def start(self) -> None:
        writer = self.job.writer(self.job.output).option("checkpointLocation", self.job.url)
        self._started = writer.start()

    @property
    def query(self) -> StreamingQuery:
        assert self._started is not None
        return self._started

    def feed(self, count: int) -> None:
        at = len(self.job.expected.after)
        self.job.feed(*self._fed[at : at + count])

    def drain(self) -> None:
        """Waits until all that was fed is processed; a failure of the query is raised."""
        end = time.monotonic() + BATCH_S
        while len(self.job.output) < len(self.job.expected.after):
            assert time.monotonic() < end, "a batch does not end"
            if not self.query.isActive:
                self.query.processAllAvailable()
                raise AssertionError("the query ended")
            time.sleep(0.2)
        self.query.processAllAvailable()


def through(job: Bounded, trouble: Callable[[], object]) -> None:
    """Runs a query past its bound, makes trouble amid it, and compares all of its rows."""
    running = Running(job)
    with bound(job), MemorySampler(job.server.url, job.prefix) as sampler:
        running.feed(BEGUN)
        running.start()
        try:
            running.drain()
            threading.Thread(target=trouble, daemon=True).start()
            running.feed(BATCHES - BEGUN)
            running.drain()
        finally:
            running.query.stop()
    assert sampler.peak <= BOUND
    job.check()
    assert job.in_files() > BOUND
    assert job.places("--verify", "--deep") == 0


def test_server_that_stands_still_for_a_moment_costs_no_rows(
    spark: SparkSession,
    store: Store,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stand_still() -> None:
        for _ in range(3):
            os.kill(store.pid, signal.SIGSTOP)
            try:
                time.sleep(TROUBLE_S / 2)
            finally:
                os.kill(store.pid, signal.SIGCONT)
            time.sleep(2)

    unload_stores(spark)
    with reached(store, monkeypatch.setenv):
        through(Bounded(spark, store, shared_redis_server, tmp_path), stand_still)


def test_s3_that_refuses_requests_for_a_moment_costs_no_rows(
    spark: SparkSession,
    troubled: tuple[Store, Troubles],
    shared_redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, troubles = troubled
    unload_stores(spark)
    with reached(store, monkeypatch.setenv):
        job = Bounded(spark, store, shared_redis_server, tmp_path)
        through(job, lambda: troubles.refuse_for(TROUBLE_S))
    assert troubles.met["refused"] > 0


def test_s3_that_is_slow_and_shows_new_files_late_costs_no_rows(
    spark: SparkSession,
    troubled: tuple[Store, Troubles],
    shared_redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def be_odd() -> None:
        troubles.late_s, troubles.slow_s = 3, 0.1

    store, troubles = troubled
    unload_stores(spark)
    with reached(store, monkeypatch.setenv):
        through(Bounded(spark, store, shared_redis_server, tmp_path), be_odd)
    assert troubles.met["late"] > 0
    assert troubles.met["slow"] > 0


@pytest.mark.parametrize("place", ["checkpoint", "placesFolder"])
def test_hdfs_in_safe_mode_for_a_moment_costs_no_rows(
    spark: SparkSession,
    hdfs_store: Store,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Spark itself ends a query whose checkpoint refuses its logs; the next start goes on."""
    unload_stores(spark)
    local = Store(f"file://{tmp_path}", {}, {}, None, str(tmp_path))
    with ExitStack() as stack:
        stack.enter_context(reached(hdfs_store, monkeypatch.setenv))
        job = Bounded(
            spark,
            hdfs_store if place == "checkpoint" else local,
            shared_redis_server,
            tmp_path,
        )
        more = {} if place == "checkpoint" else {place: f"{hdfs_store.url}/{tmp_path.name}/files"}
        stack.enter_context(bound(job, **more))
        sampler = stack.enter_context(MemorySampler(job.server.url, job.prefix))
        running = Running(job)
        running.feed(BEGUN)
        running.start()
        try:
            running.drain()
            set_safe_mode(hdfs_store, is_on=True)
            try:
                running.feed(BATCHES - BEGUN)
                time.sleep(TROUBLE_S)
                if place == "checkpoint":
                    with pytest.raises(StreamingQueryException, match="Name node is in safe mode"):
                        running.query.awaitTermination()
            finally:
                set_safe_mode(hdfs_store, is_on=False)
            if place == "checkpoint":
                running.start()
            running.drain()
        finally:
            running.query.stop()
        job.check()
        assert job.in_files() > BOUND
        assert job.places("--verify", "--deep") == 0
    assert sampler.peak <= BOUND
