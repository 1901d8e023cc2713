"""`python -m tests.bench.fork [--rows N …] [--rounds N]`: what a fork takes, and costs its parent.

A query is filled by one batch of small rows, forked on a local folder, and then runs batches in
turns: some with a fork of its newest batch, some without any. Rows are counted before a figure is
printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

import redis_state
from redis_state import config
from redis_state.backend.client import Client
from redis_state.forks import Forked
from redis_state.maintain.purge import purge, registered_partitions
from redis_state.protocol.pins import unpin_all
from tests.bench.__main__ import session
from tests.bench.workloads import Lane, Workload
from tests.support.redis_server import RedisServer

FORKS = 3
ROWS = (1_000_000, 10_000_000)
UPDATES = 20_000
ROUNDS = 8
SECONDS_MAX = 1.0
SLOWER_MAX = 1.02


class Parent:
    """A query of so many rows, and the forks that were made of it."""

    def __init__(self, spark: SparkSession, server: RedisServer, folder: Path, rows: int) -> None:
        self.server, self.rows = server, rows
        self._folder = folder / f"of-{rows}"
        self._forks = 0
        print(f"filling {rows:,} rows", file=sys.stderr)
        self.lane = Lane(spark, self._folder, "redis", Workload("fork", rows, 0, 0, 0))
        self.lane.feed(0, rows)

    def fork(self) -> Forked:
        self._forks += 1
        to = self._folder / f"fork-{self._forks}"
        made = redis_state.fork(self.server.url, str(self._folder / "check"), to=str(to))
        if made.rows != self.rows:
            raise SystemExit(f"a fork has {made.rows} rows instead of {self.rows}")
        return made

    def forget(self, made: Forked) -> None:
        """Removes a fork, and its pins."""
        with closing(Client(config.parse({"url": self.server.url}))) as client:
            parent = json.loads((self._folder / "check/state/_redis_state").read_text())["gen"]
            unpin_all(client, registered_partitions(client, parent, ""), made.gen)
            purge(client, made.gen)

    def batch_ms(self, number: int) -> float:
        """Milliseconds of a batch that changes some of the keys."""
        return self.lane.feed(number * UPDATES, UPDATES).trigger_ms

    def used(self) -> int:
        """Bytes that the server holds."""
        return int(self.server.client().info("memory")["used_memory"])


def measured(
    spark: SparkSession, server: RedisServer, folder: Path, rows: int, rounds: int
) -> list[str]:
    """Lines of the report for one size."""
    parent = Parent(spark, server, folder, rows)
    before = parent.used()
    made = [parent.fork() for _ in range(FORKS)]
    grown = (parent.used() - before) // FORKS
    seconds = [one.seconds for one in made]
    for one in made:
        parent.forget(one)
    with_fork, without = [], []
    for number in range(rounds):
        without.append(parent.batch_ms(2 * number))
        forked = parent.fork()
        with_fork.append(parent.batch_ms(2 * number + 1))
        parent.forget(forked)
    parent.lane.close()
    alone_ms, beside_ms = statistics.median(without), statistics.median(with_fork)
    return [
        f"{rows:,} rows in {made[0].partitions} partitions",
        f"  a fork took {min(seconds):.3f} to {max(seconds):.3f} s (at most {SECONDS_MAX:g} s)",
        f"  Redis grew by {grown:,} bytes a fork",
        f"  a batch of {UPDATES:,} changes took {alone_ms:.0f} ms without a fork and "
        f"{beside_ms:.0f} ms with one: {beside_ms / alone_ms:.3f} (at most {SLOWER_MAX:g})",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of each parent")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="batches of each kind")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        spark = session(server.url, Path(folder))
        try:
            for rows in arguments.rows:
                for line in measured(spark, server, Path(folder), rows, arguments.rounds):
                    print(line, flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
