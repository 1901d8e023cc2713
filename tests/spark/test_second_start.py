"""A query is started again on its checkpoint while it runs: only the second start fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from tests.spark.streams import FORMAT, PROVIDER, REDIS, Streams
from tests.spark.test_checkpoints import NAME, Job, counted
from tests.support.errors_page import documented, last_of, shown
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
AGAIN = "A query that is started again while it runs"
LIMIT_S = 240  # for a machine that is busy with other work


class Second:
    """The driver that is started beside a living one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def said(self, *begins: str) -> str:
        """The next line that begins with one of these words; what Spark prints is skipped."""
        words = ("ready", "batch", "rows", "failed", "done")
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(words):
                assert line.startswith(begins), line
                return line.strip()
        raise AssertionError("the second driver is gone")

    def error(self) -> str:
        text: str = json.loads(self.said("failed").removeprefix("failed "))
        return text


@contextmanager
def second_driver(folder: Path, url: str, checkpoint_format: str) -> Iterator[Second]:
    settings = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    arguments = [str(folder), url, checkpoint_format]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.second_start_job", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    ) as process:
        watchdog = threading.Timer(LIMIT_S, process.kill)
        watchdog.start()
        try:
            second = Second(process)
            second.said("ready")
            yield second
        finally:
            watchdog.cancel()
            process.kill()


class First:
    """The query that runs; `held` is the batch before or behind which it waits."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.held: tuple[int, str] | None = None
        self._there = threading.Event()
        self._free = threading.Event()
        job.streams.spark.conf.set(PROVIDER, REDIS)
        self.query = (
            counted(job.source, job.streams.spark)
            .writeStream.outputMode("complete")
            .option("checkpointLocation", str(job.streams.checkpoint(NAME)))
            .foreachBatch(self._look_at)
            .start()
        )

    def hold(self, batch_id: int, where: str) -> None:
        """The next batch to be fed is this one."""
        self.held = (batch_id, where)
        self._there.clear()
        self._free.clear()
        self.job.feed(1)
        assert self._there.wait(LIMIT_S)

    def release(self) -> None:
        self.held = None
        self._free.set()

    def goes_on(self, batches: int) -> None:
        """Processes some more, all of it right."""
        self.job.feed(batches)
        self.query.processAllAvailable()
        self.job.check()
        assert self.query.isActive

    def _look_at(self, batch: DataFrame, batch_id: int) -> None:
        self._wait_at(batch_id, "before")
        self.job.output[batch_id] = sorted(str(row) for row in batch.collect())
        self._wait_at(batch_id, "behind")

    def _wait_at(self, batch_id: int, where: str) -> None:
        if self.held == (batch_id, where):
            self._there.set()
            assert self._free.wait(LIMIT_S)


@pytest.fixture(params=[pytest.param("1", marks=pytest.mark.long), "2"])
def checkpoint_format(streams: Streams, request: pytest.FixtureRequest) -> Iterator[str]:
    conf = streams.spark.conf
    before = conf.get(FORMAT)
    conf.set(FORMAT, request.param)
    yield request.param
    conf.set(FORMAT, str(before))


def test_only_the_second_start_fails(
    streams: Streams, checkpoint_format: str, shared_redis_server: RedisServer
) -> None:
    job = Job(streams)
    first = First(job)
    first.goes_on(2)
    with second_driver(streams.folder, shared_redis_server.url, checkpoint_format) as second:
        # It repeats batch 2, and has not begun when the first driver is three batches further.
        first.hold(2, "before")
        second.go_on()
        second.said("batch 2")
        first.release()
        first.goes_on(3)
        second.go_on()
        error = second.error()
        assert shown(last_of(error)) == documented("applications")[AGAIN]
        assert str(first.query.runId) in error
        first.goes_on(1)

        # It has committed its batch in each partition before the first driver logs the same one.
        first.hold(7, "behind")
        second.go_on()
        second.said("batch 7")
        second.go_on()
        second.said("rows 7")
        first.release()
        first.goes_on(2)
        second.go_on()
        assert "CONCURRENT_STREAM_LOG_UPDATE" in second.error()
        first.goes_on(1)
    first.query.stop()
    job.feed(2)
    job.run()
    job.check()
