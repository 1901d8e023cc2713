"""`python -m tests.bench.uncommitted [--quick]`: the price of rows that are read before the commit.

Two queries with the same rows take turns in random order: one with `publishEvery`, one without. The
batches are long, so that each has previews; the benchmark counts them. The states have to be equal
before a figure is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.ratio import ratio
from tests.bench.workloads import PARTITIONS, Batch, Lane, Workload
from tests.spark.streams import PREFIX
from tests.support.redis_server import RedisServer

EVERY = PREFIX + "publishEvery"
EVERY_MS = 200
NAMES = ("publishing", "plain")
FULL = Workload("1 M keys", keys=1_000_000, updates=500_000, warm_up=5, measured=20)
QUICK = Workload("200 k keys", keys=200_000, updates=200_000, warm_up=3, measured=8)
BATCH_RATIO_MAX = 1.03


def lanes_of(spark: SparkSession, folder: Path, work: Workload) -> dict[str, Lane]:
    """Starts both queries, each filled by one batch."""
    lanes = {}
    for name in NAMES:
        if name == "publishing":
            spark.conf.set(EVERY, f"{EVERY_MS}ms")
        lanes[name] = Lane(spark, folder / name, "redis", work)
        spark.conf.unset(EVERY)
        lanes[name].feed(0, work.keys)
    return lanes


def slices(server: RedisServer) -> int:
    """Returns the number of slices that have not expired yet."""
    return sum(1 for _ in server.client().scan_iter(match="*}:u:*"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.uncommitted", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200,000 keys instead of 1,000,000")
    add_write_option(parser)
    options = parser.parse_args()
    work = QUICK if options.quick else FULL
    rng = random.Random(5)
    times: dict[str, list[Batch]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        spark = session(server.url, Path(folder))
        try:
            lanes = lanes_of(spark, Path(folder), work)
            for number in range(work.warm_up + work.measured):
                start = rng.randrange(work.keys)
                for name in rng.sample(NAMES, len(NAMES)):
                    batch = lanes[name].feed(start, work.updates)
                    if number >= work.warm_up:
                        times[name].append(batch)
                print(f"\rbatch {number + 1}", end="", file=sys.stderr)
            print(file=sys.stderr)
            if len({str(lane.state()) for lane in lanes.values()}) != 1:
                raise SystemExit("the states differ, so no figure is printed")
            found = slices(server)
            if not found:
                raise SystemExit("no rows were published: the batches are too short")
            for lane in lanes.values():
                lane.close()
        finally:
            spark.stop()
    command = f"python -m tests.bench.uncommitted{' --quick' if options.quick else ''}"
    show("\n".join([_head(command, work), "", *_table(times, found), ""]), command, options.write)
    return 0


def _head(command: str, work: Workload) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    return (
        f"`{command}` on {machine}, {date.today().isoformat()}: {work.keys:,} keys in {PARTITIONS} "
        f"partitions, {work.measured} pairs of batches of {work.updates:,} changes; the load of "
        f"the machine was {os.getloadavg()[0]:.1f}."
    )


def _table(times: Mapping[str, list[Batch]], slices_left: int) -> list[str]:
    whole = {name: [batch.trigger_ms for batch in all_] for name, all_ in times.items()}
    found = ratio(whole["publishing"], whole["plain"])
    if found is None:
        raise SystemExit("batches took no time")
    return [
        "| figure | with | without | found | aim |",
        "|---|---|---|---|---|",
        f"| whole batch, ms | {statistics.median(whole['publishing']):.0f} "
        f"| {statistics.median(whole['plain']):.0f} | {found} "
        f"| {_aim(BATCH_RATIO_MAX, found.point)} |",
        f"| slices of the last two minutes | {slices_left} | 0 | | |",
    ]


def _aim(most: float, found: float) -> str:
    return f"≤ {most:g} {'reached' if found <= most else '**missed**'}"


if __name__ == "__main__":
    sys.exit(main())
