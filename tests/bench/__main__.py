"""`python -m tests.bench [--quick]`: measures, checks that the results agree, writes the table."""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import pyspark
import redis
from pyspark.sql import SparkSession

import redis_state
from tests.bench import store_level
from tests.bench.page import add_write_option, show
from tests.bench.report import EARLY, QueryResult, write_report
from tests.bench.store_level import StoreWork
from tests.bench.workloads import PARTITIONS, PROVIDERS, Batch, Lane, Workload
from tests.spark.streams import FORMAT

QUICK = (
    Workload("tiny batches", keys=10_000, updates=100, warm_up=4, measured=10),
    Workload("200 k keys, 20 k updates", keys=200_000, updates=20_000, warm_up=3, measured=7),
)
QUICK_STORES = (
    StoreWork("tiny batches", keys=10_000, updates=100, warm_up=100, batches=60),
    StoreWork("200 k keys, 20 k updates", keys=200_000, updates=20_000, warm_up=5, batches=20),
)
FULL = (
    Workload("tiny batches", keys=10_000, updates=100, warm_up=10, measured=40),
    Workload("1 M keys, 50 k updates", keys=1_000_000, updates=50_000, warm_up=15, measured=25),
)
FULL_STORES = (
    StoreWork("tiny batches", keys=10_000, updates=100, warm_up=500, batches=150),
    StoreWork("1 M keys, 50 k updates", keys=1_000_000, updates=50_000, warm_up=5, batches=150),
)


def session(url: str, folder: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """Starts Spark.

    Args:
        more: Further settings.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state bench")
        .config("spark.driver.memory", "8g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.authenticate.socketTimeout", "200s")  # a busy machine starts it late
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "10s")
        .config("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config(FORMAT, "1")  # HDFSBacked has no other
    )
    for name, text in (more or {}).items():
        builder = builder.config(name, text)
    spark = redis_state.configure(builder, url=url).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(spark: SparkSession, server: redis.Redis, folder: Path, work: Workload) -> QueryResult:
    print(f"{work.name}: filling", file=sys.stderr)
    before = server.info()
    lanes = {name: Lane(spark, folder / name, name, work) for name in PROVIDERS}
    for lane in lanes.values():
        lane.feed(0, work.keys)
    filled = server.info()
    rng = random.Random(1)
    times: dict[str, list[Batch]] = {name: [] for name in lanes}
    early = 0
    for number in range(work.warm_up + work.measured):
        start = rng.randrange(work.keys)
        for name in rng.sample(list(lanes), len(lanes)):
            batch = lanes[name].feed(start, work.updates)
            if number >= work.warm_up:
                times[name].append(batch)
        if number < EARLY:
            early = _used(server.info()) - _used(before)
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
    return QueryResult(
        work=work,
        times=times,
        loads=loads,
        redis_bytes=_used(after) - _used(before),
        redis_bytes_early=early,
        redis_cpu_s=_cpu(after) - _cpu(filled),
        redis_calls=int(after["total_commands_processed"])
        - int(filled["total_commands_processed"]),
        redis_net_bytes=_net(after) - _net(filled),
    )


def _used(info: dict[str, object]) -> int:
    return int(str(info["used_memory"]))


def _cpu(info: dict[str, object]) -> float:
    return float(str(info["used_cpu_user"])) + float(str(info["used_cpu_sys"]))


def _net(info: dict[str, object]) -> int:
    return int(str(info["total_net_input_bytes"])) + int(str(info["total_net_output_bytes"]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller workloads, under 5 minutes")
    add_write_option(parser)
    options = parser.parse_args()
    began = time.monotonic()
    works = (QUICK, QUICK_STORES) if options.quick else (FULL, FULL_STORES)
    with tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch:
        stores = []
        for number, store_work in enumerate(works[1]):
            with redis_state.EmbeddedRedis() as embedded:
                folder = Path(scratch) / f"stores-{number}"
                stores.append(store_level.measure(embedded.url, folder, store_work))
        queries = measure_queries(Path(scratch), works[0])
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    command = "make bench-quick" if options.quick else "make bench"
    report = write_report(
        queries, stores, command=command, machine=f"{machine}, {date.today().isoformat()}"
    )
    show(report, command, options.write)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def measure_queries(scratch: Path, works: Sequence[Workload]) -> list[QueryResult]:
    with redis_state.EmbeddedRedis() as embedded:
        server = redis.Redis.from_url(embedded.url)
        spark = session(embedded.url, scratch)
        try:
            return [
                measure(spark, server, scratch / str(number), work)
                for number, work in enumerate(works)
            ]
        finally:
            spark.stop()
            server.close()


if __name__ == "__main__":
    sys.exit(main())
