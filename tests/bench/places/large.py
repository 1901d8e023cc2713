"""`python -m tests.bench.places.large [--rows N]`: a state of 100 M rows in little memory.

`redis_state.bootstrap` writes the rows of a query of 4 partitions with `redisMemory=1g`, in a JVM
with 2 GiB of heap. Then batches change rows, most of them in two hundredths of the keys. Redis has
to stay below 1 GiB, and a sum over the whole state has to be right, before a figure is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.places.accesses import hot
from tests.bench.workloads import PARTITIONS
from tests.spark.streams import PREFIX
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer

ROWS, UPDATES, BATCHES = 100_000_000, 50_000, 20
REDIS_BYTES, HEAP_MB, LOCAL_MB = 1 << 30, 2048, 512
_HASH_MAX = 1_000_000
_MB = 1e6


@contextmanager
def _timed(took: dict[str, float], what: str) -> Iterator[None]:
    """Adds the seconds of a block."""
    began = time.monotonic()
    yield
    took[what] = time.monotonic() - began
    print(f"{what}: {took[what]:.1f} s", file=sys.stderr)


def main() -> int:
    """Runs the benchmark and prints its figures."""
    parser = argparse.ArgumentParser(prog="tests.bench.places.large", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the state")
    add_write_option(parser)
    options = parser.parse_args()
    command = "python -m tests.bench.places.large"
    if options.rows != ROWS:
        command += f" --rows {options.rows}"
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        RedisServer() as server,
    ):
        folder = Path(scratch)
        more = {
            "spark.driver.memory": f"{HEAP_MB}m",
            "spark.local.dir": str(folder / "spark"),
            f"{PREFIX}localMemory": f"{LOCAL_MB}m",
            f"{PREFIX}redisMemory": f"{REDIS_BYTES}b",
        }
        spark = session(server.url, folder, more)
        try:
            text = _measure(spark, server, folder, options.rows, command)
        finally:
            spark.stop()
    show(text, command, options.write)
    return 0


def _measure(
    spark: SparkSession, server: RedisServer, folder: Path, rows: int, command: str
) -> str:
    took: dict[str, float] = {}
    with MemorySampler(server.url, None) as sampler:
        source = folder / "in"
        source.mkdir()
        dice = np.random.default_rng(5)
        _feed(source, 0, np.arange(1))
        query = _start(spark, source, folder / "empty", "false")
        query.processAllAvailable()
        query.stop()
        (source / "0.parquet").unlink()
        hashed = sf.pmod(sf.xxhash64("id"), sf.lit(_HASH_MAX))
        first = spark.range(0, rows, 1, PARTITIONS * 8).select(
            sf.col("id").alias("k"), hashed.alias("sum"), sf.lit(1).alias("count")
        )
        with _timed(took, "bootstrap"):
            redis_state.bootstrap(spark, first, str(folder / "empty"), str(folder / "whole"))
        query = _start(spark, source, folder / "whole", "true")
        changed = 0
        with _timed(took, "batches"):
            for number in range(1, BATCHES + 1):
                changed += _feed(source, number, hot(dice, rows, UPDATES))
                query.processAllAvailable()
        batches = [
            float(one["durationMs"]["triggerExecution"])
            for one in query.recentProgress
            if one["numInputRows"]
        ]
        query.stop()
        with _timed(took, "check"):
            state = spark.read.format("statestore").load(str(folder / "whole"))
            found = state.select(sf.count("*"), sf.sum("value.sum")).first()
        before = first.select(sf.sum("sum")).first()
        assert before is not None
        if found is None or tuple(found) != (rows, before[0] + changed):
            raise SystemExit(f"the state is wrong: {found}, so no figure is printed")
    if sampler.peak > REDIS_BYTES:
        raise SystemExit(f"Redis had {sampler.peak:,} bytes")
    lines = [
        *_times(rows, batches, took),
        _files(rows, folder / "whole"),
        f"| memory of the Redis server at most | {sampler.peak / _MB:,.0f} MB "
        f"in {sampler.samples:,} samples |",
    ]
    return "\n".join([_head(command, rows, len(batches)), "", *lines, ""])


def _start(spark: SparkSession, source: Path, checkpoint: Path, which: str) -> StreamingQuery:
    rows: DataFrame = spark.readStream.schema("k long, v long").parquet(str(source))
    return (
        rows.where(which)
        .groupBy("k")
        .agg(sf.sum("v").alias("sum"), sf.count("*").alias("count"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )


def _feed(source: Path, number: int, keys: np.ndarray) -> int:
    """Adds a file of rows with the value 1; returns the sum of the values."""
    staged = source.parent / "staged.parquet"
    pq.write_table(pa.table({"k": keys, "v": np.ones(len(keys), np.int64)}), staged)
    staged.rename(source / f"{number}.parquet")
    return len(keys)


def _head(command: str, rows: int, batches: int) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    return (
        f"`{command}` on {machine}, {date.today().isoformat()}: {rows:,} rows in {PARTITIONS} "
        f"partitions, `redisMemory` is {REDIS_BYTES >> 20:,} MiB, the heap of the only JVM "
        f"{HEAP_MB:,} MiB, `localMemory` {LOCAL_MB} MiB; {batches} batches of {UPDATES:,} "
        f"changes, 95 % of them in 2 % of the keys; the load of the machine was "
        f"{os.getloadavg()[0]:.1f}."
    )


def _times(rows: int, batches: Sequence[float], took: Mapping[str, float]) -> list[str]:
    bootstrap = took["bootstrap"]
    return [
        "| figure | found |",
        "|---|---|",
        f"| `bootstrap` of all rows | {bootstrap:,.0f} s, {rows / bootstrap:,.0f} rows a second |",
        f"| first batch | {batches[0] / 1000:.1f} s |",
        f"| later batches, median | {statistics.median(batches[1:]) / 1000:.2f} s |",
        f"| all rows by Spark's state reader | {took['check']:,.0f} s |",
    ]


def _files(rows: int, checkpoint: Path) -> str:
    found = sum(path.stat().st_size for path in checkpoint.rglob("*.seg"))
    return f"| files of the state | {found / _MB:,.0f} MB, {found / rows:.1f} bytes a row |"


if __name__ == "__main__":
    sys.exit(main())
