"""Executors and whole drivers killed with -9 while batches run: the result stays right."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BATCHES = 16
LIMIT_S = 120  # for a machine that is busy with other work
EXECUTOR = b"CoarseGrainedExecutorBackend"


def rows_of(batch: int) -> list[tuple[str, int]]:
    return [(f"k{(batch + i) % 23}", batch * 31 + i) for i in range(40)]


def expected(batches: int) -> list[list[object]]:
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for batch in range(batches):
        for key, value in rows_of(batch):
            totals[key] += value
            counts[key] += 1
    return [[key, totals[key], counts[key]] for key in sorted(counts)]


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    left = [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for(what: str, ready: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


class Job:
    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder = folder
        self.server = server
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "input").mkdir()
        for batch in range(BATCHES):
            path = folder / "input" / f"{batch:05d}.json"
            lines = [json.dumps({"k": key, "v": value}) + "\n" for key, value in rows_of(batch)]
            path.write_text("".join(lines))
            os.utime(path, (1_000_000_000 + batch,) * 2)

    def start(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        program = [sys.executable, str(Path(__file__).with_name("job.py"))]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*program, str(self.folder), self.server.url, str(BATCHES)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Ends the driver and its executors, without a word to any of them."""
        if self.process is None:
            return
        family = [*descendants(self.process.pid), self.process.pid]
        for pid in family:
            kill(pid)
        self.process.wait(10)

    def executors(self) -> list[int]:
        assert self.process is not None
        found = []
        for pid in descendants(self.process.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if EXECUTOR in command:
                found.append(pid)
        return found

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def outputs(self) -> list[dict[str, object]]:
        path = self.folder / "output.jsonl"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        return [json.loads(line) for line in whole.splitlines()]

    def await_batch(self, batch: int) -> None:
        def ready() -> bool:
            assert self.running(), f"the job has ended early:\n{self.log()}"
            return any(int(str(output["batch"])) >= batch for output in self.outputs())

        wait_for(f"batch {batch}", ready, LIMIT_S)

    def finish(self) -> None:
        wait_for("the job's end", lambda: not self.running(), LIMIT_S)
        assert self.process is not None
        assert self.process.returncode == 0, self.log()

    def check(self) -> None:
        """Every batch gave out the right result, each time that it ran."""
        seen = set()
        for output in self.outputs():
            batch = int(str(output["batch"]))
            assert output["rows"] == expected(batch + 1), f"batch {batch}"
            seen.add(batch)
        assert seen == set(range(BATCHES))

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]


@pytest.fixture
def job(tmp_path: Path, redis_server: RedisServer) -> Iterator[Job]:
    job = Job(tmp_path, redis_server)
    yield job
    job.kill()


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("REDIS_STATE_TEST_SEED", random.randrange(2**32)))
    print(f"REDIS_STATE_TEST_SEED={seed}")
    return random.Random(seed)


def test_killed_executors_change_nothing(job: Job, chance: random.Random) -> None:
    job.start()
    for batch in (1, 5, 9):
        job.await_batch(batch)
        wait_for("an executor", job.executors, LIMIT_S)
        time.sleep(chance.uniform(0, 0.4))
        victim = chance.choice(job.executors())
        assert job.running(), "the job ended before its executor was killed"
        kill(victim)
    job.finish()
    job.check()


def test_killed_driver_goes_on_from_its_checkpoint(job: Job, chance: random.Random) -> None:
    job.start()
    job.await_batch(5)
    time.sleep(chance.uniform(0, 0.4))
    assert job.running(), "the job ended before it was killed"
    job.kill()
    job.start()
    job.finish()
    job.check()
