"""Restarts, rewinds and copies of a checkpoint; lost and returning servers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from tests.spark.streams import Input, Output, Streams
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("files_as_spark_chooses")]

FILES = "spark.sql.streaming.checkpointFileManagerClass"
URL = "spark.sql.streaming.stateStore.redis.url"
NAME = "counts"


def batch(number: int) -> list[dict[str, object]]:
    return [{"k": f"k{i % 5}", "v": number * 10 + i} for i in range(12)]


def counted(source: Input, spark: SparkSession) -> DataFrame:
    return source.stream(spark).groupBy("k").agg(sf.sum("v"), sf.count("*"))


def expected(spark: SparkSession, batches: int) -> list[str]:
    rows = [row for number in range(batches) for row in batch(number)]
    frame = spark.createDataFrame(rows, "k string, v long")
    return sorted(str(row) for row in frame.groupBy("k").agg(sf.sum("v"), sf.count("*")).collect())


class Job:
    """One query whose state can be compared with a plain batch computation at any time."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.source = streams.input("events", "k string, v long")
        self.output: Output = {}
        self.batches = 0

    def feed(self, batches: int) -> None:
        for _ in range(batches):
            self.source.add(batch(self.batches))
            self.batches += 1

    def run(self, name: str = NAME) -> None:
        frame = counted(self.source, self.streams.spark)
        self.streams.run(frame, name, mode="complete", output=self.output)

    def check(self) -> None:
        assert self.output[max(self.output)] == expected(self.streams.spark, self.batches)

    def rewind_to(self, batch_id: int) -> None:
        """Removes newer batches from Spark's logs, as its documentation describes."""
        checkpoint = self.streams.checkpoint(NAME)
        for log, newest in (("offsets", batch_id), ("commits", batch_id)):
            for path in (checkpoint / log).iterdir():
                number = path.name.strip(".").removesuffix(".crc")
                if number.isdigit() and int(number) > newest:
                    path.unlink()


@pytest.fixture
def files_as_spark_chooses(spark: SparkSession) -> Iterator[None]:
    """Removes the settings of `make test` for speed (tools/jvm.py)."""
    chosen = spark.conf.get(FILES, None)
    spark.conf.unset(FILES)
    yield
    if chosen is not None:
        spark.conf.set(FILES, chosen)


@pytest.fixture
def job(streams: Streams) -> Job:
    return Job(streams)


@pytest.fixture
def use_server(
    spark: SparkSession, start_redis: Callable[..., RedisServer]
) -> Iterator[Callable[..., RedisServer]]:
    """Points queries that start from here on at a server of this test."""
    before = spark.conf.get(URL)
    assert before is not None

    def use(**options: object) -> RedisServer:
        server = start_redis(**options)
        spark.conf.set(URL, server.url)
        return server

    yield use
    spark.conf.set(URL, before)


def failure(run: Callable[[], object]) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        run()
    return str(caught.value)


def test_restarted_query_continues(job: Job) -> None:
    for _ in range(3):
        job.feed(2)
        job.run()
        job.check()


def test_restart_from_an_older_batch(job: Job) -> None:
    job.feed(6)
    job.run()
    job.rewind_to(2)
    job.output.clear()
    job.run()
    assert min(job.output) == 3
    job.check()


