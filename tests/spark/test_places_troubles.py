"""Bounded queries whose folder, or local disk, is in trouble: clear errors, and no lost row."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from redis_state.cli.main import main
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from tests.spark.streams import PREFIX, Input
from tests.spark.test_redis_memory import BOUND, PARTITIONS, SCHEMA, batches, newest
from tests.support.redis_server import RedisServer
from tests.support.small_disk import small_disk
from tests.support.spark_sessions import kept, unload_stores

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]

SHUFFLED = "spark.sql.shuffle.partitions"
BEGUN = 6
BATCH_S = 120
DEADLINE_S = 3
FAILS_WITHIN = 10

State = dict[str, tuple[str, int]]


class Scene:
    """A query with its files in a folder, fed batch by batch, and the rows that it has to give."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self._spark = spark
        self._input = Input(folder / f"{name}-input", SCHEMA)
        self.checkpoint = folder / name
        self._state: State = {}
        self.expected: dict[int, State] = {}
        self.output: dict[int, State] = {}
        self.query: StreamingQuery | None = None

    def feed(self, count: int) -> None:
        for _ in range(count):
            (rows,) = batches()[len(self.expected) % 10]
            self._input.add(rows)
            for row in rows:
                pad, before = self._state.get(row["k"], ("", 0))
                self._state[row["k"]] = (max(pad, row["pad"]), before + 1)
            self.expected[len(self.expected)] = {row["k"]: self._state[row["k"]] for row in rows}

    def start(self) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            self.output[number] = {row["k"]: (row["pad"], row["n"]) for row in batch.collect()}

        frame = newest([self._input.stream(self._spark)])
        writer = frame.writeStream.outputMode("update").foreachBatch(keep)
        self.query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        return self.query

    def drain(self) -> None:
        """Waits until all that was fed is processed; raises the error of a query that failed."""
        assert self.query is not None
        end = time.monotonic() + BATCH_S
        while len(self.output) < len(self.expected):
            assert time.monotonic() < end, "a batch does not end"
            if not self.query.isActive:
                self.query.awaitTermination()
            time.sleep(0.2)
        self.query.processAllAvailable()

    def failure(self) -> str:
        """Feeds batches until the query fails; returns the message."""
        for _ in range(FAILS_WITHIN):
            self.feed(1)
            try:
                self.drain()
            except StreamingQueryException as error:
                return str(error)
        raise AssertionError("the query did not fail")

    def check(self) -> None:
        assert self.output == self.expected

    @property
    def gen(self) -> str:
        return gen_of(folder_at(str(self.checkpoint)))

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


@pytest.fixture
def new_scene(
    spark: SparkSession, tmp_path: Path, redis_conf: Callable[[dict[str, str]], None]
) -> Iterator[Callable[[str], Scene]]:
    made: list[Scene] = []

    def new(name: str) -> Scene:
        made.append(Scene(spark, tmp_path, name))
        return made[-1]

    unload_stores(spark)
    redis_conf(
        {
            "redisMemory": f"{BOUND >> 10}k",
            "localMemory": "4m",
            "versionsToRetain": "3",
            "placesFolder": str(tmp_path / "disk" / "files"),
            "deadline": f"{DEADLINE_S}s",
        }
    )
    with kept(spark, SHUFFLED):
        spark.conf.set(SHUFFLED, str(PARTITIONS))
        yield new
        for scene in made:
            scene.stop()


def begun(scene: Scene, count: int = BEGUN) -> Scene:
    """Runs the first batches of a scene, which exceed the bound."""
    scene.feed(count)
    scene.start()
    scene.drain()
    return scene


def verify(server: RedisServer, scene: Scene) -> int:
    return main(["places", scene.gen, "--url", server.url, "--verify", "--deep"])


def goes_on(scene: Scene) -> None:
    """Starts the query again, with nothing in memory, and compares all rows."""
    scene.stop()
    assert scene.query is not None
    unload_stores(scene._spark)
    scene.start()
    scene.feed(2)
    scene.drain()
    scene.check()


