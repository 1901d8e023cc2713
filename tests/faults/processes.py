"""The processes of a Spark application, as Linux shows them, and signals to them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

EXECUTOR = b"CoarseGrainedExecutorBackend"
DRIVER_JVM = b"org.apache.spark.deploy.SparkSubmit"
WORKER = b"pyspark.daemon"


def descendants(pid: int) -> list[int]:
    """All processes below one."""
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


def marked(mark: str) -> list[int]:
    """The processes whose environment holds a text, also those that lost their parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def named(pids: list[int], word: bytes) -> list[int]:
    """Returns the live processes whose command line contains a word."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def send(pid: int, number: signal.Signals) -> None:
    """A signal, unless the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(pid: int) -> None:
    """`kill -9`."""
    send(pid, signal.SIGKILL)
