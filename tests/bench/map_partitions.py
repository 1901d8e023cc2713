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
STORE = "bench"

Mapped = Iterator[pa.RecordBatch]


def with_store() -> Callable[..., Mapped]:
    """Closures travel by value: workers cannot import this module."""

    def run(store: redis_state.BatchStore, batches: Iterator[pa.RecordBatch]) -> Mapped:
        get, put = store.get, store.put
        keys = total = 0
        for batch in batches:
            for key, value in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
                changed = int(get(key) or 0) + value
                put(key, b"%d" % changed)
                total += changed
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


@dataclass
class Side:
    """Seconds and results of one side, and its Redis."""

    url: str
    seconds: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def time(self, evaluate: Callable[[], DataFrame]) -> None:
        began = time.perf_counter()
        frame = evaluate().agg(f.sum("keys"), f.sum("total"))
        self.results.append(tuple(frame.collect()[0]))
        self.seconds.append(time.perf_counter() - began)

    def server(self) -> tuple[float, int]:
        """CPU seconds and bytes so far."""
        client = redis.Redis.from_url(self.url)
        info: dict[str, Any] = client.info()
        client.close()
        return float(info["used_cpu_user"] + info["used_cpu_sys"]), int(info["used_memory"])


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


def measure(spark: SparkSession, ours: Side, theirs: Side, *, rows: int, batches: int) -> None:
    def frame(batch: int) -> DataFrame:
        key = f.concat(f.lit("customer-"), f.lpad(f.col("id").cast("string"), 9, "0")).cast(
            "binary"
        )
        return spark.range(rows).select(key.alias("k"), (f.col("id") % 1000 + batch).alias("v"))

    def stateful(batch: int) -> DataFrame:
        return redis_state.map_partitions_with_state_store(
            frame(batch),
            with_store(),
            store=STORE,
            batch_id=batch,
            key="k",
            schema=SCHEMA,
            rows="arrow",
            codec=RAW,
            partitions=PARTITIONS,
            url=ours.url,
        )

    def plain(batch: int) -> DataFrame:
        spread = frame(batch).repartition(PARTITIONS, "k")
        return spread.mapInArrow(with_redis(theirs.url), SCHEMA)

    # What Spark compiles and its workers import once is no part of the comparison.
    frame(0).repartition(PARTITIONS, "k").mapInArrow(
        lambda parts: parts, "k binary, v long"
    ).count()
    for batch in range(batches):
        ours.time(lambda at=batch: stateful(at))
        theirs.time(lambda at=batch: plain(at))
        print(
            f"batch {batch}: {ours.seconds[-1]:.2f} s, {theirs.seconds[-1]:.2f} s", file=sys.stderr
        )
    if ours.results != theirs.results:
        raise SystemExit(f"the sides disagree: {ours.results} and {theirs.results}")


def report(ours: Side, theirs: Side, *, rows: int, command: str) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    first = ratio(theirs.seconds[:1], ours.seconds[:1])
    later = ratio(theirs.seconds[1:], ours.seconds[1:])
    cpu = [side.server()[0] for side in (ours, theirs)]
    size = [side.server()[1] for side in (ours, theirs)]
    lines = [
        f"`{command}` on {machine}, {date.today().isoformat()}: {rows:,} rows of as many keys, "
        f"{PARTITIONS} partitions, the whole Spark job; medians of interleaved batches.",
        "",
        "| figure | state store | redis-py | ratio |",
        "|---|---|---|---|",
        f"| batch of new keys, s | {ours.seconds[0]:.2f} | {theirs.seconds[0]:.2f} | {first} |",
        f"| batch of known keys, s | {_median(ours)} | {_median(theirs)} | {later} |",
        f"| server CPU of all batches, s | {cpu[0]:.2f} | {cpu[1]:.2f} | {cpu[1] / cpu[0]:.1f} |",
        f"| server memory at the end, MB | {size[0] / 1e6:.0f} | {size[1] / 1e6:.0f} | "
        f"{size[1] / size[0]:.1f} |",
        "",
        f"Target: at least {TARGET:g} times as fast. {_verdict([first, later])}.",
    ]
    return "\n".join(lines)


def _median(side: Side) -> str:
    later = sorted(side.seconds[1:])
    return f"{later[len(later) // 2]:.2f}"


def _verdict(ratios: list[Ratio | None]) -> str:
    least = min(one.point for one in ratios if one is not None)
    return f"{'Met' if least >= TARGET else 'Missed'}: the least ratio is {least:.1f}"


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
        ours, theirs = Side(one.url), Side(other.url)
        try:
            measure(spark, ours, theirs, rows=rows, batches=batches)
            text = report(ours, theirs, rows=rows, command=command)
        finally:
            spark.stop()
    print(text)
    if options.write:
        options.write.write_text(replace_section(options.write.read_text(), command, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
