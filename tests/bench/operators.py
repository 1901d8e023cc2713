"""`python -m tests.bench.operators [--quick]`: whole batches of stateful operators.

Two queries, on our provider and on RocksDB's, run in one session and get the same files, batch by
batch in turns; who begins changes from batch to batch. Each batch reports a digest of what it gave
out, and the digests have to be equal. The timers of a million keys are measured without queries, by
the operator's own classes.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import redis_state
from tests.bench import timers
from tests.bench.__main__ import session
from tests.bench.map_partitions import tree_cpu_s
from tests.bench.operator_queries import SCHEMA, WORKS, OperatorWork
from tests.bench.page import add_write_option, show
from tests.bench.pairs import LANES, LIMIT, TINY_LIMIT, row
from tests.bench.workloads import CHANGELOG, PARTITIONS, PROVIDER, PROVIDERS, open_ms

BATCHES, BATCHES_QUICK = (3, 15), (1, 5)

TINY_WARM_UP = 240
"""Tiny batches until the JVM has compiled what they run; a query goes on for days."""

QUICK_SCALE = 0.25


@dataclass(frozen=True, slots=True)
class OperatorBatch:
    """One batch: the whole trigger, open and commit of a partition, both in ms; CPU; what came out.

    Attributes:
        cpu_s: Of all processes: driver, JVM, workers and server.
    """

    trigger_ms: float
    open_and_commit_ms: float
    cpu_s: float
    output: dict[str, Any]


class OperatorLane:
    """A query on one provider that gets a file for each of its inputs at a time."""

    def __init__(self, spark: SparkSession, folder: Path, work: OperatorWork, provider: str):
        self._inputs = [folder / f"in-{side}" for side in range(work.inputs)]
        for one in self._inputs:
            one.mkdir(parents=True)
        spark.conf.set(PROVIDER, PROVIDERS[provider])
        spark.conf.set(CHANGELOG, "true")
        frame = work.build([spark.readStream.schema(SCHEMA).parquet(str(i)) for i in self._inputs])
        rows = sf.xxhash64(*frame.columns).cast("decimal(38,0)")
        digest = frame.observe("out", sf.count("*").alias("rows"), sf.sum(rows).alias("sum"))
        self._query = (
            digest.writeStream.outputMode(work.mode)
            .format("noop")
            .option("checkpointLocation", str(folder / "check"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def feed(self, files: Sequence[Path]) -> OperatorBatch:
        cpu_s = tree_cpu_s()
        # While the query looks for input it holds this lock: it sees all files, or none.
        lock = self._query._jsq.streamingQuery().awaitProgressLock()
        lock.lock()
        try:
            for folder, file in zip(self._inputs, files, strict=True):
                os.link(file, folder / file.name)
        finally:
            lock.unlock()
        self._query.processAllAvailable()
        progress = next(p for p in reversed(self._query.recentProgress) if p["numInputRows"] > 0)
        operators = progress["stateOperators"]
        waited = sum(o["commitTimeMs"] + open_ms(o["customMetrics"]) for o in operators)
        return OperatorBatch(
            trigger_ms=float(progress["durationMs"]["triggerExecution"]),
            open_and_commit_ms=waited / PARTITIONS,
            cpu_s=tree_cpu_s() - cpu_s,
            output={"batch": progress["batchId"], **progress["observedMetrics"]["out"].asDict()},
        )

    def close(self) -> None:
        self._query.stop()


def quiet_workers(spark: SparkSession) -> None:
    """Spark's Python workers of `transformWithState` say what they do, at every batch."""
    java = spark._jvm.java  # type: ignore[union-attr]
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


def measure(
    spark: SparkSession, folder: Path, work: OperatorWork, *, warm_up: int, measured: int
) -> dict[str, list[OperatorBatch]]:
    """The measured batches of both lanes.

    Raises:
        SystemExit: The lanes disagree, or the query gave nothing out.
    """
    folder.mkdir()
    lanes = {name: OperatorLane(spark, folder / name, work, name) for name in LANES}
    batches: dict[str, list[OperatorBatch]] = {name: [] for name in lanes}
    for number in range(warm_up + measured):
        files = [folder / f"{number:05d}-{side}.parquet" for side in range(work.inputs)]
        for side, file in enumerate(files):
            pq.write_table(work.batch(number, side), file)
        for name in LANES if number % 2 else reversed(LANES):
            batches[name].append(lanes[name].feed(files))
        print(f"\r{work.name}: batch {number + 1}", end="", file=sys.stderr)
    print(file=sys.stderr)
    for lane in lanes.values():
        lane.close()
    ours, theirs = ([batch.output for batch in batches[name]] for name in LANES)
    if ours != theirs:
        raise SystemExit(f"{work.name}: the providers disagree: {ours} and {theirs}")
    if not any(output["rows"] for output in ours[warm_up:]):
        raise SystemExit(f"{work.name}: nothing was given out, so nothing was compared")
    shutil.rmtree(folder)
    return {name: all_[warm_up:] for name, all_ in batches.items()}


def report(
    found: Sequence[tuple[OperatorWork, dict[str, list[OperatorBatch]]]],
    lines: Sequence[str],
    *,
    measured: int,
    command: str,
) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    table = [
        f"`{command}` on {machine}, {date.today().isoformat()}: {PARTITIONS} partitions, medians "
        f"of {measured} pairs of batches in turns; the load of the machine was "
        f"{os.getloadavg()[0]:.1f}.",
        "",
        "| figure | Redis | RocksDB + change log | Redis / RocksDB | aim |",
        "|---|---|---|---|---|",
    ]
    for work, batches in found:
        title = f"{work.name}, {work.rows * work.inputs:,} rows"
        ours, theirs = ([b.trigger_ms for b in batches[name]] for name in LANES)
        table.append(row(f"{title}: whole batch, ms", ours, theirs, LIMIT))
        ours, theirs = ([b.open_and_commit_ms for b in batches[name]] for name in LANES)
        limit = TINY_LIMIT if work.tiny else None
        table.append(row("… open + commit of a partition, ms", ours, theirs, limit))
        ours, theirs = ([b.cpu_s for b in batches[name]] for name in LANES)
        table.append(row("… CPU of all processes, s", ours, theirs, None))
    return "\n".join([*table, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.operators", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and batches")
    parser.add_argument(
        "--only", metavar="WORD", default="", help="only queries whose name holds this"
    )
    add_write_option(parser)
    options = parser.parse_args()
    began = time.monotonic()
    warm_up, measured = BATCHES_QUICK if options.quick else BATCHES
    tiny_warm_up = warm_up if options.quick else TINY_WARM_UP
    works = [work for work in WORKS if options.only in work.name]
    if options.quick:
        works = [work if work.tiny else work.scaled(QUICK_SCALE) for work in works]
    with tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch:
        folder = Path(scratch)
        # First, because it needs the test classes: without them it fails at once.
        lines = timers.measure(folder, quick=options.quick) if options.only in timers.NAME else []
        with redis_state.EmbeddedRedis() as server:
            spark = session(server.url, folder)
            quiet_workers(spark)
            found = []
            for number, work in enumerate(works):
                batches = measure(
                    spark,
                    folder / str(number),
                    work,
                    warm_up=tiny_warm_up if work.tiny else warm_up,
                    measured=measured,
                )
                found.append((work, batches))
            spark.stop()
    text = report(found, lines, measured=measured, command="python -m tests.bench.operators")
    show(text, "python -m tests.bench.operators", options.write)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
