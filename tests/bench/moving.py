"""`python -m tests.bench.moving [--quick] [--rows N]`: what it takes to move state.

Each source is filled by one batch of small rows. Then it is migrated to Redis and back, and spread
from 4 to 8 partitions; others are restarted and adopted, in rounds. Counts are compared before a
figure is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TypeVar

import pyspark
from pyspark.sql import SparkSession

import redis_state
from tests.bench.__main__ import session
from tests.bench.map_partitions import tree_cpu_s
from tests.bench.page import add_write_option, show
from tests.bench.workloads import Lane, Workload

ROWS, ROWS_QUICK = 10_000_000, 1_000_000
ROWS_ADOPTED, ADOPT_ROUNDS = 1_000_000, 3
RATE_MIN, RESCALE_MAX_S, ADOPT_MAX = 300_000, 60, 1.5
COMMAND = "python -m tests.bench.moving"
ADOPT = "spark.sql.streaming.stateStore.redis.adopt"
SOURCES = {"rocksdb": "rocksdb", "hdfs": "hdfs-backed"}
"""What a lane calls a provider, and what `migrate` calls it."""

A = TypeVar("A")


def timed(work: Callable[[], A]) -> tuple[A, float, float]:
    """A result with its seconds and its CPU seconds: of driver, JVM, workers and server."""
    cpu_s, began = tree_cpu_s(), time.perf_counter()
    done = work()
    return done, time.perf_counter() - began, tree_cpu_s() - cpu_s


def filled(spark: SparkSession, folder: Path, provider: str, rows: int) -> Lane:
    print(f"{provider}: filling {rows:,} rows", file=sys.stderr)
    lane = Lane(spark, folder, provider, Workload(provider, rows, 0, 0, 0))
    lane.feed(0, rows)
    return lane


def moved(spark: SparkSession, url: str, folder: Path, provider: str, rows: int) -> list[str]:
    """There, back, and spread over twice as many partitions."""
    lane = filled(spark, folder, provider, rows)
    lane.stop()
    check, there, back = (str(folder / name) for name in ("check", "there", "back"))
    steps: list[tuple[str, Callable[[], redis_state.Migration]]] = [
        (f"{provider} → redis", lambda: redis_state.migrate(spark, check, there, to=url)),
        (
            f"redis → {provider}",
            lambda: redis_state.migrate(spark, there, back, to=SOURCES[provider]),
        ),
    ]
    if provider == "rocksdb":
        spread = str(folder / "spread")
        steps.append(("rescale 4 → 8", lambda: redis_state.rescale(spark, there, spread, 8)))
    lines = []
    for title, step in steps:
        print(title, file=sys.stderr)
        done, wall_s, cpu_s = timed(step)
        if done.rows != rows:
            raise SystemExit(f"{title}: {done.rows} rows instead of {rows}")
        if title.startswith("rescale"):
            aim = f"≤ {RESCALE_MAX_S} s {_verdict(wall_s <= RESCALE_MAX_S)}"
            aim = aim if rows >= ROWS else ""
        else:
            aim = f"≥ {RATE_MIN:,} {_verdict(rows / wall_s >= RATE_MIN)}"
        lines.append(
            f"| {title} | {rows:,} | {wall_s:.1f} | {cpu_s:.1f} | {rows / wall_s:,.0f} | {aim} |"
        )
    lane.close()
    return lines


def adopted(spark: SparkSession, folder: Path, provider: str, rows: int) -> str:
    """The first batch after a start that adopts, beside one after an ordinary start: medians."""
    rounds = [_adoption(spark, folder / str(n), provider, rows) for n in range(ADOPT_ROUNDS)]
    plain_s, adopt_s, cpu_s = (statistics.median(times) for times in zip(*rounds, strict=True))
    found = adopt_s / plain_s
    return (
        f"| {provider} | {rows:,} | {adopt_s:.1f} | {cpu_s:.1f} | {plain_s:.1f} | {found:.2f} "
        f"| ≤ {ADOPT_MAX:g} {_verdict(found <= ADOPT_MAX)} |"
    )


def _adoption(
    spark: SparkSession, folder: Path, provider: str, rows: int
) -> tuple[float, float, float]:
    lane = filled(spark, folder, provider, rows)
    lane.restart(0, 1)
    _, plain_s, _ = timed(lambda: lane.restart(1, 1))
    spark.conf.set(ADOPT, "true")
    try:
        batch, adopt_s, cpu_s = timed(lambda: lane.restart(2, 1, provider="redis"))
    finally:
        spark.conf.unset(ADOPT)
    if batch.rows != rows:
        raise SystemExit(f"adopt from {provider}: {batch.rows} rows instead of {rows}")
    lane.close()
    return plain_s, adopt_s, cpu_s


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.moving", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 M rows instead of 10 M")
    parser.add_argument("--rows", type=int, help="another number of rows")
    add_write_option(parser)
    options = parser.parse_args()
    rows = options.rows or (ROWS_QUICK if options.quick else ROWS)
    scratch = Path(tempfile.mkdtemp(prefix="redis-state-bench-"))
    moves, adoptions = [], []
    try:
        with redis_state.EmbeddedRedis() as embedded:
            spark = session(embedded.url, scratch)
            try:
                for provider in SOURCES:
                    folder = scratch / f"adopt-{provider}"
                    adoptions.append(adopted(spark, folder, provider, min(rows, ROWS_ADOPTED)))
                for provider in SOURCES:
                    moves += moved(spark, embedded.url, scratch / provider, provider, rows)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    head = (
        f"`{COMMAND}` on {os.cpu_count()} cores, {platform.machine()}, Spark "
        f"{pyspark.__version__}, {date.today().isoformat()}; one run of each move, "
        f"medians of {ADOPT_ROUNDS} adoptions; "
        f"the load of the machine was {os.getloadavg()[0]:.1f}."
    )
    of_moves = ["| move | rows | s | CPU s | rows/s | aim |", "|---|---|---|---|---|---|", *moves]
    of_adoptions = [
        "| adopt from | rows | first batch, s | CPU s | ordinary restart, s | ratio | aim |",
        "|---|---|---|---|---|---|---|",
        *adoptions,
    ]
    show("\n".join([head, "", *of_moves, "", *of_adoptions]), COMMAND, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
