"""Runs of a query in a process of its own, which a test kills."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.processes import DRIVER_JVM, descendants, kill, named

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240  # for a machine that is busy with other work


class Job:
    """One run of the query in a process of its own."""

    def __init__(
        self, module: str, folder: Path, words: Sequence[str], *, run: int, poll_s: float
    ) -> None:
        self._folder = folder
        self._poll_s = poll_s
        self._log = folder / f"job-{run}.log"
        settings = {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, "-m", module, str(folder), *words]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **settings}, stdout=log, stderr=log
            )

    def wait(self, what: str, ready: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT_S
        while not ready():
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < end, f"{what}: not within {LIMIT_S} s"
            time.sleep(self._poll_s)

    def jvm(self) -> int:
        (pid,) = named(descendants(self._process.pid), DRIVER_JVM)
        return pid

    def kill(self) -> None:
        """`kill -9` of the driver: its JVM, its Python, and then what they have started."""
        started = descendants(self._process.pid)
        for pid in [*named(started, DRIVER_JVM), self._process.pid, *started]:
            kill(pid)
        self._process.wait(LIMIT_S)

    def finish(self) -> None:
        (self._folder / "enough").touch()
        assert self._process.wait(LIMIT_S) == 0, self._log.read_text(errors="replace")[-4000:]

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()


@contextmanager
def running(
    module: str, folder: Path, words: Sequence[str], *, run: int, poll_s: float
) -> Iterator[Job]:
    """Runs a module with a folder and further words, until the block ends.

    Args:
        run: Number of the run, in the name of its log.
        poll_s: Time between two looks of `Job.wait`.
    """
    job = Job(module, folder, words, run=run, poll_s=poll_s)
    try:
        yield job
    finally:
        job.end()
