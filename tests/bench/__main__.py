"""`python -m tests.bench [--quick]`: measures, checks that the results agree, writes the table."""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyspark
import redis
from pyspark.sql import SparkSession

import redis_state
from tests.bench.report import Result, write_report
from tests.bench.workloads import PARTITIONS, PROVIDERS, Batch, Lane, Workload

QUICK = (
    Workload("tiny batches", keys=10_000, updates=100, warm_up=4, measured=10),
    Workload("200 k keys, 20 k updates", keys=200_000, updates=20_000, warm_up=3, measured=7),
)
FULL = (
    Workload("tiny batches", keys=10_000, updates=100, warm_up=20, measured=150),
    Workload("1 M keys, 50 k updates", keys=1_000_000, updates=50_000, warm_up=5, measured=150),
)


def session(url: str, folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state bench")
        .config("spark.driver.memory", "8g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "10s")
        .config("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    )
    spark = redis_state.configure(builder, url=url).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(spark: SparkSession, server: redis.Redis, folder: Path, work: Workload) -> Result:
    print(f"{work.name}: filling", file=sys.stderr)
    before = server.info()
    lanes = {name: Lane(spark, folder / name, name, work) for name in PROVIDERS}
    for lane in lanes.values():
        lane.feed(0, work.keys)
    filled = server.info()
    rng = random.Random(1)
    times: dict[str, list[Batch]] = {name: [] for name in lanes}
    for number in range(work.warm_up + work.measured):
        start = rng.randrange(work.keys)
        for name in rng.sample(list(lanes), len(lanes)):
            batch = lanes[name].feed(start, work.updates)
            if number >= work.warm_up:
                times[name].append(batch)
        print(f"\r{work.name}: batch {number + 1}", end="", file=sys.stderr)
    start = rng.randrange(work.keys)
    loads = {name: lane.restart(start, work.updates) for name, lane in lanes.items()}
    print(file=sys.stderr)
    states = {name: lane.state() for name, lane in lanes.items()}
    if len({str(state) for state in states.values()}) != 1:
        raise SystemExit(f"the providers disagree, so no figure is printed: {states}")
    after = server.info()
    for lane in lanes.values():
        lane.close()
    return Result(
        work=work,
        times=times,
        loads=loads,
        redis_bytes=int(after["used_memory"]) - int(before["used_memory"]),
        redis_cpu_s=_cpu(after) - _cpu(filled),
        redis_calls=int(after["total_commands_processed"])
        - int(filled["total_commands_processed"]),
    )


def _cpu(info: dict[str, object]) -> float:
    return float(str(info["used_cpu_user"])) + float(str(info["used_cpu_sys"]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller workloads, under 4 minutes")
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    options = parser.parse_args()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        redis_state.EmbeddedRedis() as embedded,
    ):
        server = redis.Redis.from_url(embedded.url)
        spark = session(embedded.url, Path(scratch))
        try:
            results = [
                measure(spark, server, Path(scratch) / str(i), work)
                for i, work in enumerate(QUICK if options.quick else FULL)
            ]
        finally:
            spark.stop()
            server.close()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    command = "make bench-quick" if options.quick else "make bench"
    report = write_report(results, command=command, machine=machine, median=statistics.median)
    print(report)
    if options.output:
        options.output.write_text(report)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
