"""`python -m tests.bench.map_partitions [--quick]`: stateful batches against plain redis-py.

Both sides are the same Spark job: rows of one key meet in one partition, and a Python function adds
their values to a total for each key. One side keeps the totals, as text, by
`map_partitions_with_state_store`, an Arrow batch by `get_many` and `put_many`; the other in a Redis
hash, `HGET` and `HSET` pipelined by 1,000.
The first batch of a store makes all keys, the later ones change all of them. The sides take turns,
and who begins changes from batch to batch. Results must be equal.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import redis_state
from redis_state.codec import RAW
from tests.bench.page import add_write_option, show
from tests.bench.ratio import Ratio, ratio

ROWS, ROWS_QUICK = 1_000_000, 200_000
STORES, STORES_QUICK = 3, 1
BATCHES, BATCHES_QUICK = 6, 3
PARTITIONS = 4
AT_ONCE = 1000
TARGET = 5.0
SCHEMA = "keys long, total long"

Mapped = Iterator[pa.RecordBatch]


def with_store() -> Callable[..., Mapped]:
    """Closures travel by value: workers cannot import this module."""

    def run(store: redis_state.BatchStore, batches: Iterator[pa.RecordBatch]) -> Mapped:
        keys = total = 0
        for batch in batches:
            names, values = batch["k"].to_pylist(), batch["v"].to_pylist()
            changed = [
                int(before or 0) + value
                for before, value in zip(store.get_many(names), values, strict=True)
            ]
            store.put_many(names, [b"%d" % value for value in changed])
            total += sum(changed)
            keys += batch.num_rows
        yield pa.RecordBatch.from_pydict({"keys": [keys], "total": [total]})

    return run


def with_redis(url: str, name: str) -> Callable[..., Mapped]:
    def run(batches: Iterator[pa.RecordBatch]) -> Mapped:
        client = redis.Redis.from_url(url)
        keys = total = 0
        for batch in batches:
            rows = list(zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True))
            for start in range(0, len(rows), AT_ONCE):
                part = rows[start : start + AT_ONCE]
                pipeline = client.pipeline(transaction=False)
                for key, _ in part:
                    pipeline.hget(name, key)
                changed = [
                    int(before or 0) + value
                    for before, (_, value) in zip(pipeline.execute(), part, strict=True)
                ]
                for (key, _), value in zip(part, changed, strict=True):
                    pipeline.hset(name, key, value)
                pipeline.execute()
                total += sum(changed)
            keys += batch.num_rows
        client.close()
        yield pa.RecordBatch.from_pydict({"keys": [keys], "total": [total]})

    return run


def with_nothing() -> Callable[[Iterator[pa.RecordBatch]], Mapped]:
    """Measures the cost of Spark and Arrow, without any state."""

    def run(batches: Iterator[pa.RecordBatch]) -> Mapped:
        keys = total = 0
        for batch in batches:
            for _, value in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
                total += value
            keys += batch.num_rows
        yield pa.RecordBatch.from_pydict({"keys": [keys], "total": [total]})

    return run


@dataclass
class Side:
    """Measurements of one side's batches: seconds, CPU seconds of all processes, results."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def time(self, evaluate: Callable[[], DataFrame]) -> None:
        began, cpu_s = time.perf_counter(), tree_cpu_s()
        frame = evaluate().agg(f.sum("keys"), f.sum("total"))
        self.results.append(tuple(frame.collect()[0]))
        self.seconds.append(time.perf_counter() - began)
        self.cpu_s.append(tree_cpu_s() - cpu_s)

    def above(self, other: Side) -> Side:
        """Subtracts the measurements of another side."""
        return Side(
            [max(0.0, a - b) for a, b in zip(self.seconds, other.seconds, strict=True)],
            [max(0.0, a - b) for a, b in zip(self.cpu_s, other.cpu_s, strict=True)],
        )


