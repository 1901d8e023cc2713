"""`python -m tests.bench.real_time [--quick]`: latency of rows in Spark's real-time mode.

A source of our own has rows that are due at a fixed rate, a query counts them by key in real-time
mode, and a sink notes how long after it was due each row came. Between two batches of this mode no
row moves: Spark ends the tasks, the stores commit, the next batch is planned, and the stores open.
Our provider and RocksDB's with change log run the same query in one session, in turns of some
batches; who begins is random. Both states have to be equal before any figure is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from tests.bench.map_partitions import tree_cpu_s
from tests.bench.page import add_write_option, show
from tests.bench.pairs import LANES
from tests.bench.ratio import Ratio
from tests.bench.workloads import CHANGELOG, PARTITIONS
from tests.spark.real_time import SHORTEST_BATCH
from tests.spark.streams import FORMAT, PREFIX
from tests.support.waiting import wait_until
from tools.jvm import ROOT

COMMAND = "python -m tests.bench.real_time"
BATCH_S = 5
AIM = 0.5
_CORES = PARTITIONS + 2  # all tasks of a batch run at once: the source's, and the next stage's
_CLASSES = ROOT / "jvm-adapter" / "spark-4.3" / "target" / "test-classes"
_PACKAGE = "org.apache.spark.sql.redisstate.bench"
_RESAMPLES = 1000
_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}

Latencies = Sequence[np.ndarray[Any, np.dtype[np.float64]]]
"""Milliseconds of the rows of each window of `BATCH_S`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Amount of work.

    Attributes:
        keys: Number of keys, all of which are there before the first turn.
        rate: Rows a second.
        turns: How often each provider runs.
        warm_up: Windows of a turn that are not measured, each as long as a batch.
        measured: Windows of a turn that are.
    """

    keys: int
    rate: int
    turns: int
    warm_up: int
    measured: int

    @property
    def rows(self) -> int:
        """Rows of a turn."""
        return (self.warm_up + self.measured) * BATCH_S * self.rate


FULL = Plan(keys=100_000, rate=1_000, turns=6, warm_up=3, measured=8)
QUICK = Plan(keys=100_000, rate=1_000, turns=2, warm_up=2, measured=3)


@dataclass(slots=True)
class Lane:
    """The query on one provider.

    Attributes:
        read: Rows of the source that ended batches have read.
        windows: Latencies of the measured windows of all turns.
        cpu_s: CPU seconds of all processes, of each turn.
    """

    spark: SparkSession
    folder: Path
    provider: str
    read: int = 0
    windows: list[np.ndarray[Any, np.dtype[np.float64]]] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def fill(self, plan: Plan) -> None:
        """Makes every key, without a measurement."""
        self._run(plan, rows=plan.keys, rate=0)

    def turn(self, plan: Plan) -> None:
        """Runs the query for the batches of a turn, and keeps the latencies behind its warm-up."""
        cpu_s = tree_cpu_s()
        self._run(plan, rows=plan.rows, rate=plan.rate)
        self.cpu_s.append(tree_cpu_s() - cpu_s)
        file = self.folder / "latencies"
        self._times.write(str(file))
        numbers, nanos = np.fromfile(file, dtype="<i8").reshape(-1, 2).T
        if len(np.unique(numbers)) != plan.rows:
            raise SystemExit(f"{self.provider}: the sink saw {len(numbers)} of {plan.rows} rows")
        window = numbers // (BATCH_S * plan.rate)
        self.windows += [
            nanos[window == one] / 1e6 for one in range(plan.warm_up, plan.warm_up + plan.measured)
        ]

    def state(self) -> tuple[int, ...]:
        """Digest of the whole state, by Spark's own reader."""
        frame = self.spark.read.format("statestore").load(str(self.folder / "check"))
        hashes = sf.xxhash64("key.*", "value.*").cast("decimal(38,0)")
        (row,) = frame.select(sf.count("*"), sf.sum(hashes)).collect()
        return tuple(map(int, row))

    @property
    def _times(self) -> Any:
        jvm: Any = self.spark._jvm
        return getattr(jvm, f"{_PACKAGE}.LatencyLane").of(self.provider)

    def _run(self, plan: Plan, *, rows: int, rate: int) -> None:
        until = self.read + rows
        self._times.reset(rate)
        query = self._start(plan, until)
        limit = time.monotonic() + 120 + (2 * rows / rate if rate else 0)
        while self.read < until:
            wait_until(lambda: self._read_by(query) > self.read, f"a batch of {self.provider}")
            self.read = self._read_by(query)
            if time.monotonic() > limit:
                raise SystemExit(f"{self.provider}: {until - self.read} rows are not read yet")
        query.stop()

    def _start(self, plan: Plan, until: int) -> StreamingQuery:
        conf = self.spark.conf
        # The query keeps these: Spark's own provider is RocksDB's where no other is named.
        conf.set(f"{PREFIX}realTime", str(self.provider == "redis").lower())
        conf.set(CHANGELOG, "true")
        source = self.spark.readStream.format(f"{_PACKAGE}.TimedRows")
        for name, value in {"lane": self.provider, "keys": plan.keys, "until": until}.items():
            source = source.option(name, str(value))
        # The newest row of a key is the one that has just come.
        counts = source.load().groupBy("k").agg(sf.count("*"), sf.sum("r"), sf.max("r"))
        writer: Any = counts.writeStream.outputMode("update")  # its stub lacks real time
        jvm: Any = self.spark._jvm
        writer._jwrite.foreach(getattr(jvm, f"{_PACKAGE}.LatencySink")(self.provider))
        query: StreamingQuery = (
            writer.option("checkpointLocation", str(self.folder / "check"))
            .trigger(realTime=f"{BATCH_S} seconds")
            .start()
        )
        return query

    def _read_by(self, query: StreamingQuery) -> int:
        if (error := query.exception()) is not None:
            raise error
        progress = query.lastProgress
        end = None if progress is None else progress["sources"][0]["endOffset"]
        return self.read if end is None else max(self.read, int(end))


