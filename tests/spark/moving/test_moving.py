"""State that moves to another provider: a query goes on there as one that never moved."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from tests.spark.streams import FORMAT, HDFS, REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, events, joined, two_inputs
from tests.spark.test_transform_with_state import OUT, Everything
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

Build = Callable[[Sequence[DataFrame]], DataFrame]
Batches = Sequence[Sequence[Sequence[dict[str, Any]]]]
SHORT = {
    ("aggregation", HDFS, "1"),
    ("processors", ROCKSDB, "2"),
}
CALLED = {HDFS: "hdfs-backed", ROCKSDB: "rocksdb"}


def aggregation(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "5 minutes")
    return late.groupBy(sf.window("ts", "10 minutes"), "k").agg(sf.sum("v"))


def deduplication(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(["k"])


def sessions(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "5 minutes")
    return late.groupBy(sf.session_window("ts", "3 minutes"), "k").agg(sf.sum("v"))


def join(inputs: Sequence[DataFrame]) -> DataFrame:
    return joined(inputs, "full_outer")


def processors(inputs: Sequence[DataFrame]) -> DataFrame:
    """Value, list and map state, and timers: every kind of column family."""
    late = inputs[0].withWatermark("ts", "5 minutes")
    return late.groupBy("k").transformWithStateInPandas(
        Everything(), outputStructType=OUT, outputMode="Update", timeMode="EventTime"
    )


FAMILIES: dict[str, tuple[Build, Batches]] = {
    "aggregation": (aggregation, events(2)),
    "deduplication": (deduplication, events(5)),
    "session windows": (sessions, events(7)),
    "join": (join, two_inputs(6)),
    "processors": (processors, events(31)),
}
LEAVING = pytest.mark.compatibility(
    refused=dict.fromkeys(
        ("4.0", "4.1"),
        (
            "cannot write it at a version",
            "its RocksDB can be left, as `adopt` shows, and not gone to",
        ),
    )
)
PROVIDERS = {"HDFSBacked": HDFS, "RocksDB": ROCKSDB}


def marks_of(family: str, provider: str, format_: str) -> list[pytest.MarkDecorator]:
    leaving = [LEAVING] if provider == "RocksDB" else []
    short = (family, PROVIDERS[provider], format_) in SHORT
    return leaving if short else [*leaving, pytest.mark.long]


TABLE = [
    pytest.param(family, provider, format_, marks=marks_of(family, provider, format_))
    for provider, format_ in (("HDFSBacked", "1"), ("RocksDB", "1"), ("RocksDB", "2"))
    for family in FAMILIES
    if not (family == "processors" and provider == "HDFSBacked")  # Spark has none there
]


class Mover:
    """A query that runs half of its batches in one provider, and the rest in others."""

    def __init__(self, streams: Streams, family: str, url: str) -> None:
        self.streams, self.url = streams, url
        self.build, self.batches = FAMILIES[family]
        self.inputs = [streams.input(str(number), EVENTS) for number in range(len(self.batches[0]))]
        self.done = 0

    def run(self, name: str, provider: str, batches: int, output: Output) -> None:
        for batch in self.batches[self.done : self.done + batches]:
            for source, rows in zip(self.inputs, batch, strict=True):
                source.add(rows)
        self.done += batches
        frame = self.build([source.stream(self.streams.spark) for source in self.inputs])
        mode = "update" if self.build is processors else "append"
        self.streams.run(frame, name, mode=mode, provider=provider, output=output)

    def move(self, name: str, to_name: str, target: str) -> redis_state.Migration:
        return redis_state.migrate(
            self.streams.spark,
            str(self.streams.checkpoint(name)),
            str(self.streams.checkpoint(to_name)),
            to=CALLED.get(target, self.url),
        )


def output_without_a_move(streams: Streams, family: str, source: str) -> Output:
    output: Output = {}
    stays = Mover(Streams(streams.spark, streams.folder / "expected"), family, "")
    for batches in (2, 1, 1):
        stays.run("stays", source, batches, output)
    return output


@pytest.mark.compatibility("migrate", "{family}, {provider} and back, checkpoint format {format_}")
@pytest.mark.parametrize(("family", "provider", "format_"), TABLE)
def test_moved_query_continues_there_and_back(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    family: str,
    provider: str,
    format_: str,
) -> None:
    source = PROVIDERS[provider]
    spark.conf.set(FORMAT, format_)
    try:
        stays = output_without_a_move(streams, family, source)
        moves: Output = {}
        mover = Mover(streams, family, shared_redis_server.url)
        mover.run("old", source, 2, moves)
        there = mover.move("old", "new", REDIS)
        again = mover.move("new", "third", source)
        mover.run("new", REDIS, 1, moves)
        back = mover.move("new", "back", source)
        mover.run("back", source, 1, moves)
    finally:
        spark.conf.set(FORMAT, "1")
    assert moves == stays
    assert any(stays.values())
    assert there.rows > 0
    assert [s.source for s in there.stores] == [s.target for s in there.stores]
    assert [s.source for s in again.stores] == [s.source for s in there.stores]
    assert (there.source, there.target, there.format) == (source, REDIS, int(format_))
    assert back.target == source


def rows_of(output: Output) -> list[list[str]]:
    """Rows of each batch, without the empty batches."""
    return [rows for _, rows in sorted(output.items()) if rows]


@pytest.mark.compatibility("adopt", "{family}, checkpoint format {format_}")
@pytest.mark.parametrize(
    ("family", "source", "format_"),
    [
        ("aggregation", HDFS, "1"),
        pytest.param("processors", ROCKSDB, "2", marks=pytest.mark.long),
        ("join", ROCKSDB, "2"),
    ],
)
def test_adopted_query_continues_after_one_conf_and_a_restart(
    streams: Streams,
    spark: SparkSession,
    redis_conf: Callable[[dict[str, str]], None],
    shared_redis_server: RedisServer,
    family: str,
    source: str,
    format_: str,
) -> None:
    spark.conf.set(FORMAT, format_)
    with shared_redis_server.client() as client:
        client.config_set("maxmemory", "1gb")  # which has room without a count of the rows
    try:
        stays = output_without_a_move(streams, family, source)
        moves: Output = {}
        mover = Mover(streams, family, "")
        mover.run("query", source, 2, moves)
        before = max(moves)
        redis_conf({"adopt": "true"})
        mover.run("query", REDIS, 1, moves)
        mover.run("query", REDIS, 1, moves)
    finally:
        spark.conf.set(FORMAT, "1")
        with shared_redis_server.client() as client:
            client.config_set("maxmemory", "0")
    assert rows_of(moves) == rows_of(stays)
    offsets = streams.checkpoint("query") / "offsets"
    assert provider_of(offsets / str(before)) == source
    assert provider_of(offsets / str(before + 1)) == REDIS
    switch, last = ((offsets / str(n)).read_text().splitlines()[2:] for n in (before + 1, before))
    assert switch == last


def provider_of(entry: Path) -> str:
    conf = json.loads(entry.read_text().splitlines()[1])["conf"]
    return str(conf["spark.sql.streaming.stateStore.providerClass"])


def test_uncommitted_batch_is_not_adopted(
    streams: Streams, redis_conf: Callable[[dict[str, str]], None]
) -> None:
    mover = Mover(streams, "deduplication", "")
    output: Output = {}
    mover.run("query", ROCKSDB, 1, output)
    checkpoint = streams.checkpoint("query")
    newest = max(
        int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()
    )
    (checkpoint / "commits" / str(newest)).unlink()
    (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    before = files_of(checkpoint)
    redis_conf({"adopt": "true"})
    with pytest.raises(StreamingQueryException, match="planned but not committed"):
        mover.run("query", REDIS, 0, output)
    assert files_of(checkpoint) == before
    with pytest.raises(redis_state.errors.ConfigError, match="planned but not committed"):
        mover.move("query", "new", HDFS)
    assert not streams.checkpoint("new").exists()


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_interrupted_move_is_refused_by_spark_and_resumed(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    """The folder as it is after each step of a move: all but the last step only add files."""
    mover = Mover(streams, "aggregation", shared_redis_server.url)
    output: Output = {}
    mover.run("old", ROCKSDB, 2, output)
    old, new = streams.checkpoint("old"), streams.checkpoint("new")
    before = files_of(old)
    plan = redis_state.migrate(
        streams.spark, str(old), str(new), to=shared_redis_server.url, dry_run=True
    )
    assert not new.exists()
    first = mover.move("old", "new", REDIS)
    assert [one.written for one in first.stores] == [2]
    assert [one.source for one in plan.stores] == [one.source for one in first.stores]
    entry = json.loads((new / "offsets" / str(first.batch)).read_text().splitlines()[1])
    assert entry["conf"]["spark.sql.streaming.stateStore.providerClass"] == REDIS
    with pytest.raises(redis_state.errors.ConfigError, match="has files already"):
        mover.move("old", "new", REDIS)

    record = json.dumps({"from": f"file:{old}", "batch": first.batch, "to": REDIS})
    for left in (("offsets", "commits"), ("offsets",), (), ("offsets", "commits", "sources")):
        undone(new, record.replace(" ", ""), left)
        with pytest.raises(Exception, match="This_checkpoint_is_not_complete"):
            streams.run(aggregation([mover.inputs[0].stream(streams.spark)]), "new", mode="append")
        again = mover.move("old", "new", REDIS)
        assert [one.written for one in again.stores] == [0]
        assert [one.target for one in again.stores] == [one.source for one in first.stores]
    assert files_of(old) == before
    mover.run("new", REDIS, 1, output)


def undone(new: Path, record: str, missing: Sequence[str]) -> None:
    """The folder before the last step of a move, and before some others."""
    for name in missing:
        shutil.rmtree(new / name, ignore_errors=True)
    (new / "metadata").write_text(
        "This_checkpoint_is_not_complete__run_the_same_redis-state_migrate_again_or_delete_the_folder"
    )
    (new / ".metadata.crc").unlink(missing_ok=True)
    (new / "_redis_state_move").write_text(record)


class Meanwhile:
    """Runs something in the middle of a move, which waits for a pipe among the files to copy."""

    def __init__(self, checkpoint: Path, work: Callable[[], None]) -> None:
        self._pipe, self._work = checkpoint / "_waits", work
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._pipe.open("w"):
            self._work()

    def __enter__(self) -> None:
        os.mkfifo(self._pipe)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        # Lets the thread go also if the move never came to the pipe.
        reader = os.open(self._pipe, os.O_RDWR)
        self._thread.join()
        os.close(reader)
        self._pipe.unlink()


def test_stale_move_does_not_finish(streams: Streams, shared_redis_server: RedisServer) -> None:
    mover = Mover(streams, "deduplication", shared_redis_server.url)
    mover.run("old", ROCKSDB, 1, {})
    old, new = streams.checkpoint("old"), streams.checkpoint("new")
    offsets = old / "offsets"
    newest = max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    (old / "_redis_state_scratch-of-a-killed-task").mkdir()

    def plan() -> None:
        shutil.copy(offsets / str(newest), offsets / str(newest + 1))

    def begin() -> None:
        record = new / "_redis_state_move"
        text = json.loads(record.read_text()) | {"id": "of another call"}
        (new / f".{record.name}.crc").unlink(missing_ok=True)
        record.write_text(json.dumps(text))

    with (
        Meanwhile(old, begin),
        pytest.raises(redis_state.errors.ConfigError, match="another call of the same move"),
    ):
        mover.move("old", "new", REDIS)
    assert not (new / "offsets").exists()

    with (
        Meanwhile(old, plan),
        pytest.raises(redis_state.errors.ConfigError, match="planned a further batch meanwhile"),
    ):
        mover.move("old", "new", REDIS)
    assert "not_complete" in (new / "metadata").read_text()
    (offsets / str(newest + 1)).unlink()
    (new / "_redis_state_scratch-of-a-killed-task").mkdir()
    mover.move("old", "new", REDIS)
    assert "not_complete" not in (new / "metadata").read_text()
    assert not list(new.glob("_redis_state_*"))


def test_unmovable_state_is_refused_by_name(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    mover = Mover(streams, "deduplication", shared_redis_server.url)
    mover.run("old", ROCKSDB, 1, {})
    old = streams.checkpoint("old")
    shutil.copytree(old, streams.checkpoint("fewer"))
    shutil.rmtree(streams.checkpoint("fewer") / "state" / "0" / "1")
    with pytest.raises(redis_state.errors.ConfigError, match="2 partitions, but its folder has 1"):
        mover.move("fewer", "new", REDIS)
    shutil.copytree(old, streams.checkpoint("damaged"))
    for path in (streams.checkpoint("damaged") / "state" / "0" / "0").rglob("*"):
        if path.suffix in (".zip", ".changelog", ".delta", ".snapshot"):
            path.write_bytes(b"damaged")
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(redis_state.errors.FormatError, match="cannot open it"):
        mover.move("damaged", "new2", REDIS)
    with pytest.raises(redis_state.errors.ConfigError, match="not the checkpoint of a query"):
        mover.move("absent", "new3", REDIS)
    for name in ("new", "new3"):
        assert not streams.checkpoint(name).exists()
    with (
        RedisServer(maxmemory="100kb") as full,
        pytest.raises(redis_state.errors.FullError, match="bytes free below its maxmemory"),
    ):
        redis_state.migrate(streams.spark, str(old), str(streams.checkpoint("new4")), to=full.url)
    assert not streams.checkpoint("new4").exists()
