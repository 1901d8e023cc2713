"""`python -m tests.bench.map_partitions [--quick]`: stateful batches against plain redis-py.

Both sides are the same Spark job: rows of one key meet in one partition, and a Python function adds
their values to a total for each key. One side keeps the totals, as text, by
`map_partitions_with_state_store`, the other in a Redis hash, `HGET` and `HSET` pipelined by 1,000.
The first batch makes all keys, the later ones change all of them. Results must be equal.
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
from tests.bench.page import replace_section
from tests.bench.ratio import Ratio, ratio

ROWS, ROWS_QUICK = 1_000_000, 200_000
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
            store.put_many(zip(names, [b"%d" % value for value in changed], strict=True))
            total += sum(changed)
            keys += batch.num_rows
        yield pa.RecordBatch.from_pydict({"keys": [keys], "total": [total]})

    return run


def with_redis(url: str) -> Callable[..., Mapped]:
    def run(batches: Iterator[pa.RecordBatch]) -> Mapped:
        client = redis.Redis.from_url(url)
        keys = total = 0
        for batch in batches:
            rows = list(zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True))
            for start in range(0, len(rows), AT_ONCE):
                part = rows[start : start + AT_ONCE]
                pipeline = client.pipeline(transaction=False)
                for key, _ in part:
                    pipeline.hget("totals", key)
                changed = [
                    int(before or 0) + value
                    for before, (_, value) in zip(pipeline.execute(), part, strict=True)
                ]
                for (key, _), value in zip(part, changed, strict=True):
                    pipeline.hset("totals", key, value)
                pipeline.execute()
                total += sum(changed)
            keys += batch.num_rows
        client.close()
        yield pa.RecordBatch.from_pydict({"keys": [keys], "total": [total]})

    return run


def with_nothing() -> Callable[[Iterator[pa.RecordBatch]], Mapped]:
    """What Spark and Arrow cost either side."""

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
    """What the batches of one side took: seconds, CPU seconds of all processes, results."""

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
        """What is left without the part that another one took."""
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


def measure(spark: SparkSession, urls: tuple[str, str], *, rows: int, batches: int) -> Sides:
    def frame(batch: int) -> DataFrame:
        key = f.concat(f.lit("customer-"), f.lpad(f.col("id").cast("string"), 9, "0"))
        value = f.col("id") % 1000 + batch
        return spark.range(rows).select(key.cast("binary").alias("k"), value.alias("v"))

    def store(batch: int, name: str = "bench") -> DataFrame:
        return redis_state.map_partitions_with_state_store(
            frame(batch),
            with_store(),
            store=name,
            batch_id=batch,
            key="k",
            schema=SCHEMA,
            rows="arrow",
            codec=RAW,
            partitions=PARTITIONS,
            url=urls[0],
        )

    def spread(batch: int, run: Callable[..., Mapped]) -> DataFrame:
        return frame(batch).repartition(PARTITIONS, "k").mapInArrow(run, SCHEMA)

    # What Spark compiles and its workers import once is no part of the comparison.
    store(0, "warm-up").filter("keys < 0").collect()
    spread(0, with_nothing()).collect()
    sides = Sides()
    for batch in range(batches):
        sides.store.time(lambda at=batch: store(at))
        sides.plain.time(lambda at=batch: spread(at, with_redis(urls[1])))
        sides.spark.time(lambda at=batch: spread(at, with_nothing()))
        times = [side.seconds[-1] for side in (sides.store, sides.plain, sides.spark)]
        print(f"batch {batch}: {times} s", file=sys.stderr)
    if sides.store.results != sides.plain.results:
        raise SystemExit(f"they disagree: {sides.store.results} and {sides.plain.results}")
    return sides


def report(sides: Sides, *, rows: int, command: str) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    ours, theirs, spark = sides.store, sides.plain, sides.spark
    alone = ours.above(spark), theirs.above(spark)
    first, later = slice(0, 1), slice(1, None)
    whole = [_ratio(theirs.seconds, ours.seconds, part) for part in (first, later)]
    lines = [
        f"`{command}` on {machine}, {date.today().isoformat()}: {rows:,} rows of as many keys, "
        f"{PARTITIONS} partitions; medians of interleaved batches. CPU is that of all processes.",
        "",
        "| figure | state store | redis-py | Spark alone | redis-py / state store |",
        "|---|---|---|---|---|",
    ]
    for title, part in (("new keys", first), ("known keys", later)):
        for unit, series in (("s", "seconds"), ("CPU s", "cpu_s")):
            mine, other, third = (getattr(side, series) for side in (ours, theirs, spark))
            without = [getattr(side, series) for side in alone]
            cells = [f"{statistics.median(one[part]):.2f}" for one in (mine, other, third)]
            compared = _ratio(other, mine, part)
            lines.append(f"| batch of {title}, {unit} | {' | '.join(cells)} | {compared} |")
            cells = [f"{statistics.median(one[part]):.2f}" for one in without]
            compared = _ratio(without[1], without[0], part)
            lines.append(f"| … without Spark's part | {' | '.join(cells)} | – | {compared} |")
    least = min(one.point for one in whole if one is not None)
    met = "Met" if least >= TARGET else "Missed"
    lines += ["", f"Target: the whole job {TARGET:g} times as fast. {met}: {least:.1f} times."]
    return "\n".join(lines)


def _ratio(theirs: list[float], ours: list[float], part: slice) -> Ratio | None:
    return ratio(theirs[part], ours[part])


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.map_partitions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{ROWS_QUICK:,} rows")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="replace the newest result on this page"
    )
    options = parser.parse_args()
    rows, batches = (ROWS_QUICK, BATCHES_QUICK) if options.quick else (ROWS, BATCHES)
    command = f"python -m tests.bench.map_partitions{' --quick' if options.quick else ''}"
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        redis_state.EmbeddedRedis() as one,
        redis_state.EmbeddedRedis() as other,
    ):
        spark = session(Path(scratch))
        try:
            sides = measure(spark, (one.url, other.url), rows=rows, batches=batches)
            text = report(sides, rows=rows, command=command)
        finally:
            spark.stop()
    print(text)
    if options.write:
        options.write.write_text(replace_section(options.write.read_text(), command, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
