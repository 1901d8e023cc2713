"""Moves of state that are killed before every change of a file and every write to Redis.

The commands are real processes: `tests/support/file_steps.py` and the TCP proxy hold them before
each step, and the process is killed there, with all that it started.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import redis_state
from tests.faults.processes import descendants, kill
from tests.spark.moving.test_moving import files_of, rows_of
from tests.spark.streams import FORMAT, HDFS, PREFIX, REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, events
from tests.support.file_steps import Watched
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept
from tests.support.tcp_proxy import TcpProxy
from tests.upgrades.job import windows
from tools.jvm import OF_A_QUERY

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

LIMIT_S = 240
KILLS = 6
ALL_STEPS = "REDIS_STATE_ALL_STEPS"
"""If it is set, there is a kill before each step; that takes hours."""

STEPS_MAX = 1000
SHUFFLE = "spark.sql.shuffle.partitions"
BATCHES = events(2)
_CHANGES = re.compile(
    rb"\r\n(EVALSHA|EVAL|EXEC|SET|DEL|UNLINK|HSET|HDEL|SADD|ZADD|EXPIRE|PEXPIRE|RPUSH|PUBLISH)\r\n",
    re.IGNORECASE,
)
CONFS = {
    "spark.driver.extraJavaOptions": " ".join(OF_A_QUERY),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    SHUFFLE: "2",
}


def chosen(count: int) -> list[int]:
    """Numbers of steps: the first, the last, and as many between them as fit into the time."""
    if os.environ.get(ALL_STEPS):
        return list(range(1, count + 1))
    between = random.Random(count).sample(range(3, count - 2), min(KILLS, count - 5))
    return sorted({1, 2, *between, count - 1, count})


class Steps:
    """Counts the steps of a process; it is killed before the one with a number, from 1.

    Attributes:
        last: What the step was that did not come to be; empty if the process ended by itself.
        done: Steps that were counted.
    """

    def __init__(self, kill_at: int) -> None:
        self._kill_at, self.done = kill_at, 0
        self._lock = threading.Lock()
        self._pids: Callable[[], Sequence[int]] = tuple
        self.last = ""

    def run(self, command: Sequence[str], folders: Sequence[Path], log: Path) -> int:
        env = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        with Watched(command, folders, self.of_file, env=env, log=log) as watched:
            pid = watched.process.pid
            self._pids = lambda: [*descendants(pid), pid]
            return watched.process.wait(LIMIT_S)

    def of_file(self, call: str, path: Path) -> bool:
        return self._next(f"{call} {path}")

    def of_chunk(self, chunk: bytes) -> bool:
        found = _CHANGES.search(chunk)
        return found is None or self._next(found[1].decode())

    def _next(self, what: str) -> bool:
        with self._lock:
            self.done += 1
            if self.done < self._kill_at:
                return True
            if not self.last:
                self.last = what
                for pid in self._pids():
                    kill(pid)
            return False


class Killed:
    """One query, and moves of it that are killed."""

    def __init__(self, streams: Streams, server: RedisServer, *, provider: str) -> None:
        self.streams, self.server, self.provider = streams, server, provider
        self.source = streams.input("events", EVENTS)
        self.before: Output = {}
        self.expected: Output = {}
        for batch in BATCHES[:2]:
            self.source.add(batch[0])
        self.query("stays", provider, self.expected)
        self.query("old", provider, self.before)
        for batch in BATCHES[2:]:
            self.source.add(batch[0])
        self.query("stays", provider, self.expected)
        self.old = streams.checkpoint("old")
        self.files = files_of(self.old)

    def query(self, name: str, provider: str, output: Output) -> None:
        frame = windows([self.source.stream(self.streams.spark)])
        self.streams.run(frame, name, mode="append", provider=provider, output=output)

    def kills(self, command: Callable[[Path, str], Sequence[str]]) -> Iterator[Path]:
        """Kills the command before some of its steps; gives the folder that it made each time."""
        whole = self.streams.checkpoint("whole")
        count = self._run(command, whole, STEPS_MAX).done
        assert 10 < count < STEPS_MAX, f"{count} steps"
        shutil.rmtree(whole)
        for number in chosen(count):
            new = self.streams.checkpoint(f"new-{number}")
            steps = self._run(command, new, number)
            print(f"{number} of {count}: {steps.last or 'it ended by itself'}", flush=True)
            if steps.last:
                yield new

    def _run(self, command: Callable[[Path, str], Sequence[str]], new: Path, kill_at: int) -> Steps:
        steps = Steps(kill_at)
        log = self.streams.folder / f"log-{new.name}"
        with TcpProxy(self.server.port, before=steps.of_chunk) as proxy:
            code = steps.run(command(new, proxy.url), [new], log)
        assert (code != 0) is bool(steps.last), log.read_text()
        return steps

    def check_new(self, name: str, provider: str) -> None:
        """Continues the query on the new provider; the output equals that of an unmoved query."""
        output = dict(self.before)
        self.query(name, provider, output)
        assert output == self.expected


def confs_as_arguments() -> list[str]:
    return [part for name, value in CONFS.items() for part in ("--conf", f"{name}={value}")]


def redis_state_command(*words: str) -> list[str]:
    program = [sys.executable, "-m", "redis_state.cli.main", *words]
    return [*program, "--master", "local[1]", *confs_as_arguments()]


@pytest.fixture(autouse=True)
def confs(spark: SparkSession) -> Iterator[None]:
    with kept(spark, SHUFFLE, FORMAT):
        yield


def half_is_refused(killed: Killed, new: Path, provider: str) -> None:
    """No query starts from a folder that the move has left, unless nothing is there."""
    if not new.exists() or all(path.name.startswith(".") for path in new.iterdir()):
        return
    with pytest.raises(Exception, match="This_checkpoint_is_not_complete"):
        killed.query(new.name, provider, {})


def is_finished(new: Path) -> bool:
    metadata = new / "metadata"
    return metadata.exists() and "not_complete" not in metadata.read_text()


def is_moved_once(
    killed: Killed,
    command: Callable[[Path, str], list[str]],
    target: str,
    move: Callable[[Path], redis_state.Migration],
) -> None:
    """Wherever the command was killed, moving again gives the same rows, and is refused then."""
    digests: set[tuple[str, ...]] = set()
    for new in killed.kills(command):
        assert files_of(killed.old) == killed.files
        if is_finished(new):
            with pytest.raises(redis_state.errors.ConfigError, match="that move was finished"):
                move(new)
        else:
            half_is_refused(killed, new, target)
            again = move(new)
            assert [one.source for one in again.stores] == [one.target for one in again.stores]
            digests.add(tuple(one.source for one in again.stores))
        killed.check_new(new.name, target)
        shutil.rmtree(new)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("source", "target", "format_"),
    [(ROCKSDB, REDIS, "2"), (HDFS, REDIS, "1"), (REDIS, ROCKSDB, "2"), (REDIS, HDFS, "1")],
)
def test_killed_migrate_is_resumed(
    streams: Streams,
    shared_redis_server: RedisServer,
    source: str,
    target: str,
    format_: str,
) -> None:
    streams.spark.conf.set(FORMAT, format_)
    killed = Killed(streams, shared_redis_server, provider=source)
    own = {ROCKSDB: "rocksdb", HDFS: "hdfs-backed"}

    def command(new: Path, url: str) -> list[str]:
        to = ["--to", own[target], "--url", url, "--force"] if target in own else ["--to", url]
        where = ["--checkpoint", str(killed.old), "--to-checkpoint", str(new)]
        return redis_state_command("migrate", *where, *to)

    def move(new: Path) -> redis_state.Migration:
        to = own.get(target, shared_redis_server.url)
        return redis_state.migrate(streams.spark, str(killed.old), str(new), to=to)

    is_moved_once(killed, command, target, move)
    killed.check_new("old", source)


def test_killed_rescale_is_resumed(streams: Streams, shared_redis_server: RedisServer) -> None:
    streams.spark.conf.set(FORMAT, "2")
    killed = Killed(streams, shared_redis_server, provider=REDIS)

    def command(new: Path, url: str) -> list[str]:
        where = ["--checkpoint", str(killed.old), "--to-checkpoint", str(new), "--url", url]
        return redis_state_command("rescale", *where, "--partitions", "3", "--yes", "--force")

    def move(new: Path) -> redis_state.Migration:
        return redis_state.rescale(streams.spark, str(killed.old), str(new), 3)

    is_moved_once(killed, command, REDIS, move)
    killed.check_new("old", REDIS)


def test_killed_bootstrap_is_resumed(streams: Streams, shared_redis_server: RedisServer) -> None:
    """The query continues with the same rows, whatever was killed."""
    spark = streams.spark
    spark.conf.set(FORMAT, "2")
    killed = Killed(streams, shared_redis_server, provider=REDIS)
    path = str(streams.folder / "rows")
    state = spark.read.format("statestore").load(str(killed.old)).select("key.*", "value.*")
    state.write.parquet(path)
    rows = spark.read.parquet(path)

    def command(new: Path, url: str) -> list[str]:
        where = ["--checkpoint", str(killed.old), "--to-checkpoint", str(new), "--url", url]
        return redis_state_command("bootstrap", *where, "--rows", path, "--yes", "--force")

    digests: set[str] = set()
    for new in killed.kills(command):
        assert files_of(killed.old) == killed.files
        if is_finished(new):
            with pytest.raises(redis_state.errors.ConfigError, match="that move was finished"):
                redis_state.bootstrap(spark, rows, str(killed.old), str(new))
        else:
            half_is_refused(killed, new, REDIS)
            again = redis_state.bootstrap(spark, rows, str(killed.old), str(new))
            digests.add(again.stores[0].target)
        killed.check_new(new.name, REDIS)
        shutil.rmtree(new)
    assert len(digests) == 1
    killed.check_new("old", REDIS)


def counted(output: Output) -> Counter[str]:
    return Counter(row for rows in output.values() for row in rows)


def output_of(path: Path) -> Output:
    """Output that `adopting_job` has written until it ended."""
    lines = path.read_text().splitlines() if path.exists() else ()
    return dict(map(json.loads, lines))


@pytest.mark.parametrize("format_", ["1", "2"])
def test_killed_rescale_at_start_is_resumed(
    streams: Streams,
    shared_redis_server: RedisServer,
    redis_conf: Callable[[dict[str, str]], None],
    format_: str,
) -> None:
    streams.spark.conf.set(FORMAT, format_)
    killed = Killed(streams, shared_redis_server, provider=REDIS)
    options = {"rescaleTo": "3", "onPathChange": "adopt"}
    outputs: dict[str, Path] = {}

    def command(new: Path, url: str) -> list[str]:
        shutil.copytree(killed.old, new)
        outputs[new.name] = streams.folder / f"output-{new.name}"
        given = [str(killed.source.folder), str(new), url, str(outputs[new.name])]
        confs = CONFS | {"spark.master": "local[1]", FORMAT: format_}
        confs |= {PREFIX + name: value for name, value in options.items()}
        job = [sys.executable, "-m", "tests.spark.moving.adopting_job"]
        return [*job, *given, json.dumps(confs)]

    redis_conf(options)
    for new in killed.kills(command):
        output = killed.before | output_of(outputs[new.name])
        again: Output = {}
        killed.query(new.name, REDIS, again)
        # Its last batch may have been planned before the number could be changed.
        killed.query(new.name, REDIS, again)
        for batch, rows in again.items():
            assert output.setdefault(batch, rows) == rows
        whole, last = counted(killed.expected), Counter(rows_of(killed.expected)[-1])
        assert counted(output) in (whole, whole - last)
        newest = max((new / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        assert json.loads(newest.read_text().splitlines()[1])["conf"][SHUFFLE] == "3"
        shutil.rmtree(new)


@pytest.mark.parametrize(("source", "format_"), [(ROCKSDB, "2"), (HDFS, "1")])
def test_killed_adopt_is_resumed(
    streams: Streams,
    shared_redis_server: RedisServer,
    redis_conf: Callable[[dict[str, str]], None],
    source: str,
    format_: str,
) -> None:
    streams.spark.conf.set(FORMAT, format_)
    killed = Killed(streams, shared_redis_server, provider=source)
    switch = max(killed.before) + 1
    outputs: dict[str, Path] = {}

    def command(new: Path, url: str) -> list[str]:
        shutil.copytree(killed.old, new)
        outputs[new.name] = streams.folder / f"output-{new.name}"
        given = [str(killed.source.folder), str(new), url, str(outputs[new.name])]
        confs = CONFS | {"spark.master": "local[1]", FORMAT: format_}
        job = [sys.executable, "-m", "tests.spark.moving.adopting_job"]
        return [*job, *given, json.dumps(confs)]

    redis_conf({"adopt": "true"})
    for new in killed.kills(command):
        output = killed.before | output_of(outputs[new.name])
        if not (new / "offsets" / str(switch)).exists():
            assert not set(output) - set(killed.before)
            files = files_of(new)
            assert {name: files[name] for name in killed.files} == killed.files
            shutil.copytree(new, streams.checkpoint(f"{new.name}-without"))
            killed.check_new(f"{new.name}-without", source)
            shutil.rmtree(streams.checkpoint(f"{new.name}-without"))
        again: Output = {}
        killed.query(new.name, REDIS, again)
        for batch, rows in again.items():
            assert output.setdefault(batch, rows) == rows
        # Spark may put two files into the batch that was cut off. Killed before its last batch,
        # which has no data, it waits for data: no such batch is planned right after a start.
        whole, last = counted(killed.expected), Counter(rows_of(killed.expected)[-1])
        assert counted(output) in (whole, whole - last)
        shutil.rmtree(new)
