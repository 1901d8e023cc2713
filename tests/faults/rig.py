"""A Spark application, its Redis with an append-only file, and the proxy between them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.faults.families import PARTITIONS
from tests.faults.feed import Feed, Rows, sources
from tests.faults.job import SPARK_BUSY, store_name
from tests.faults.processes import DRIVER_JVM, EXECUTOR, WORKER, descendants, kill, marked, named
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy

ROOT = Path(__file__).parents[2]
LIMIT_S = 270  # for a machine that is busy with other work; a test may take 300
UNREACHABLE = ("REDIS_UNAVAILABLE", "REDIS_OUTCOME_UNKNOWN")
_MARK = "REDIS_STATE_KILLS"
_POLL_S = 0.02
_LOG_CHARS = 6000


def wait_for(what: str, ready: Callable[[], object], seconds: float = LIMIT_S) -> None:
    """Asks until it is so.

    Raises:
        TimeoutError: It was not within the time.
    """
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(_POLL_S)


class Driver:
    """One driver with all that it starts."""

    def __init__(self, scratch: Path, url: str, mark: str) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._log = scratch / f"driver-{uuid.uuid4().hex}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.job", str(scratch), url],
                cwd=scratch,
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "SPARK_AUTH_SOCKET_TIMEOUT": str(LIMIT_S),  # of Spark's own Python workers
                    _MARK: mark,
                },
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        self.pid = self._process.pid

    def tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(("\t".join(words) + "\n").encode())
        self._process.stdin.flush()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[int]:
        """The driver's Python and its JVM, which executors outlive."""
        return [*named(descendants(self.pid), DRIVER_JVM), self.pid]

    def executors(self) -> list[int]:
        return named(descendants(self.pid), EXECUTOR)

    def workers(self) -> list[int]:
        """Python workers and the processes that fork them."""
        return named(descendants(self.pid), WORKER)

    def executor_of(self, worker: int) -> int:
        """The executor in whose process tree a worker is."""
        return next(pid for pid in self.executors() if worker in descendants(pid))

    def kill(self) -> None:
        for pid in self.processes():
            kill(pid)
        self._end()

    def kill_all(self) -> None:
        """The driver and its executors, without a word to any of them."""
        for pid in [*descendants(self.pid), self.pid]:
            kill(pid)
        self._end()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_CHARS:]

    def _end(self) -> None:
        self._process.wait(LIMIT_S)
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()


@dataclass
class Rig:
    """A context manager; runs that follow each other share one driver as long as it lives.

    Attributes:
        zombies: Drivers that were replaced while they slept.
        is_sound: Whether the newest run ended well, so that the next may use its driver.
    """

    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="rs-kills-")))
    zombies: list[Driver] = field(default_factory=list)
    is_sound: bool = True

    def __enter__(self) -> Rig:
        folder = self.scratch / "redis"
        folder.mkdir()
        self.mark = uuid.uuid4().hex
        self.server = RedisServer(folder=folder, options={"appendfsync": "always"}).start()
        self.proxy = TcpProxy(self.server.port).__enter__()
        self._driver: Driver | None = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_drivers()
        self.proxy.__exit__(kind, error, trace)
        self.server.stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    @property
    def driver(self) -> Driver:
        """The one that works, started if there is none."""
        if self._driver is None or not self._driver.is_running():
            self._driver = Driver(self.scratch, self.proxy.url, self.mark)
        return self._driver

    def replace_driver(self) -> Driver:
        """Another one beside the one that there is, which is a zombie from now on."""
        self.zombies.append(self.driver)
        self._driver = None
        return self.driver

    def end_drivers(self) -> None:
        """Ends every process of the application, also those that lost their parent."""
        for driver in (*self.zombies, self._driver):
            if driver is not None:
                driver.kill_all()
        self.zombies.clear()
        self._driver = None
        for pid in marked(f"{_MARK}={self.mark}"):
            kill(pid)


