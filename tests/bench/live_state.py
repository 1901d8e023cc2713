"""`python -m tests.bench.live_state [--quick]`: `lookup` against a scan and a join; SQL by key.

The state is that of a query that has ended. Both ways take turns, give the same rows, and count
what they give out without handing it over.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.workloads import PARTITIONS

COMMAND = "python -m tests.bench.live_state"
ROUNDS = 3
ROWS = 100_000
AIM = 20
BATCHES, SNAPSHOT_WAIT_S = 5, 300
KEY = "key-%08d"
STATES = (10_000_000, 30_000_000)


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows that are joined.

    Attributes:
        keys: How many different ones they have.
        together: Whether a look-up begins with a shuffle, after which each task has the keys of one
            partition of the state.
    """

    keys: int
    together: bool = False

    def __str__(self) -> str:
        after = ", `rows.repartition(n, key)` first" if self.together else ""
        return f"`lookup` of {ROWS:,} rows of {self.keys:,} keys{after}"


KINDS = (Kind(1_000), Kind(10_000), Kind(100_000), Kind(100_000, together=True))
KINDS_OF_LARGER = KINDS[-2:]
"""Of the first state all are measured."""


def fill(spark: SparkSession, url: str, folder: Path, keys: int) -> None:
    """Runs a query `flights` over so many keys, one row each, until it has a snapshot."""
    number = sf.col("id")
    columns = sf.format_string(KEY, number).alias("carrier"), number.alias("miles")
    source = str(folder / "in")

    def feed(rows: int) -> None:
        some = spark.range(0, rows, 1, PARTITIONS).select(*columns)
        some.write.mode("append").parquet(source)

    feed(keys)
    flights = spark.readStream.schema("carrier string, miles long").parquet(source)
    totals = flights.groupBy("carrier").agg(sf.count("*"), sf.sum("miles"))
    query = (
        totals.writeStream.queryName("flights")
        .outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "check"))
        .start()
    )
    query.processAllAvailable()
    # The first batch leaves many small blocks, which a snapshot puts together after some more.
    for _ in range(BATCHES):
        feed(keys // 1000)
        query.processAllAvailable()
    with redis_state.connect(url) as reader:
        for _ in range(SNAPSHOT_WAIT_S):
            (status,) = reader.status()
            if all(one.snapshot for store in status.stores for one in store.partitions):
                break
            time.sleep(1)
        else:
            raise SystemExit("the query wrote no snapshot")
    query.stop()


def took(work: Callable[[], DataFrame]) -> float:
    """Seconds from making a DataFrame to its last row, which goes nowhere."""
    start = time.perf_counter()
    work().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def against_a_scan(
    spark: SparkSession, url: str, kind: Kind, state_keys: int
) -> tuple[float, float]:
    """Medians of both ways to join such rows, and a check that both give the same."""
    keys = kind.keys
    step = state_keys // keys
    number = sf.format_string(KEY, (sf.col("id") % keys) * step)
    rows = spark.range(0, ROWS, 1, PARTITIONS).select("id", number.alias("carrier")).cache()
    rows.count()

    def looked_up() -> DataFrame:
        own = rows.repartition(PARTITIONS, "carrier") if kind.together else rows
        return redis_state.lookup(own, query="flights", on="carrier", url=url)

    def scanned() -> DataFrame:
        state = spark.read.format("redis_state").option("url", url).load("flights")
        return rows.join(state, "carrier", "left").select("id", "carrier", "count", "sum")

    digests = [
        frame().select(sf.sum(sf.hash("id", "carrier", "count", "sum"))).collect()
        for frame in (looked_up, scanned)
    ]
    assert digests[0] == digests[1]
    times = [(took(looked_up), took(scanned)) for _ in range(ROUNDS)]
    rows.unpersist()
    ours, theirs = zip(*times, strict=True)
    return statistics.median(ours), statistics.median(theirs)


def by_sql(url: str) -> tuple[float, float]:
    """Medians of one key and of a whole table, by SQL."""
    statements = (
        "select count from flights where carrier = 'key-00000007'",
        'select sum(count), sum("sum") from flights',
    )
    found = []
    with redis_state.connect(url) as reader:
        for statement in statements:
            times = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                reader.sql(statement)
                times.append(time.perf_counter() - start)
            found.append(statistics.median(times))
    return found[0], found[1]


def measure(state_keys: int, kinds: Sequence[Kind]) -> Iterator[str]:
    """Rows of the table for a state of so many keys."""
    with redis_state.EmbeddedRedis() as embedded, tempfile.TemporaryDirectory() as folder:
        spark = session(embedded.url, Path(folder))
        try:
            fill(spark, embedded.url, Path(folder), state_keys)
            key, table = by_sql(embedded.url)
            for kind in kinds:
                ours, theirs = against_a_scan(spark, embedded.url, kind, state_keys)
                verdict = "reached" if theirs / ours >= AIM else "**missed**"
                yield (
                    f"| {state_keys:,} | {kind} | {ours:.2f} s | {theirs:.2f} s "
                    f"| {theirs / ours:.1f} × | ≥ {AIM} × {verdict} |"
                )
        finally:
            spark.stop()
        yield (
            f"| {state_keys:,} | SQL: one key; the sums of all | {key * 1000:.0f} ms "
            f"| {table:.2f} s | {table / key:.0f} × | |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.live_state", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small state")
    parser.add_argument("--keys", type=int, nargs="+", default=STATES, help="of each state")
    add_write_option(parser)
    options = parser.parse_args()
    lines = [
        "| keys of the state | | by key | by a scan | ratio | aim |",
        "|---|---|---|---|---|---|",
    ]
    for at, state_keys in enumerate([200_000] if options.quick else options.keys):
        lines += measure(state_keys, KINDS if at == 0 else KINDS_OF_LARGER)
    command = f"{COMMAND}{' --quick' if options.quick else ''}"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    head = (
        f"`{command}` on {machine}, {date.today().isoformat()}: states in {PARTITIONS} partitions, "
        f"medians of {ROUNDS}; the load of the machine was {os.getloadavg()[0]:.1f}."
    )
    show("\n".join([head, "", *lines]), command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
