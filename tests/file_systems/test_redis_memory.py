"""Queries with `redisMemory` whose files lie in a real S3 server, by S3A, and in a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from redis_state.recovery.copies import copies_of
from redis_state.recovery.copies.files import version_of
from tests.file_systems.bounded import Bounded, bound, reached
from tests.file_systems.servers import Store
from tests.spark.test_redis_memory import BATCHES, BOUND, batches
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import unload_stores
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]

HALF = 5


@pytest.fixture
def job(
    spark: SparkSession,
    store: Store,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bounded]:
    # Another test's stores would be maintained meanwhile.
    unload_stores(spark)
    with reached(store, monkeypatch.setenv):
        yield Bounded(spark, store, shared_redis_server, tmp_path)


def run_past_the_bound(job: Bounded) -> None:
    """Runs ten batches in two runs, the second one without anything in memory."""
    fed = [rows for (rows,) in batches()]
    job.feed(*fed[:HALF])
    job.run()
    unload_stores(job.spark)
    job.feed(*fed[HALF:])
    job.run()


def test_query_past_its_bound_gives_the_rows_of_an_unbounded_one(
    job: Bounded, tmp_path: Path
) -> None:
    with bound(job):
        with MemorySampler(job.server.url, job.prefix) as sampler:
            run_past_the_bound(job)
        assert BOUND / 3 < sampler.peak <= BOUND
        job.check()
        assert job.output == job.unbounded(tmp_path)
        assert job.in_files() > BOUND
        for batch in (2, HALF, 8):
            assert job.at(batch) == job.expected.after[batch]
        assert job.places("--verify", "--deep") == 0
        assert job.command("doctor") == 0


def test_lost_server_is_restored_by_reference_and_files_are_brought_back(job: Bounded) -> None:
    with bound(job, copyEveryBatches="2"):
        run_past_the_bound(job)
        job.check()
        wait_until(lambda: newest_copy(job) >= HALF, "a copy of the second run")
        with job.server.client() as raw:
            raw.flushdb()
        assert job.command("restore", "--yes", "--force") == 0
        assert job.live() == job.expected.after[newest_copy(job) - 1]
        assert job.in_files() > BOUND
        assert job.places("--verify", "--deep") == 0
        with MemorySampler(job.server.url, job.prefix) as sampler:
            go_on(job)
        assert sampler.peak <= BOUND
    with bound(job, redisMemory=None):
        go_on(job)
        assert job.places("--bring-back") == 0
        assert job.in_files() == 0
        assert job.file_states() <= {"d", "n"}
        go_on(job)
    assert job.command("doctor") == 0


def newest_copy(job: Bounded) -> int:
    """Returns the version of the newest copy, 0 if there is none."""
    return max(map(version_of, copies_of(job.folder())), default=0)


def go_on(job: Bounded) -> None:
    """Runs one more batch of new rows; rows after a restored copy may come in the same one."""
    job.feed(batches()[len(job.expected.after) % BATCHES][0])
    job.output.clear()
    job.run()
    last = job.output[max(job.output)]
    assert last.items() >= job.expected.output[len(job.expected.after) - 1].items()
    wait_until(lambda: job.live() == job.expected.state, "the rows of the newest batch")
