"""`python -m tests.bench.python_store [--quick]`: the store of Python, without Spark.

Figures are of one process and one core: its CPU time, since other work of the machine is no fault
of the store. The time that passed stands beside it. Each is the best of a few runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date

import redis

import redis_state
from redis_state.codec import RAW
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store import ReadStateStore
from redis_state.store.provider import StateStoreProvider
from tests.bench.page import add_write_option, show

RUNS = 3
GETS = 200_000
UPDATES_SHARE = 20
FIELDS_AT_ONCE = 1_000
DELTAS = 200
OPENS = 20

Data = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of one piece of work."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `aim` is empty where nothing is aimed at."""

    title: str
    found: str
    wall: str
    aim: str = ""
    reached: bool = True

    def __str__(self) -> str:
        verdict = ("reached" if self.reached else "**missed**") if self.aim else ""
        return f"| {self.title} | {self.found} | {self.wall} | {self.aim} | {verdict} |"


class Bench:
    """Runs on a server of its own, with rows that do not compress by themselves."""

    def __init__(self, url: str, rows: int) -> None:
        rng = random.Random(7)
        self.url = url
        self.rows = rows
        self.data: Data = [
            (rng.randbytes(16).hex().encode(), rng.randbytes(12).hex().encode())
            for _ in range(rows)
        ]
        self.changes: Data = [(key, value[::-1]) for key, value in self.data[::UPDATES_SHARE]]
        self.asked = rng.choices([key for key, _ in self.data], k=GETS)
        self.names = 0

    def figures(self) -> Iterator[Figure]:
        """All of them."""
        fill, fields = self._best(self._fill), self._best(self._fill_fields)
        yield self._rate("put + commit of new rows, rows/s", self.rows, fill, 300_000)
        yield self._rate("the same as `HSET` fields, rows/s", self.rows, fields)
        yield Figure(
            "CPU of put + commit / of `HSET` fields, pipelined by 1,000",
            f"{fill.cpu_s / fields.cpu_s:.2f}",
            f"{fill.wall_s / fields.wall_s:.2f}",
        )
        updates = self._best(self._update)
        yield self._rate(
            "get + put + commit of 5 % of the rows, rows/s", len(self.changes), updates
        )
        yield from self._cold()
        yield self._listing()

    def _cold(self) -> Iterator[Figure]:
        writer = self._provider()
        _put_all(writer, 0, self.data)
        writer.get_store(1)
        writer.do_maintenance()
        name = writer.id.store_id.checkpoint
        opened = self._best(lambda: _timed(lambda: self._open(name).get(self.data[0][0])))
        yield _seconds("cold open and a first get, s", opened, 1.0)
        loaded = self._best(lambda: _timed(lambda: self._load(name)))
        yield _seconds("cold open and every row in memory, s", loaded, 1.0)
        read = self._best(lambda: _timed(lambda: _read_all(self._open(name))))
        yield _seconds("cold open and every row handed out in order, s", read)
        warm = self._open(name)
        _read_all(warm)
        got = self._best(lambda: _timed(lambda: _get_all(warm, self.asked)))
        micros, wall = got.cpu_s / GETS * 1e6, got.wall_s / GETS * 1e6
        yield Figure("warm get, µs", f"{micros:.2f}", f"{wall:.2f}", "≤ 2", micros <= 2)

    def _listing(self) -> Figure:
        """Time that the server spends in the scripts of an open, without a snapshot."""
        writer = self._provider()
        for version in range(DELTAS):
            _put_all(writer, version, self.data[version : version + 1])
        name = writer.id.store_id.checkpoint
        took = []
        with redis.Redis.from_url(self.url) as client:
            for _ in range(OPENS):
                client.config_resetstat()
                store = self._named(name).get_store(DELTAS)
                took.append(client.info("commandstats")["cmdstat_evalsha"]["usec"] / 1000)
                store.abort()
        found = statistics.median(took)
        title = f"open that lists {DELTAS} deltas, ms of the server"
        return Figure(title, f"{found:.2f}", "", "≤ 0.3", found <= 0.3)

    def _best(self, work: Callable[[], Took]) -> Took:
        return min((work() for _ in range(RUNS)), key=lambda took: took.cpu_s)

    def _fill(self) -> Took:
        provider = self._provider()
        return _timed(lambda: _put_all(provider, 0, self.data))

    def _update(self) -> Took:
        provider = self._provider()
        _put_all(provider, 0, self.data)

        def batch() -> None:
            store = provider.get_store(1)
            for key, value in self.changes:
                store.get(key)
                store.put(key, value)
            store.commit()

        return _timed(batch)

    def _fill_fields(self) -> Took:
        with redis.Redis.from_url(self.url) as client:

            def fill() -> None:
                for start in range(0, self.rows, FIELDS_AT_ONCE):
                    pipeline = client.pipeline(transaction=False)
                    for key, value in self.data[start : start + FIELDS_AT_ONCE]:
                        pipeline.hset("fields", key, value)
                    pipeline.execute()

            took = _timed(fill)
            client.unlink("fields")
        return took

    def _provider(self) -> StateStoreProvider:
        self.names += 1
        return self._named(f"bench {self.names}")

    def _named(self, name: str) -> StateStoreProvider:
        id_ = StateStoreProviderId(StateStoreId(name, 0, 0), "bench")
        return StateStoreProvider(id_, config=self.url, codec=RAW)

    def _open(self, name: str) -> ReadStateStore:
        return self._named(name).get_read_store(1)

    def _load(self, name: str) -> None:
        base = self._named(name)._partition.read(1).parts[1]
        if base is None:
            raise SystemExit("the rows are not where they were written")
        base.load_all()

    def _rate(self, title: str, rows: int, took: Took, aim: int = 0) -> Figure:
        rate, wall = rows / took.cpu_s, rows / took.wall_s
        return Figure(
            title,
            f"{rate:,.0f}",
            f"{wall:,.0f}",
            f"≥ {aim:,}" if aim else "",
            rate >= aim,
        )


