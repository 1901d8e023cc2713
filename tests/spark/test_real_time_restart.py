"""Killed drivers of real-time queries: in the end state and rows are those of an ordinary query."""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import redis_state
from tests.faults.processes import send
from tests.spark import killed_jobs
from tests.spark.killed_jobs import LIMIT_S, Job
from tests.spark.real_time_restart_job import NAME, QUERIES
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.application, pytest.mark.slow]

_POLL_S = 0.005
_SOME_BYTES = 1000  # a fifth of a batch


def running(folder: Path, url: str, kind: str, run: int) -> AbstractContextManager[Job]:
    words = [url, kind, str(run)]
    return killed_jobs.running(
        "tests.spark.real_time_restart_job", folder, words, run=run, poll_s=_POLL_S
    )


def logged(folder: Path) -> set[int]:
    """Batches of Spark's commit log."""
    commits = folder / "checkpoints" / NAME / "commits"
    return {int(path.name) for path in commits.glob("[0-9]*")}


def lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a sink; a killed worker may have left a part of one at the end."""
    found = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in found if line.endswith("}")]


def kill_in_a_batch(job: Job, folder: Path, url: str) -> None:
    """Kills when a batch has opened the state of the one before, and read rows since.

    Rows at the sink say nothing of it: a sink in Python gets them when a batch ends.
    """
    job.wait("a first batch", lambda: logged(folder))
    with redis_state.connect(url) as reader:
        query = reader.query(NAME)
        job.wait("a batch behind it", lambda: query.status().confirmed_batch is not None)
    length = (folder / "log.txt").stat().st_size
    job.wait("more rows", lambda: (folder / "log.txt").stat().st_size > length + _SOME_BYTES)
    job.kill()


def kill_between_state_and_log(job: Job, folder: Path, url: str, run: int) -> None:
    """Kills when Redis has the state of a batch that Spark's log lacks.

    The JVM is stopped first: else it might write its log between the look and the kill.
    """
    before = logged(folder)
    with redis_state.connect(url) as reader:
        query = reader.query(NAME)

        def is_between() -> bool:
            if not logged(folder) > before:
                return False
            newest = query.status().newest_batch
            if newest is None or newest in logged(folder):
                return False
            send(jvm, signal.SIGSTOP)
            if newest not in logged(folder):
                return True
            send(jvm, signal.SIGCONT)
            return False

        job.wait("a first row", lambda: lines(folder / f"out-{run}.txt"))
        jvm = job.jvm()
        job.wait("a state without a log entry", is_between)
    job.kill()


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("kind", QUERIES)
def test_killed_query_ends_with_the_result_of_an_ordinary_one(
    redis_server: RedisServer, tmp_path: Path, kind: str
) -> None:
    ended: list[set[int]] = [set()]
    url = redis_server.url
    with running(tmp_path, url, kind, 0) as job:
        kill_in_a_batch(job, tmp_path, url)
    ended.append(logged(tmp_path))
    with running(tmp_path, url, kind, 1) as job:
        kill_between_state_and_log(job, tmp_path, url, 1)
    ended.append(logged(tmp_path))
    with running(tmp_path, url, kind, 2) as job:
        job.finish()
    ended.append(logged(tmp_path))

    out = [
        {name: value for name, value in row.items() if name != "batch"}
        for run, (before, after) in enumerate(pairwise(ended))
        for row in lines(tmp_path / f"out-{run}.txt")
        if row["batch"] in after - before
    ]
    ordinary = [
        {name: value for name, value in row.items() if name != "batch"}
        for row in lines(tmp_path / "ordinary.txt")
    ]
    assert len(ordinary) > 100
    with redis_state.connect(url) as reader:
        state = list(reader.query(NAME).operator(0).items(at="latest"))
    if kind == "aggregation":
        assert {key["k"]: (value["count"], value["sum"]) for key, value in state} == {
            row["k"]: (row["n"], row["total"]) for row in ordinary
        }
        newest = {row["k"]: row for row in sorted(out, key=lambda row: row["n"])}
        assert newest == {row["k"]: row for row in ordinary}
    else:
        assert {key["k"] for key, _ in state} == {row["k"] for row in ordinary}
        by_key = sorted(out, key=lambda row: row["k"])
        assert by_key == sorted(ordinary, key=lambda row: row["k"])
