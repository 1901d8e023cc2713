"""Executors and the driver are killed every ten seconds, and every read is answered and whole.

`python -m tests.faults.test_reads_while_killed MINUTES` does it for longer and prints the figures.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state.errors import NotFoundError
from redis_state.live import Reader
from redis_state.reader import OperatorState, Query
from tests.faults.processes import EXECUTOR, descendants, kill, named
from tests.faults.reading_job import ACCOUNTS, MOVES, NAME
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]
MINUTES = 3
PAUSE_S = 10
START_S = 120


@dataclass
class Figures:
    """Counts of one run."""

    reads: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    versions: set[int] = field(default_factory=set)
    changes: int = 0
    slowest_ms: float = 0.0


class Application:
    """The driver that is killed and started again."""

    def __init__(self, scratch: Path, url: str) -> None:
        self._scratch = scratch
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with (self._scratch / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.reading_job", str(self._scratch), self._url],
                cwd=self._scratch,
                env={**os.environ, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    def executors(self) -> list[int]:
        return [] if self._process is None else named(descendants(self._process.pid), EXECUTOR)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """The driver, its JVM and all executors, without a word to any of them."""
        if self._process is not None:
            for pid in [*descendants(self._process.pid), self._process.pid]:
                kill(pid)
            self._process.wait(START_S)

    def log(self) -> str:
        return (self._scratch / "driver.log").read_text(errors="replace")[-4000:]


@contextmanager
def application() -> Iterator[tuple[Application, RedisServer]]:
    scratch = Path(tempfile.mkdtemp(prefix="rs-reading-"))
    (scratch / "redis").mkdir()
    server = RedisServer(folder=scratch / "redis").start()
    made = Application(scratch, server.url)
    try:
        made.start()
        yield made, server
    finally:
        made.kill()
        server.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def check(rows: list[dict[str, Any]]) -> int:
    """Checks that the rows are one whole version; returns its number."""
    moves = sum(row["count"] for row in rows)
    assert len(rows) == ACCOUNTS
    assert sum(row["sum"] for row in rows) == 0
    assert moves % MOVES == 0
    return int(moves // MOVES)


def read_once(query: Query, state: OperatorState, turn: int) -> tuple[str, int]:
    """One read, of a kind that the turn decides: its name and the version that it gave."""
    accounts = [{"account": number} for number in range(ACCOUNTS)]
    match turn % 6:
        case 0:
            return "items", check([value for _, value in state.items()])
        case 1:
            return "to_arrow", check(state.to_arrow().to_pylist())
        case 2:
            return "scan, latest", check(list(state.scan(at="latest")))
        case 3:
            view = query.view()
            one = view.operator()
            found = one.get_many(accounts[:32]) + [one.get(key) for key in accounts[32:]]
            version = check([value for value in found if value is not None])
            assert version == view.version
            return "view", version
        case _:
            found = state.get_many(accounts)
            return "get_many", check([value for value in found if value is not None])


def read_on(reader: Reader, figures: Figures, stop: threading.Event) -> None:
    """Reads one after the other; confirmed versions never go back."""
    query = reader.query(NAME)
    state = query.operator()
    newest = 0
    for turn in itertools.count():
        if stop.is_set():
            return
        began = time.monotonic()
        try:
            kind, version = read_once(query, state, turn)
            if kind != "scan, latest":
                assert version >= newest, "a confirmed version went back"
                newest = version
            figures.reads[kind] += 1
            figures.versions.add(version)
        except Exception as error:  # noqa: BLE001  # each is a failed read
            figures.failed.append(f"turn {turn}: {type(error).__name__}: {error}")
        figures.slowest_ms = max(figures.slowest_ms, 1000 * (time.monotonic() - began))


def follow(reader: Reader, figures: Figures, stop: threading.Event) -> None:
    """Replays every change; after each batch the balances are a whole version."""
    rows: dict[int, dict[str, Any]] = {}
    try:
        feed = (
            reader.query(NAME)
            .operator()
            .changes(since="start", follow=True, interval_s=0.1, stop=stop)
        )
        for batch in feed:
            for key, value in batch:
                assert value is not None
                rows[key["account"]] = value
            assert check(list(rows.values())) == batch.number + 1
            figures.changes += 1
    except Exception as error:  # noqa: BLE001  # told with the reads
        figures.failed.append(f"changes: {type(error).__name__}: {error}")


def wait_for_version(server: RedisServer, application: Application, version: int) -> None:
    """Until the query has confirmed a version."""
    end = time.monotonic() + START_S
    with redis_state.connect(server.url) as reader:
        while time.monotonic() < end:
            if not application.is_running():
                raise AssertionError(application.log())
            with suppress(NotFoundError):  # before its first batch
                found = list(reader.query(NAME).operator().items())
                if len(found) == ACCOUNTS and check([v for _, v in found]) >= version:
                    return
            time.sleep(0.2)
    raise TimeoutError(application.log())


def newest_of(server: RedisServer) -> int:
    with redis_state.connect(server.url) as reader:
        return check([value for _, value in reader.query(NAME).operator().items()])


def strike_on(application: Application, server: RedisServer, figures: Figures, end: float) -> None:
    """Kill something every ten seconds: the driver when its query has moved on, else executors."""
    at_start = newest_of(server)
    while time.monotonic() < end:
        time.sleep(PAUSE_S)
        assert application.is_running(), application.log()
        if (
            figures.kills["driver"] <= figures.kills["executor"]
            and newest_of(server) > at_start + 2
        ):
            application.kill()
            figures.kills["driver"] += 1
            at_start = newest_of(server)
            application.start()
        else:
            for pid in application.executors()[:1]:
                kill(pid)
                figures.kills["executor"] += 1


def play(minutes: float) -> Figures:
    """Read for so long."""
    figures, stop = Figures(), threading.Event()
    with application() as (made, server):
        wait_for_version(server, made, 2)
        with (
            redis_state.connect(server.url) as reader,
            redis_state.connect(server.url) as follower,
        ):
            threads = [
                threading.Thread(target=read_on, args=(reader, figures, stop)),
                threading.Thread(target=follow, args=(follower, figures, stop)),
            ]
            for thread in threads:
                thread.start()
            try:
                strike_on(made, server, figures, time.monotonic() + 60 * minutes)
                wait_for_version(server, made, newest_of(server) + 2)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
    return figures


@pytest.mark.timeout(1200)
def test_no_read_fails_while_executors_and_the_driver_are_killed() -> None:
    figures = play(MINUTES)
    assert figures.failed == []
    assert min(figures.kills["driver"], figures.kills["executor"]) > 1
    assert sum(figures.reads.values()) > 1_000
    assert len(figures.versions) > 10
    assert figures.changes > 10


if __name__ == "__main__":
    found = play(float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES)
    print(f"reads {sum(found.reads.values()):,} {dict(found.reads)}")
    print(f"failed {len(found.failed)} {found.failed[:5]}")
    print(f"kills {dict(found.kills)}; versions read {len(found.versions)} up to "
          f"{max(found.versions)}; batches of changes {found.changes}; slowest "
          f"{found.slowest_ms:.0f} ms")  # fmt: skip