def test_doctor_and_rewind_return_to_complete_state(
    job: Job, use_server: Callable[..., RedisServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = use_server()
    job.feed(6)
    job.run()
    place = ["--url", server.url, "--checkpoint", str(job.streams.checkpoint(NAME))]
    assert main(["doctor", *place]) == 0
    with server.client() as client:
        (newest, *_) = [name for name in client.keys("*") if b"}:d:6:" in name]
        client.unlink(newest)
    assert main(["doctor", *place]) == PROBLEMS_STATUS
    assert "--to-batch 4 " in capsys.readouterr().out
    assert main(["rewind", *place, "--to-batch", "4", "--yes", "--force"]) == 0
    job.output.clear()
    job.run()
    assert sorted(job.output) == [5]
    job.check()
    assert main(["doctor", *place]) == 0


def test_deleted_checkpoint_starts_empty(job: Job) -> None:
    job.feed(3)
    job.run()
    shutil.rmtree(job.streams.checkpoint(NAME))
    job.output.clear()
    job.run()
    assert sorted(job.output) == [0, 1, 2]
    job.check()


def test_copied_checkpoint_is_refused(job: Job) -> None:
    job.feed(2)
    job.run()
    shutil.copytree(job.streams.checkpoint(NAME), job.streams.checkpoint("copy"))
    job.feed(1)
    message = failure(lambda: job.run("copy"))
    assert "[REDIS_CHECKPOINT_MOVED_OR_COPIED]" in message
    assert "onPathChange=adopt" in message


def test_moved_checkpoint_can_be_adopted(job: Job) -> None:
    job.feed(2)
    job.run()
    job.streams.checkpoint(NAME).rename(job.streams.checkpoint("moved"))
    job.feed(1)
    conf = job.streams.spark.conf
    conf.set("spark.sql.streaming.stateStore.redis.onPathChange", "adopt")
    try:
        job.run("moved")
    finally:
        conf.unset("spark.sql.streaming.stateStore.redis.onPathChange")
    job.check()


def marker_files(job: Job, name: str = NAME) -> dict[str, tuple[bytes, int]]:
    """Content and identity of each."""
    files = (job.streams.checkpoint(name) / "state").glob("*_redis_state*")
    return {file.name: (file.read_bytes(), file.stat().st_ino) for file in files}


def test_driver_creates_the_id_before_the_first_batch(
    job: Job, use_server: Callable[..., RedisServer]
) -> None:
    server = use_server()
    job.run()
    assert not job.output
    with server.client() as client:
        (claim,) = client.keys("{rs}:g:*")
        decided = client.get(claim)
        made: dict[str, tuple[bytes, int]] = {}
        for _ in range(2):
            job.feed(2)
            job.run()
            job.check()
            made = made or marker_files(job)
            assert marker_files(job) == made
            assert not client.exists(claim)
    ((text, _),) = made.values()
    assert json.loads(text)["gen"] == decided.decode()


def test_a_query_without_state_gets_no_marker(job: Job) -> None:
    job.feed(1)
    job.streams.run(job.source.stream(job.streams.spark).select("k"), "plain", mode="append")
    assert not marker_files(job, "plain")


def test_driver_adopts_once_and_changes_no_file(job: Job) -> None:
    job.feed(2)
    job.run()
    before = marker_files(job)
    job.streams.checkpoint(NAME).rename(job.streams.checkpoint("moved"))
    conf = job.streams.spark.conf
    conf.set("spark.sql.streaming.stateStore.redis.onPathChange", "adopt")
    try:
        job.run("moved")
    finally:
        conf.unset("spark.sql.streaming.stateStore.redis.onPathChange")
    adopted = marker_files(job, "moved")
    assert adopted.keys() == {"_redis_state", "_redis_state.1"}
    assert before.items() <= adopted.items()
    job.feed(1)
    job.run("moved")
    job.check()
    assert marker_files(job, "moved") == adopted
    shutil.copytree(job.streams.checkpoint("moved"), job.streams.checkpoint(NAME))
    job.feed(1)
    assert "[REDIS_CHECKPOINT_MOVED_OR_COPIED]" in failure(job.run)


def test_missing_marker_is_named(job: Job) -> None:
    job.feed(2)
    job.run()
    (job.streams.checkpoint(NAME) / "state" / "_redis_state").unlink()
    job.feed(1)
    assert "[REDIS_MARKER_MISSING]" in failure(job.run)


def test_emptied_server_raises_and_never_starts_empty(
    job: Job, use_server: Callable[..., RedisServer]
) -> None:
    server = use_server()
    job.feed(3)
    job.run()
    server.kill()
    server.restart()
    job.feed(1)
    message = failure(job.run)
    assert "[REDIS_STATE_LOST]" in message
    assert f"redis-state doctor --checkpoint {job.streams.checkpoint(NAME)}" in message


def test_query_continues_after_a_server_restart(
    job: Job, use_server: Callable[..., RedisServer], tmp_path: Path
) -> None:
    folder = tmp_path / "aof"
    folder.mkdir()
    server = use_server(folder=folder, options={"appendonly": "yes", "appendfsync": "always"})
    job.feed(3)
    job.run()
    server.kill()
    server.restart()
    job.feed(2)
    job.run()
    job.check()


def test_state_reader_disturbs_nothing(job: Job) -> None:
    job.feed(4)
    job.run()
    path = str(job.streams.checkpoint(NAME))
    for _ in range(2):
        for batch_id in range(4):
            reader = job.streams.spark.read.format("statestore").option("batchId", batch_id)
            rows = reader.load(path).select("key.k", "value.*").collect()
            assert sorted(r[0] for r in rows) == [f"k{i}" for i in range(5)]
            assert sum(r[2] for r in rows) == 12 * (batch_id + 1)
        job.feed(1)
        job.run()
        job.check()


def test_schema_change_stays_an_error_of_spark(job: Job) -> None:
    job.feed(2)
    job.run()
    job.feed(1)
    frame = job.source.stream(job.streams.spark).groupBy("k").agg(sf.max("k").alias("m"))
    message = failure(lambda: job.streams.run(frame, NAME, mode="complete"))
    assert "STATE_STORE" in message
    assert "SCHEMA" in message
