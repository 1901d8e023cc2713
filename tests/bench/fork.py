"""`python -m tests.bench.fork [--rows N …] [--pairs N]`: the price of forks and kept versions.

A query is filled by one batch of small rows and forked on a local folder. Then its batches are
measured in pairs, in random order: one of them runs while a fork of the newest batch exists, the
other one without any fork. The rows of each fork are counted before a figure is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import redis_state
from redis_state import config
from redis_state.backend.client import Client
from redis_state.forks import Forked
from redis_state.maintain.purge import manifests_of, purge, registered_partitions
from redis_state.protocol.pins import unpin_all
from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.ratio import Ratio, ratio
from tests.bench.workloads import Lane, Workload
from tests.support.redis_server import RedisServer

FORKS = 5
ROWS = (1_000_000, 10_000_000)
UPDATES = 20_000
WARM_UP = 10
PAIRS = 30
FORK_S_MAX = 1.0
BATCH_RATIO_MAX = 1.02


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of a parent of one size.

    Attributes:
        fork_s: Seconds of each fork.
        fork_bytes: Memory of the server for one fork: its pins, its partitions and its entry.
        pin_bytes: Memory of the server for one pin of one partition.
        state_bytes: Memory of the server for the state of the parent.
        batch: Duration of a batch beside a fork, relative to one without.
    """

    rows: int
    partitions: int
    fork_s: list[float]
    fork_bytes: int
    pin_bytes: int
    state_bytes: int
    batch_ms: float
    batch: Ratio

    def lines(self) -> Iterator[str]:
        """Lines of the table."""
        size = f"{self.rows:,}"
        slowest = max(self.fork_s)
        fork = f"{statistics.median(self.fork_s):.3f} s, slowest {slowest:.3f} s"
        yield f"| {size} | a fork | {fork} | {_aim('s', FORK_S_MAX, slowest)} |"
        yield (
            f"| {size} | … in Redis, of a state of {self.state_bytes / 2**20:,.0f} MiB "
            f"| {self.fork_bytes:,} bytes, {self.partitions} partitions | |"
        )
        yield f"| {size} | a pin of a partition in Redis | {self.pin_bytes:,} bytes | |"
        yield (
            f"| {size} | batch of {UPDATES:,} changes beside a fork / without "
            f"| {self.batch} of {self.batch_ms:.0f} ms "
            f"| {_aim('', BATCH_RATIO_MAX, self.batch.point)} |"
        )


class Parent:
    """A query of a given number of rows, and the forks made of it."""

    def __init__(self, spark: SparkSession, server: RedisServer, folder: Path, rows: int) -> None:
        self.server, self.rows = server, rows
        self._folder = folder / f"of-{rows}"
        self._forks = 0
        self._batches = 0
        print(f"filling {rows:,} rows", file=sys.stderr)
        before = self.used()
        self.lane = Lane(spark, self._folder, "redis", Workload("fork", rows, 0, 0, 0))
        self.lane.feed(0, rows)
        self.state_bytes = self.used() - before

    def fork(self) -> Forked:
        self._forks += 1
        to = self._folder / f"fork-{self._forks}"
        made = redis_state.fork(self.server.url, str(self._folder / "check"), to=str(to))
        if made.rows != self.rows:
            raise SystemExit(f"a fork has {made.rows} rows instead of {self.rows}")
        return made

    def forget(self, made: Forked) -> None:
        """Removes a fork and its pins."""
        with closing(Client(config.parse({"url": self.server.url}))) as client:
            unpin_all(client, registered_partitions(client, self.gen, ""), made.gen)
            purge(client, made.gen)

    @property
    def gen(self) -> str:
        """Checkpoint id of the query."""
        marker = json.loads((self._folder / "check/state/_redis_state").read_text())
        return str(marker["gen"])

    def batch_ms(self) -> float:
        """Milliseconds of a batch that changes some of the keys."""
        self._batches += 1
        return self.lane.feed(self._batches * UPDATES, UPDATES).trigger_ms

    def used(self) -> int:
        """Bytes that the server holds."""
        return int(self.server.client().info("memory")["used_memory"])

    def manifest_bytes(self) -> int:
        """Mean size of a manifest on the server."""
        with closing(Client(config.parse({"url": self.server.url}))) as client:
            found = manifests_of(client, self.gen, "")
        server = self.server.client()
        return sum(int(server.memory_usage(key, samples=0) or 0) for key in found) // len(found)


def measure(spark: SparkSession, server: RedisServer, folder: Path, rows: int, pairs: int) -> Found:
    """Measures one size."""
    parent = Parent(spark, server, folder, rows)
    for _ in range(WARM_UP):
        parent.batch_ms()
    used, manifest = parent.used(), parent.manifest_bytes()
    made = [parent.fork() for _ in range(FORKS)]
    fork_bytes = (parent.used() - used) // FORKS
    pin_bytes = (parent.manifest_bytes() - manifest) // FORKS
    for one in made:
        parent.forget(one)
    beside, alone = _pairs(parent, pairs)
    parent.lane.close()
    found = ratio(beside, alone)
    if found is None:
        raise SystemExit("batches took no time")
    return Found(
        rows=rows,
        partitions=made[0].partitions,
        fork_s=[one.seconds for one in made],
        fork_bytes=fork_bytes,
        pin_bytes=pin_bytes,
        state_bytes=parent.state_bytes,
        batch_ms=statistics.median(alone),
        batch=found,
    )


def _pairs(parent: Parent, pairs: int) -> tuple[list[float], list[float]]:
    """Milliseconds of batches beside a fork and of batches without one."""
    rng = random.Random(3)
    beside: list[float] = []
    alone: list[float] = []
    for number in range(pairs):
        for forked in rng.sample((True, False), 2):
            made = parent.fork() if forked else None
            (beside if forked else alone).append(parent.batch_ms())
            if made is not None:
                parent.forget(made)
        print(f"\rpair {number + 1} of {pairs}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return beside, alone


def _aim(unit: str, most: float, found: float) -> str:
    verdict = "reached" if found <= most else "**missed**"
    return f"≤ {most:g} {unit} {verdict}".replace("  ", " ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.fork", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of each parent")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of batches")
    add_write_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        spark = session(server.url, Path(folder))
        try:
            found = [
                measure(spark, server, Path(folder), rows, options.pairs) for rows in options.rows
            ]
        finally:
            spark.stop()
    command = "python -m tests.bench.fork"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    head = (
        f"`{command}` on {machine}, {date.today().isoformat()}; {FORKS} forks on a local folder, "
        f"{options.pairs} pairs of batches; the load of the machine was {os.getloadavg()[0]:.1f}."
    )
    table = ["| rows | figure | found | aim |", "|---|---|---|---|"]
    lines = [line for one in found for line in one.lines()]
    show("\n".join([head, "", *table, *lines, ""]), command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