@pytest.mark.parametrize("is_mounted", [True, False])
def test_folder_that_is_taken_away_is_unavailable_and_nothing_is_lost(
    new_scene: Callable[[str], Scene],
    shared_redis_server: RedisServer,
    tmp_path: Path,
    is_mounted: bool,
) -> None:
    """A disk that is unmounted leaves its empty folder."""
    place = tmp_path / "disk"
    with small_disk(place, "64m") as disk:
        scene = begun(new_scene("taken"))
        if is_mounted:
            disk.move(tmp_path / "aside")
        else:
            (place / "files").rename(place / "aside")
        message = scene.failure()
        assert "[REDIS_UNAVAILABLE]" in message
        assert str(place / "files") in message
        assert "is not there" in message
        assert not (place / "files").exists()
        if is_mounted:
            disk.move(place)
        else:
            (place / "aside").rename(place / "files")
        goes_on(scene)
        assert verify(shared_redis_server, scene) == 0


def test_deleted_files_are_lost_by_name_until_they_are_restored(
    new_scene: Callable[[str], Scene],
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files, backup = tmp_path / "disk" / "files", tmp_path / "backup"
    scene = begun(new_scene("deleted"))
    scene.stop()
    unload_stores(scene._spark)
    shutil.copytree(files, backup)
    for file in files.rglob("*.seg"):
        file.unlink()
    scene.start()
    message = scene.failure()
    assert "[REDIS_FILE_LOST]" in message
    assert str(files) in message
    assert "Restore the file from a backup" in message
    assert verify(shared_redis_server, scene) == 4
    assert "FILE_LOST" in capsys.readouterr().err
    shutil.copytree(backup, files, dirs_exist_ok=True)
    goes_on(scene)
    assert verify(shared_redis_server, scene) == 0


@pytest.mark.parametrize(
    ("option", "mended", "told"),
    [("ro", "rw", "Read-only file system"), ("size=2m", "size=64m", "No space left on device")],
)
def test_folder_that_takes_no_files_is_unavailable_and_nothing_is_lost(
    new_scene: Callable[[str], Scene],
    shared_redis_server: RedisServer,
    tmp_path: Path,
    option: str,
    mended: str,
    told: str,
) -> None:
    with small_disk(tmp_path / "disk", "64m") as disk:
        scene = begun(new_scene("refused"), 1 if "size" in option else BEGUN)
        disk.change(option)
        message = scene.failure()
        disk.change(mended)
        assert "[REDIS_UNAVAILABLE]" in message
        assert str(tmp_path / "disk" / "files") in message
        assert told in message
        goes_on(scene)
        assert verify(shared_redis_server, scene) == 0


def test_full_local_disk_costs_speed_alone(
    spark: SparkSession,
    new_scene: Callable[[str], Scene],
    tmp_path: Path,
) -> None:
    with (
        small_disk(tmp_path / "local", "1m") as disk,
        kept(spark, PREFIX + "localDisk", PREFIX + "localDiskFolder"),
    ):
        spark.conf.set(PREFIX + "localDisk", "64m")
        spark.conf.set(PREFIX + "localDiskFolder", str(disk.folder))
        scene = begun(new_scene("full"), 10)
        scene.check()
        goes_on(scene)


def test_queries_share_a_folder_without_harm(
    new_scene: Callable[[str], Scene],
    shared_redis_server: RedisServer,
    tmp_path: Path,
) -> None:
    first, second = begun(new_scene("first")), begun(new_scene("second"))
    for scene in (first, second):
        scene.feed(2)
        scene.drain()
        scene.check()
    folders = {one.name for one in (tmp_path / "disk" / "files").iterdir()}
    assert {first.gen, second.gen} <= folders
    second.stop()
    command = ["places", second.gen, "--url", shared_redis_server.url]
    checkpoint = ["--checkpoint", str(second.checkpoint)]
    assert main([*command, *checkpoint, "--sweep", "--exclusive"]) == 0
    purge = ["purge", "--gen", second.gen, "--url", shared_redis_server.url, "--yes", "--force"]
    assert main([*purge, "--now"]) == 0
    assert verify(shared_redis_server, first) == 0
    goes_on(first)
