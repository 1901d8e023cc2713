"""Worker, executor and driver killed with -9 in a stateful `map_partitions`: exactly once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.provider import StateStoreProvider
from tests.faults.mapping_job import PARTITIONS, STORE
from tests.faults.test_executor_kill import EXECUTOR, ROOT, descendants, kill, wait_for
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 3
LIMIT_S = 280  # for a machine that is busy with other work


def rows_of(batch: int) -> list[tuple[str, int]]:
    return [(f"k{(batch * 7 + i) % 23}", batch * 31 + i) for i in range(60)]


class Model:
    """What the job has to come to."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def add(self, batch: int) -> list[list[object]]:
        for key, value in rows_of(batch):
            self.totals[key] += value
            self.counts[key] += 1
        touched = sorted({key for key, _ in rows_of(batch)})
        return [[key, self.totals[key], self.counts[key]] for key in touched]

    def state(self) -> dict[str, list[int]]:
        return {key: [total, self.counts[key]] for key, total in self.totals.items()}


class Job:
    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder = folder
        self.server = server
        self.process: subprocess.Popen[bytes] | None = None
        for name in ("input", "output", "stops", "stopped"):
            (folder / name).mkdir()
        for batch in range(BATCHES):
            path = folder / "input" / f"{batch:05d}.json"
            lines = [{"batch": batch, "k": key, "v": value} for key, value in rows_of(batch)]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            os.utime(path, (1_000_000_000 + batch,) * 2)

    def start(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        program = [sys.executable, str(Path(__file__).with_name("mapping_job.py"))]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*program, str(self.folder), self.server.url],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Ends the driver and its executors, without a word to any of them."""
        if self.process is None:
            return
        for pid in [*descendants(self.process.pid), self.process.pid]:
            kill(pid)
        self.process.wait(10)

    def stop_at(self, place: str) -> None:
        (self.folder / "stops" / place).touch()

    def stopped_at(self, place: str) -> int:
        """The process that waits there."""
        path = self.folder / "stopped" / place

        def there() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"the job has ended early:\n{self.log()}"
            return path.exists() and path.read_text().endswith("\n")

        wait_for(place, there, LIMIT_S)
        return int(path.read_text())

    def executor_of(self, worker: int) -> int:
        """The executor in whose process tree a worker is."""
        assert self.process is not None
        for pid in descendants(self.process.pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if EXECUTOR in command and worker in descendants(pid):
                return pid
        raise AssertionError(f"process {worker} has no executor")

    def finish(self) -> None:
        assert self.process is not None
        self.process.wait(LIMIT_S)
        assert self.process.returncode == 0, self.log()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]


@pytest.fixture
def job(tmp_path: Path, redis_server: RedisServer) -> Iterator[Job]:
    made = Job(tmp_path, redis_server)
    yield made
    made.kill()


def state(server: RedisServer, version: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for partition in range(PARTITIONS):
        id_ = StateStoreProviderId(StateStoreId(STORE, 0, partition), "reader")
        provider = StateStoreProvider(id_, config=server.url)
        found |= dict(provider.get_read_store(version).iterator())
        provider.close()
    return found


def check(job: Job) -> None:
    """Every batch is written as if nothing had happened, and so is the state."""
    model = Model()
    for batch in range(BATCHES):
        written = json.loads((job.folder / "output" / f"{batch}.json").read_text())
        assert written == model.add(batch), f"batch {batch}"
    assert state(job.server, BATCHES) == model.state()


def test_every_row_counts_once_when_workers_and_executors_are_killed(job: Job) -> None:
    for batch in (1, 2):
        job.stop_at(f"rows-{batch}")
    job.start()
    kill(job.stopped_at("rows-1"))
    kill(job.executor_of(job.stopped_at("rows-2")))
    job.finish()
    check(job)


def test_every_row_counts_once_when_the_driver_is_killed_amid_a_function(job: Job) -> None:
    job.stop_at("rows-1")
    job.start()
    job.stopped_at("rows-1")
    job.kill()
    job.start()
    job.finish()
    check(job)


def test_every_row_counts_once_when_the_driver_is_killed_after_the_commit(job: Job) -> None:
    job.stop_at("sink-1")
    job.start()
    job.stopped_at("sink-1")
    # Every partition has committed the batch, and nothing of it was written.
    assert not (job.folder / "output" / "1.json").exists()
    model = Model()
    for batch in (0, 1):
        model.add(batch)
    assert state(job.server, 2) == model.state()
    job.kill()
    job.start()
    job.finish()
    check(job)
