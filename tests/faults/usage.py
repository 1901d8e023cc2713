"""Memory, threads, files and connections of a Spark application and its server."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import redis

from tests.faults.processes import DRIVER_JVM, descendants, named
from tests.faults.rig import Driver

MIB = 1 << 20
_JCMD_S = 60
_USED = re.compile(r" used (\d+)K")


def heap_mib(pid: int) -> float:
    """Heap of a JVM in use after a collection; 0 if the process is gone."""
    try:
        for command in ("GC.run", "GC.heap_info"):
            done = subprocess.run(
                ["jcmd", str(pid), command],
                capture_output=True,
                text=True,
                timeout=_JCMD_S,
                check=True,
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return 0.0
    # The heap comes first, then the classes.
    found = _USED.findall(done.stdout.split("Metaspace")[0])
    return sum(map(int, found)) / 1024


def process_figures(title: str, pids: Iterable[int]) -> Iterator[tuple[str, float]]:
    """Yields memory, threads and open files of processes of one kind together."""
    resident = threads = files = count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/status").read_text()
            fields = dict(line.split(":", 1) for line in text.splitlines())
            resident += int(fields.get("VmRSS", "0 kB").split()[0])
            threads += int(fields["Threads"])
            files += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            count += 1
    yield f"{title}: processes", count
    yield f"{title}: resident MiB", resident / 1024
    yield f"{title}: threads", threads
    yield f"{title}: open files", files


def server_figures(client: redis.Redis) -> Iterator[tuple[str, float]]:
    """Yields keys, memory and connections of a server, the caller's own left out."""
    keys = client.info("keyspace").get("db0", {"keys": 0, "expires": 0})
    yield "server: keys", keys["keys"]
    yield "server: keys that do not expire", keys["keys"] - keys["expires"]
    yield "server: MiB of data", client.info("memory")["used_memory_dataset"] / MIB
    yield "server: connections", client.info("clients")["connected_clients"] - 1


def application_figures(driver: Driver) -> Iterator[tuple[str, float]]:
    """Yields what the driver, its executors and their Python workers use."""
    (jvm,) = named(descendants(driver.pid), DRIVER_JVM)
    executors, workers = driver.executors(), driver.workers()
    yield "driver: MiB in use after a collection", heap_mib(jvm)
    yield from process_figures("driver", [jvm, driver.pid])
    yield "executors: MiB in use after a collection", sum(map(heap_mib, executors))
    yield from process_figures("executors", executors)
    yield from process_figures("Python workers", workers)