def session(url: str, folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{_CORES}]")
        .appName("redis-state real-time bench")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.extraClassPath", str(_CLASSES))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "10s")
        .config("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10")
        .config(FORMAT, "2")
        .config(SHORTEST_BATCH, f"{BATCH_S}s")
    )
    spark = redis_state.configure(builder, url=url, real_time=True).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(spark: SparkSession, folder: Path, plan: Plan) -> dict[str, Lane]:
    """Runs both lanes in turns.

    Raises:
        SystemExit: They disagree.
    """
    lanes = {name: Lane(spark, folder / name, name) for name in LANES}
    for lane in lanes.values():
        lane.folder.mkdir()
        lane.fill(plan)
    rng = random.Random(1)
    for number in range(plan.turns):
        for name in rng.sample(LANES, len(LANES)):
            lanes[name].turn(plan)
        print(f"\rturn {number + 1} of {plan.turns}", end="", file=sys.stderr)
    print(file=sys.stderr)
    states = {name: lane.state() for name, lane in lanes.items()}
    if len(set(states.values())) != 1 or states["redis"][0] != plan.keys:
        raise SystemExit(f"the providers disagree, so no figure is printed: {states}")
    return lanes


def ratio(windows: Mapping[str, Latencies], share: float) -> Ratio:
    """Quantile of ours over RocksDB's, with the 90 % interval of a bootstrap over windows."""
    point = _quantile(windows["redis"], share) / _quantile(windows["rocksdb"], share)
    rng = np.random.default_rng(0)
    ratios = sorted(
        _quantile(_resampled(windows["redis"], rng), share)
        / _quantile(_resampled(windows["rocksdb"], rng), share)
        for _ in range(_RESAMPLES)
    )
    return Ratio(point, ratios[_RESAMPLES // 20], ratios[-(_RESAMPLES // 20) - 1])


def _quantile(windows: Latencies, share: float) -> float:
    return float(np.quantile(np.concatenate(windows), share))


def _resampled(windows: Latencies, rng: np.random.Generator) -> Latencies:
    return [windows[at] for at in rng.integers(0, len(windows), len(windows))]


def report(lanes: Mapping[str, Lane], plan: Plan, command: str) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    windows = {name: lane.windows for name, lane in lanes.items()}
    count = len(windows["redis"])
    lines = [
        f"`{command}` on {machine}, {date.today().isoformat()}: {plan.keys:,} keys in {PARTITIONS} "
        f"partitions, {plan.rate:,} rows a second, batches of {BATCH_S} s; {count * BATCH_S} s of "
        f"each provider in {plan.turns} turns; the load of the machine was "
        f"{os.getloadavg()[0]:.1f}.",
        "",
        "| from due to the sink, ms | Redis | RocksDB + change log | Redis / RocksDB | aim |",
        "|---|---|---|---|---|",
    ]
    for title, share in _SHARES.items():
        found = ratio(windows, share)
        aim = f"≤ {AIM:g} {'reached' if found.point <= AIM else '**missed**'}"
        lines.append(_line(title, windows, share, found, aim if title == "p99" else ""))
    longest = {name: [np.array([one.max()]) for one in all_] for name, all_ in windows.items()}
    found = ratio(longest, 0.5)
    lines.append(_line("longest wait of a window, median", longest, 0.5, found, ""))
    cpu = {name: float(np.median(lane.cpu_s)) for name, lane in lanes.items()}
    lines.append(
        f"| CPU of all processes, s a turn, median | {cpu['redis']:.1f} | {cpu['rocksdb']:.1f} "
        f"| {cpu['redis'] / cpu['rocksdb']:.3f} |  |"
    )
    return "\n".join(lines)


def _line(
    title: str, windows: Mapping[str, Latencies], share: float, found: Ratio, aim: str
) -> str:
    ours, theirs = (_quantile(windows[name], share) for name in LANES)
    return f"| {title} | {ours:,.1f} | {theirs:,.1f} | {found} | {aim} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.real_time", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns, of fewer batches")
    add_write_option(parser)
    options = parser.parse_args()
    began = time.monotonic()
    plan = QUICK if options.quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        redis_state.EmbeddedRedis() as server,
    ):
        spark = session(server.url, Path(scratch))
        try:
            lanes = measure(spark, Path(scratch), plan)
        finally:
            spark.stop()
    text = report(lanes, plan, f"{COMMAND} --quick" if options.quick else COMMAND)
    show(text, COMMAND, options.write)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