class Run:
    """Some families over one feed, in a folder of their own."""

    def __init__(
        self,
        rig: Rig,
        seed: int,
        *,
        families: Sequence[str],
        batches: int,
        checkpoint_format: int,
    ) -> None:
        self.rig = rig
        self.families = tuple(families)
        self.feed = Feed(seed, batches)
        self.batches = batches
        self.folder = Path(tempfile.mkdtemp(prefix=f"run-{seed}-", dir=rig.scratch))
        self._format = checkpoint_format
        self._kinds: tuple[str, ...] = (*UNREACHABLE, SPARK_BUSY)
        self.feed.write(self.folder / "input")
        for name in ("output", "stops", "stopped", "checkpoints"):
            (self.folder / name).mkdir()

    def start(self, *, also_restarted: Sequence[str] = ()) -> None:
        """Starts the query on the driver; starts a new driver if there is none.

        Args:
            also_restarted: Errors that a query may end with, besides those of a lost server and
                of a machine that is too busy for Spark.
        """
        self._kinds = (*self._kinds, *also_restarted)
        self._driver = self.rig.driver
        words = [str(self._format), ",".join(self._kinds), ",".join(self.families)]
        self._driver.tell("run", str(self.folder), *words)

    def stop_at(self, place: str) -> None:
        (self.folder / "stops" / place).touch()

    def stopped_at(self, place: str) -> int:
        """The process that waits there."""
        path = self.folder / "stopped" / place
        self.wait(place, lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())

    def lines(self) -> int:
        """Number of batches that all families have written."""
        return sum(
            path.read_bytes().count(b"\n") for path in (self.folder / "output").glob("*.jsonl")
        )

    def wait(self, what: str, ready: Callable[[], object]) -> None:
        def there() -> bool:
            self._check_driver()
            return bool(ready())

        wait_for(f"{what}, with {self.lines()} batches given out", there)

    def is_done(self) -> bool:
        return self._told("done").exists()

    def finish(self) -> None:
        self.wait("the end of the run", self.is_done)

    def restarts(self) -> list[list[str]]:
        """The family and the error of every query that was started again after one."""
        path = self.folder / "restarts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def outputs(self, family: str) -> dict[int, list[Rows]]:
        """Output of each batch, for each time that it ran."""
        found: dict[int, list[Rows]] = {}
        path = self.folder / "output" / f"{family}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            output = json.loads(line)
            found.setdefault(output["batch"], []).append(output["rows"])
        return found

    def complaints(self) -> list[str]:
        """Faults of the output; empty if every batch was right each time."""
        found = [text for family in self.families for text in self._complaints(family)]
        if "map_partitions" in self.families:
            state = self.state(len(self.outputs("map_partitions")))
            if state != self.feed.counts(self.batches - 1):
                found.append(f"map_partitions: its store holds {state}")
        return found

    def _complaints(self, family: str) -> Iterator[str]:
        outputs = self.outputs(family)
        taken = {(0,) * sources(family)}
        for batch in sorted(outputs):
            rows, *again = outputs[batch]
            if any(other != rows for other in again):
                yield f"{family}, batch {batch}: gave {again} after {rows}"
            after = self.feed.advances(family, taken, rows)
            if not after:
                yield f"{family}, batch {batch}: gave {rows} with {sorted(taken)} files before it"
                return
            taken = after
        if not any(min(one) == self.batches for one in taken) or sorted(outputs) != list(
            range(len(outputs))
        ):
            yield f"{family}: {sorted(taken)} files in the batches {sorted(outputs)}"

    def state(self, version: int) -> dict[str, int]:
        """Reads the store of `map_partitions` as another process does."""
        found: dict[str, int] = {}
        for partition in range(PARTITIONS):
            id_ = StateStoreProviderId(
                StateStoreId(store_name(self.folder), 0, partition), "reader"
            )
            provider = StateStoreProvider(id_, config=self.rig.server.url)
            found |= dict(provider.get_read_store(version).iterator())
            provider.close()
        return found

    def _told(self, name: str) -> Path:
        return self.folder / f"{name}-{self._driver.pid}"

    def _check_driver(self) -> None:
        driver = self._driver
        failed = self._told("failed")
        assert not failed.exists(), f"{failed.read_text()}\n{driver.log()}"
        assert driver.is_running(), f"the driver has ended by itself:\n{driver.log()}"
