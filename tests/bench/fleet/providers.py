"""Providers of the JVM adapter as a fleet: `FleetBench` in a JVM, told by lines on its input."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.fleet.workers import ROWS, UPDATES, Fleet, Work
from tests.support.waiting import await_end
from tools.jvm import ROOT, java_command

_CLASS = "org.apache.spark.sql.redisstate.bench.FleetBench"
_END_S = 120


class Providers:
    """A JVM with the providers of a fleet."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, what: str, how_much: float) -> Work:
        """Runs batches in two threads of the JVM: `fill`, `each second` or `saturate`.

        Raises:
            EOFError: The JVM has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what.replace(' ', '-')} {int(how_much)}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                seconds = [ns / 1e9 for ns in found["storeNs"]]
                return Work(seconds, found["late"], found["cpuNs"] / 1e9, found["passedNs"] / 1e9)
        raise EOFError("the JVM has ended")


@contextmanager
def providing(url: str, fleet: Fleet, folder: Path) -> Iterator[Providers]:
    """Yields the providers of a fleet, whose checkpoints are below a folder."""
    command = java_command("spark-4.3", ROOT / ".venv" / "pyspark-jars", heap="4g")
    command += [_CLASS, url, str(folder)]
    command += map(str, (fleet.queries, fleet.partitions, ROWS, UPDATES))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Providers(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await_end(process, _END_S)
