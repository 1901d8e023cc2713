"""`python -m tests.bench.reader [--quick]`: live reads, against single commands of the server.

A loop over keys is timed call by call, and its median counts; a table by its CPU time, on one core.
The state has ten kept versions beside the first one.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

import redis

import redis_state
from redis_state.live import Reader
from redis_state.reader import OperatorState
from tests.bench.page import add_write_option, show
from tests.bench.python_store import Figure
from tests.contract.planting import Planted, family, schema

RUNS = 5
MANY_RUNS = 25
"""Of a call that takes some milliseconds: other work of the machine easily doubles that."""

ASKED = 1_000
VERSIONS = 10
CHANGES = 1_000
PARTITIONS = 4
KEYS = family(schema(user="string"), schema(count="long", total="double"))
FIXED = family(schema(user="long"), schema(count="long", total="double"))


class Bench:
    """Reads a planted state: of keys that are texts, and of rows of fixed layout."""

    def __init__(self, reader: Reader, server: redis.Redis, rows: int) -> None:
        self._reader = reader
        self._server = server
        self._rows = rows
        self._rng = random.Random(7)

    def figures(self) -> Iterator[Figure]:
        """All of them."""
        state, keys = self._keyed()
        self._server.set("bench", b"v" * 30)
        command = [("GET", "bench")]
        client = self._reader.client
        gets = _best(lambda: _median(lambda _: client.call("a GET", command), keys))
        ours = _best(lambda: _median(state.get, keys))
        yield Figure("a GET, µs", "", f"{gets * 1e6:.0f}")
        yield _ratio("get / GET, of warm keys", ours, gets, 3)
        view = state.view()
        yield _ratio("get of a view / GET", _best(lambda: _median(view.get, keys)), gets, 3)
        many = _best(lambda: _timed(lambda: state.get_many(keys)), MANY_RUNS)
        yield _ratio(f"get_many of {ASKED:,} keys / get", many, ours, 20)
        yield Figure(f"get_many of {ASKED:,} keys, µs a key", "", f"{many / ASKED * 1e6:.1f}")
        table = self._table()
        cpu, wall = [], []
        for _ in range(RUNS):
            began = time.process_time(), time.perf_counter()
            found = table.to_arrow().num_rows
            cpu.append(time.process_time() - began[0])
            wall.append(time.perf_counter() - began[1])
            if found != self._rows:
                raise SystemExit("rows are missing")
        aim = 0.4 * self._rows / 1_000_000
        yield Figure(
            f"{self._rows:,} rows to Arrow, s",
            f"{min(cpu):.2f}",
            f"{min(wall):.2f}",
            f"≤ {aim:g}",
            min(cpu) <= aim,
        )

    def _keyed(self) -> tuple[OperatorState, list[dict[str, Any]]]:
        planted = Planted(self._server, KEYS, PARTITIONS, "a" * 32, "keys")
        planted.register()
        rows = [
            ({"user": f"user-{n:08}"}, {"count": n, "total": n / 2})
            for n in range(self._rows // 20)
        ]
        planted.commit(1, rows)
        for version in range(2, VERSIONS + 2):
            planted.commit(version, self._rng.sample(rows, CHANGES))
        keys = [key for key, _ in self._rng.sample(rows, ASKED)]
        return self._reader.query("keys").operator(), keys

    def _table(self) -> OperatorState:
        planted = Planted(self._server, FIXED, PARTITIONS, "b" * 32, "table")
        planted.register()
        parts: list[dict[bytes, bytes]] = [{} for _ in range(PARTITIONS)]
        for n in range(self._rows):
            key = bytes(3) + struct.pack("<qq", 0, n)
            parts[n % PARTITIONS][key] = bytes(1) + struct.pack("<qqd", 0, n, n / 2)
        for number, rows in enumerate(parts):
            planted.delta(number, 1, rows)
            planted.snapshot(number, 1, rows)
        return self._reader.query("table").operator()


def _best(work: Callable[[], float], runs: int = RUNS) -> float:
    return min(work() for _ in range(runs))


def _median(call: Callable[[Any], object], keys: Sequence[Any]) -> float:
    return statistics.median(_timed(lambda key=key: call(key)) for key in keys)  # type: ignore[misc]  # its type is the caller's


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _ratio(title: str, ours: float, other: float, aim: int) -> Figure:
    found = ours / other
    return Figure(title, f"{found:.1f}", f"{ours * 1e6:,.0f} µs", f"≤ {aim}", found <= aim)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.reader", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows instead of 1,000,000")
    add_write_option(parser)
    options = parser.parse_args()
    rows = 100_000 if options.quick else 1_000_000
    command = f"python -m tests.bench.reader{' --quick' if options.quick else ''}"
    with (
        redis_state.EmbeddedRedis() as embedded,
        redis.Redis.from_url(embedded.url) as server,
        redis_state.connect(embedded.url) as reader,
    ):
        lines = [str(figure) for figure in Bench(reader, server, rows).figures()]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = (
        f"`{command}` on {machine}, {date.today().isoformat()}; {rows // 20:,} rows to look "
        f"keys up in, {VERSIONS} versions of {CHANGES:,} changes above; best of {RUNS}; the load "
        f"of the machine was {os.getloadavg()[0]:.1f}."
    )
    table = ["| figure | found | as passed | aim | |", "|---|---|---|---|---|"]
    report = "\n".join([head, "", *table, *lines, ""])
    show(report, command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
