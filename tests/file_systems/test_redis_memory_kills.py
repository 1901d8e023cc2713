"""Bounded queries on S3 and HDFS whose executors and drivers are killed amid a batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.processes import EXECUTOR, descendants, kill, named
from tests.file_systems.bounded import Bounded, State, reached
from tests.file_systems.bounded_job import OUTPUT
from tests.file_systems.servers import Store, class_path
from tests.spark import killed_jobs
from tests.spark.killed_jobs import Job
from tests.spark.test_redis_memory import BOUND, batches
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import unload_stores

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

_POLL_S = 0.05
BEFORE = 5


def outputs(folder: Path) -> dict[int, State]:
    """Returns the rows of each batch; a batch that ran again has to have given the same."""
    found: dict[int, State] = {}
    for file in (folder / OUTPUT).glob("*.json"):
        number, rows = json.loads(file.read_text())
        state = {key: (pad, count) for key, pad, count in rows}
        assert found.setdefault(number, state) == state
    return found


def newest(found: dict[int, State]) -> State:
    """Returns what the batches gave last for each key.

    After a kill Spark may put files that its source had listed into one batch.
    """
    state: State = {}
    for number in sorted(found):
        state |= found[number]
    return state


def new_executor(job: Job, killed: int) -> bool:
    return any(pid != killed for pid in named(descendants(job.jvm()), EXECUTOR))


def test_killed_executors_and_drivers_cost_no_rows(
    spark: SparkSession,
    store: Store,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch is in progress at each kill: what was fed before has not all come out."""

    def running(run: int) -> AbstractContextManager[Job]:
        words = [shared_redis_server.url, bounded.url, bounded.prefix, json.dumps(settings)]
        module = "tests.file_systems.bounded_job"
        return killed_jobs.running(module, tmp_path, words, run=run, poll_s=_POLL_S)

    def feed(count: int) -> None:
        at = len(bounded.expected.after)
        bounded.feed(*(rows for (rows,) in batches()[at : at + count]))

    def is_out(count: int) -> Callable[[], bool]:
        return lambda: len(outputs(tmp_path)) >= count

    unload_stores(spark)
    settings = {f"spark.hadoop.{name}": value for name, value in store.conf.items()}
    settings["spark.jars"] = class_path("s3a").replace(os.pathsep, ",")
    with reached(store, monkeypatch.setenv):
        bounded = Bounded(spark, store, shared_redis_server, tmp_path)
        with MemorySampler(shared_redis_server.url, bounded.prefix) as sampler:
            feed(4)
            with running(1) as job:
                job.wait("two batches", is_out(2))
                (first, *_) = named(descendants(job.jvm()), EXECUTOR)
                kill(first)
                job.wait("another executor", partial(new_executor, job, first))
                job.wait("the batches", is_out(4))
                feed(3)
                job.wait("a batch more", is_out(BEFORE))
                job.kill()
            assert not is_out(7)()
            with running(2) as job:
                job.wait("all rows", lambda: newest(outputs(tmp_path)) == bounded.expected.state)
                feed(3)
                job.finish()
        found = outputs(tmp_path)
        assert all(found[number] == bounded.expected.output[number] for number in range(BEFORE))
        assert newest(found) == bounded.expected.state
        bounded.check_live()
        assert sampler.peak <= BOUND
        assert bounded.in_files() > BOUND
        assert bounded.places("--verify", "--deep") == 0