def tree_cpu_s() -> float:
    """CPU of this process and all below it: driver, JVM, workers and servers."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents.setdefault(int(words[1]), []).append(pid)
        ticks[pid] = sum(map(int, words[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += parents.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state bench")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@dataclass
class Sides:
    """The two that are compared, and Spark alone."""

    store: Side = field(default_factory=Side)
    plain: Side = field(default_factory=Side)
    spark: Side = field(default_factory=Side)


@dataclass
class Measured:
    """The first batches of several stores, and the later ones of the last store."""

    new: Sides = field(default_factory=Sides)
    known: Sides = field(default_factory=Sides)


class Bench:
    """Runs batches of both sides, on a server each."""

    def __init__(self, spark: SparkSession, urls: tuple[str, str], rows: int) -> None:
        self._spark = spark
        self._urls = urls
        self._rows = rows
        self._turns = 0

    def measure(self, stores: int, batches: int) -> Measured:
        # What Spark compiles and its workers import once is no part of the comparison.
        for name in ("one", "other"):
            self._store(0, f"warm-up {name}").collect()
            self._spread(0, with_nothing()).collect()
        found = Measured()
        for number in range(stores):
            if number:
                self._forget(f"bench {number - 1}")
            self._batch(found.new, 0, f"bench {number}")
        for batch in range(1, batches):
            self._batch(found.known, batch, f"bench {stores - 1}")
        return found

    def _batch(self, sides: Sides, batch: int, name: str) -> None:
        turn = [
            (sides.store, lambda: self._store(batch, name)),
            (sides.plain, lambda: self._spread(batch, with_redis(self._urls[1], name))),
            (sides.spark, lambda: self._spread(batch, with_nothing())),
        ]
        self._turns += 1
        for side, evaluate in turn if self._turns % 2 else reversed(turn):
            side.time(evaluate)
        times = [round(side.seconds[-1], 2) for side, _ in turn]
        print(f"{name}, batch {batch}: {times} s", file=sys.stderr)
        if sides.store.results != sides.plain.results:
            raise SystemExit(f"they disagree: {sides.store.results} and {sides.plain.results}")

    def _frame(self, batch: int) -> DataFrame:
        key = f.concat(f.lit("customer-"), f.lpad(f.col("id").cast("string"), 9, "0"))
        value = f.col("id") % 1000 + batch
        return self._spark.range(self._rows).select(key.cast("binary").alias("k"), value.alias("v"))

    def _store(self, batch: int, name: str) -> DataFrame:
        return redis_state.map_partitions_with_state_store(
            self._frame(batch),
            with_store(),
            store=name,
            batch_id=batch,
            key="k",
            schema=SCHEMA,
            rows="arrow",
            codec=RAW,
            partitions=PARTITIONS,
            url=self._urls[0],
        )

    def _spread(self, batch: int, run: Callable[..., Mapped]) -> DataFrame:
        return self._frame(batch).repartition(PARTITIONS, "k").mapInArrow(run, SCHEMA)

    def _forget(self, name: str) -> None:
        """The hash of a store that is done with; the other side keeps what it has."""
        with redis.Redis.from_url(self._urls[1]) as client:
            client.unlink(name)


def report(found: Measured, *, rows: int, command: str) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    lines = [
        f"`{command}` on {machine}, {date.today().isoformat()}: {rows:,} rows of as many keys, "
        f"{PARTITIONS} partitions; medians of {len(found.new.store.seconds)} batches of new and "
        f"{len(found.known.store.seconds)} of known keys, sides in turns. CPU is that of all "
        f"processes; the load of the machine was {os.getloadavg()[0]:.1f}.",
        "",
        "| figure | state store | redis-py | Spark alone | redis-py / state store |",
        "|---|---|---|---|---|",
    ]
    whole: list[Ratio] = []
    for title, sides in (("new keys", found.new), ("known keys", found.known)):
        alone = sides.store.above(sides.spark), sides.plain.above(sides.spark)
        for unit, series in (("s", "seconds"), ("CPU s", "cpu_s")):
            each = [getattr(side, series) for side in (sides.store, sides.plain, sides.spark)]
            compared = ratio(each[1], each[0])
            lines.append(f"| batch of {title}, {unit} | {_medians(each)} | {compared} |")
            without = [getattr(side, series) for side in alone]
            lines.append(
                f"| … without Spark's part | {_medians(without)} | – | {ratio(*without[::-1])} |"
            )
            if unit == "s" and compared is not None:
                whole.append(compared)
    least = min(one.point for one in whole)
    met = "Met" if least >= TARGET else "Missed"
    lines += ["", f"Target: the whole job {TARGET:g} times as fast. {met}: {least:.1f} times."]
    return "\n".join(lines)


def _medians(series: list[list[float]]) -> str:
    return " | ".join(f"{statistics.median(one):.2f}" for one in series)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.map_partitions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{ROWS_QUICK:,} rows")
    add_write_option(parser)
    options = parser.parse_args()
    rows, stores, batches = (
        (ROWS_QUICK, STORES_QUICK, BATCHES_QUICK) if options.quick else (ROWS, STORES, BATCHES)
    )
    command = f"python -m tests.bench.map_partitions{' --quick' if options.quick else ''}"
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        redis_state.EmbeddedRedis() as one,
        redis_state.EmbeddedRedis() as other,
    ):
        spark = session(Path(scratch))
        try:
            found = Bench(spark, (one.url, other.url), rows).measure(stores, batches)
            text = report(found, rows=rows, command=command)
        finally:
            spark.stop()
    show(text, command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