def _seconds(title: str, took: Took, aim: float = 0) -> Figure:
    text = f"≤ {aim:g}" if aim else ""
    return Figure(title, f"{took.cpu_s:.3f}", f"{took.wall_s:.3f}", text, took.cpu_s <= aim)


def _timed(work: Callable[[], object]) -> Took:
    with _quiet():
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        return Took(time.process_time() - cpu, time.perf_counter() - wall)


@contextmanager
def _quiet() -> Iterator[None]:
    """The rows of the bench itself are not to be looked at by the collector."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _put_all(provider: StateStoreProvider, version: int, rows: Data) -> None:
    store = provider.get_store(version)
    put = store.put
    for key, value in rows:
        put(key, value)
    store.commit()


def _read_all(store: ReadStateStore) -> int:
    return sum(1 for _ in store.iterator())


def _get_all(store: ReadStateStore, keys: list[bytes]) -> None:
    get = store.get
    for key in keys:
        get(key)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.python_store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows instead of 1,000,000")
    add_write_option(parser)
    options = parser.parse_args()
    rows = 100_000 if options.quick else 1_000_000
    command = f"python -m tests.bench.python_store{' --quick' if options.quick else ''}"
    with redis_state.EmbeddedRedis() as embedded:
        lines = [str(figure) for figure in Bench(embedded.url, rows).figures()]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = (
        f"`{command}` on {machine}, {date.today().isoformat()}; {rows:,} rows with keys of 32 and "
        f"values of 24 bytes, best of {RUNS}; the load of the machine was "
        f"{os.getloadavg()[0]:.1f}."
    )
    table = ["| figure | per core (CPU) | as passed | aim (per core) | |", "|---|---|---|---|---|"]
    report = "\n".join([head, "", *table, *lines, ""])
    show(report, command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
