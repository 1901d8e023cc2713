"""Readers of uncommitted state beside a batch that runs, and after a kill."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state.errors import ConfigError, NotFoundError
from redis_state.live import Reader
from tests.spark import killed_jobs
from tests.spark.killed_jobs import LIMIT_S, Job
from tests.spark.uncommitted_job import NAME
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.application, pytest.mark.slow]

_POLL_S = 0.05


def running(folder: Path, url: str, kind: str, run: int = 1) -> AbstractContextManager[Job]:
    return killed_jobs.running(
        "tests.spark.uncommitted_job", folder, [url, kind], run=run, poll_s=_POLL_S
    )


def rows(reader: Reader, at: str) -> tuple[dict[str, Any], int]:
    """The keys with their values, and the number of partitions that may be taken back."""
    try:
        view = reader.query(NAME).view(at=at)
        return {key["k"]: value for key, value in view.operator(0).items()}, view.uncommitted
    except (NotFoundError, ConfigError):
        # The query has not begun.
        return {}, 0


def has(reader: Reader, at: str, keys: Sequence[str]) -> bool:
    return set(rows(reader, at)[0]) == set(keys)


def committed(folder: Path) -> int:
    """Number of batches that Spark has committed."""
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def append(folder: Path, words: Sequence[str]) -> None:
    with (folder / "log.txt").open("a") as log:
        log.write("".join(f"{word}\n" for word in words))


def wait_for_fall_back(reader: Reader, before: dict[str, Any]) -> None:
    """Waits until nothing is left of a killed batch."""
    end = time.monotonic() + LIMIT_S
    while rows(reader, "uncommitted") != (before, 0):
        assert time.monotonic() < end, "the rows of a killed batch stay"
        time.sleep(_POLL_S)


@pytest.mark.timeout(5 * LIMIT_S)
def test_rows_of_a_real_time_batch_are_read_until_it_is_taken_back(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    append(tmp_path, ["a", "b", "a"])
    with redis_state.connect(redis_server.url) as reader:
        with running(tmp_path, redis_server.url, "deduplication") as job:
            job.wait("confirmed rows", partial(has, reader, "confirmed", ["a", "b"]))
            (tmp_path / "long").touch()
            append(tmp_path, ["c", "a"])
            job.wait("a row", partial(has, reader, "uncommitted", ["a", "b", "c"]))
            append(tmp_path, [f"d{number}" for number in range(50)])
            keys = ["a", "b", "c", *(f"d{number}" for number in range(50))]
            job.wait("more rows", partial(has, reader, "uncommitted", keys))
            assert rows(reader, "uncommitted")[1] > 0
            live = reader.query(NAME).live_view(at="uncommitted").operator(0)
            assert live.get({"k": "d7"}) is not None
            job.kill()
        before, _ = rows(reader, "latest")
        assert {"a", "b"} <= set(before)
        assert "d7" not in before
        wait_for_fall_back(reader, before)
        with running(tmp_path, redis_server.url, "deduplication", 2) as job:
            job.wait("the rows again", partial(has, reader, "uncommitted", keys))


@pytest.mark.timeout(5 * LIMIT_S)
def test_an_aggregation_in_real_time_mode_has_the_keys_that_spark_has_passed_on(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Spark's operator holds the newest 1,000 keys of a partition back until the batch ends."""
    (tmp_path / "long").touch()
    words = [f"w{number}" for number in range(6000)]
    append(tmp_path, words)
    with (
        redis_state.connect(redis_server.url) as reader,
        running(tmp_path, redis_server.url, "aggregation") as job,
    ):
        job.wait("rows", lambda: len(rows(reader, "uncommitted")[0]) > 3000)
        found, partitions = rows(reader, "uncommitted")
        assert partitions == 2
        assert set(found) < set(words)
        assert all(value == {"count": 1} for value in found.values())
        assert committed(tmp_path) == 0


@pytest.mark.timeout(5 * LIMIT_S)
def test_rows_of_a_slow_ordinary_batch_are_read_until_it_is_taken_back(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.txt").write_text("a\nb\na\n")
    words = [f"w{number}" for number in range(1000)]
    with redis_state.connect(redis_server.url) as reader:
        with running(tmp_path, redis_server.url, "slow") as job:
            job.wait("the first batch", lambda: committed(tmp_path) == 1)
            first, _ = rows(reader, "latest")
            assert set(first) == {"a", "b"}
            (tmp_path / "1.txt").write_text("".join(f"{word}\n" for word in words))
            (tmp_path / "1.txt").rename(source / "1.txt")
            job.wait("rows", lambda: len(rows(reader, "uncommitted")[0]) > 10)
            found, partitions = rows(reader, "uncommitted")
            assert partitions > 0
            assert committed(tmp_path) == 1
            assert rows(reader, "latest")[0] == first
            assert first.items() <= found.items()
            assert set(found) < {"a", "b", *words}
            job.kill()
        assert committed(tmp_path) == 1
        wait_for_fall_back(reader, first)
