"""`python -m tests.bench.time_to_live [--quick]`: the price of rows that expire.

Two queries with the same rows take turns in random order: one with a time to live that no row
reaches, one without. Their states have to be equal before a figure is printed.
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
from typing import cast

import pyspark
from pyspark.sql import SparkSession

from redis_state.format.entry import Segment, segments_in
from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.ratio import ratio
from tests.bench.workloads import PARTITIONS, Batch, Lane, Workload
from tests.spark.streams import PREFIX
from tests.support.redis_server import RedisServer

TTL = PREFIX + "stateTtl"
NAMES = ("expiring", "plain")
FULL = Workload("1 M keys", keys=1_000_000, updates=50_000, warm_up=10, measured=40)
QUICK = Workload("200 k keys", keys=200_000, updates=20_000, warm_up=3, measured=10)
BATCH_RATIO_MAX = 1.03
ROW_BYTES_MAX = 0.5


def lanes_of(spark: SparkSession, folder: Path, work: Workload) -> dict[str, Lane]:
    """Starts both queries, each filled by one batch."""
    lanes = {}
    for name in NAMES:
        if name == "expiring":
            spark.conf.set(TTL, "30d")
        lanes[name] = Lane(spark, folder / name, "redis", work)
        spark.conf.unset(TTL)
        lanes[name].feed(0, work.keys)
    return lanes


def row_bytes(server: RedisServer) -> Mapping[bool, float]:
    """Returns bytes of a row in the newest snapshots, by whether rows expire."""
    client = server.client()
    total = {True: [0, 0], False: [0, 0]}
    for meta in client.scan_iter(match="*:m"):
        manifest = cast("Mapping[bytes, bytes]", client.hgetall(meta))
        snapshots = [one for one in segments_in(manifest) if one.snapshot]
        newest: Segment = max(snapshots, key=lambda one: one.version)
        found = total[newest.entry.time > 0]
        found[0] += newest.entry.bytes
        found[1] += newest.entry.rows
    return {expires: size / rows for expires, (size, rows) in total.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.time_to_live", description=__doc__)
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
            bytes_of = row_bytes(server)
            for lane in lanes.values():
                lane.close()
        finally:
            spark.stop()
    command = f"python -m tests.bench.time_to_live{' --quick' if options.quick else ''}"
    show(
        "\n".join([_head(command, work), "", *_table(times, bytes_of), ""]), command, options.write
    )
    return 0


def _head(command: str, work: Workload) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    return (
        f"`{command}` on {machine}, {date.today().isoformat()}: {work.keys:,} keys in {PARTITIONS} "
        f"partitions, {work.measured} pairs of batches of {work.updates:,} changes; the load of "
        f"the machine was {os.getloadavg()[0]:.1f}."
    )


def _table(times: Mapping[str, list[Batch]], bytes_of: Mapping[bool, float]) -> list[str]:
    whole = {name: [batch.trigger_ms for batch in all_] for name, all_ in times.items()}
    found = ratio(whole["expiring"], whole["plain"])
    if found is None:
        raise SystemExit("batches took no time")
    more = bytes_of[True] - bytes_of[False]
    return [
        "| figure | with | without | found | aim |",
        "|---|---|---|---|---|",
        f"| whole batch, ms | {statistics.median(whole['expiring']):.0f} "
        f"| {statistics.median(whole['plain']):.0f} | {found} "
        f"| {_aim(BATCH_RATIO_MAX, found.point)} |",
        f"| bytes of a row in a snapshot | {bytes_of[True]:.2f} | {bytes_of[False]:.2f} "
        f"| {more:+.2f} | {_aim(ROW_BYTES_MAX, more)} |",
    ]


def _aim(most: float, found: float) -> str:
    return f"≤ {most:g} {'reached' if found <= most else '**missed**'}"


if __name__ == "__main__":
    sys.exit(main())
