"""`python -m tests.bench.live_state [--quick]`: `lookup` against a scan and a join; SQL by key.

The state is planted, and no query runs beside. Both ways take turns, give the same rows, and count
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
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.format.rows import Value
from redis_state.reader.rows.codec import codec_of
from redis_state.reader.rows.key_arrays import KeyArrays
from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.workloads import PARTITIONS
from tests.contract.planting import Planted

COMMAND = "python -m tests.bench.live_state"
ROUNDS = 3
ROWS = 100_000
AIM = 20
KINDS = ((1_000, "of 1,000 keys"), (100_000, "of 100,000 keys"))


def plant(url: str, keys: int) -> None:
    """A query `flights` with so many keys, as one snapshot in each partition."""
    with redis_state.connect(url) as reader:
        assert reader.queries() == []
    import redis

    with redis.Redis.from_url(url) as client:
        planted = Planted(client, partitions=PARTITIONS)
        planted.register()
        planted.commit(1, [])
        by_partition: list[dict[bytes, Value]] = [{} for _ in range(PARTITIONS)]
        carriers = [f"key-{number:08d}" for number in range(keys)]
        made = KeyArrays(codec_of(planted.family), [carriers])
        places = zip(made.partitions(PARTITIONS), made.stored(), strict=True)
        for number, (partition, key) in enumerate(places):
            value = planted.value({"count": number, "total": number / 2})
            by_partition[partition][key] = value
        for partition, rows in enumerate(by_partition):
            planted.snapshot(partition, 1, rows)


def took(work: Callable[[], DataFrame]) -> float:
    """Seconds from making a DataFrame to its last row, which goes nowhere."""
    start = time.perf_counter()
    work().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def against_a_scan(
    spark: SparkSession, url: str, keys: int, state_keys: int
) -> tuple[float, float]:
    """Medians of both ways to join rows of so many keys, and a check that both give the same."""
    step = state_keys // keys
    number = sf.format_string("key-%08d", (sf.col("id") % keys) * step)
    rows = spark.range(0, ROWS, 1, PARTITIONS).select("id", number.alias("carrier")).cache()
    rows.count()

    def looked_up() -> DataFrame:
        return redis_state.lookup(rows, query="flights", on="carrier", url=url)

    def scanned() -> DataFrame:
        state = spark.read.format("redis_state").option("url", url).load("flights")
        return rows.join(state, "carrier", "left").select("id", "carrier", "count", "total")

    digests = [
        frame().select(sf.sum(sf.hash("id", "carrier", "count", "total"))).collect()
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
        "select sum(count), sum(total) from flights",
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.live_state", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200,000 keys instead of 1,000,000")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of the state")
    add_write_option(parser)
    options = parser.parse_args()
    state_keys: int = 200_000 if options.quick else options.keys
    lines = ["| | by key | by a scan | ratio | aim |", "|---|---|---|---|---|"]
    with redis_state.EmbeddedRedis() as embedded, tempfile.TemporaryDirectory() as folder:
        plant(embedded.url, state_keys)
        key, table = by_sql(embedded.url)
        spark = session(embedded.url, Path(folder))
        try:
            for keys, name in KINDS:
                ours, theirs = against_a_scan(spark, embedded.url, keys, state_keys)
                verdict = "reached" if theirs / ours >= AIM else "**missed**"
                lines.append(
                    f"| `lookup` of {ROWS:,} rows {name} | {ours:.2f} s | {theirs:.2f} s "
                    f"| {theirs / ours:.1f} × | ≥ {AIM} × {verdict} |"
                )
        finally:
            spark.stop()
        lines.append(
            f"| SQL: one key; the sums of all | {key * 1000:.0f} ms | {table:.2f} s "
            f"| {table / key:.0f} × | |"
        )
    command = f"{COMMAND}{' --quick' if options.quick else ''}"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    head = (
        f"`{command}` on {machine}, "
        f"{date.today().isoformat()}: a state of {state_keys:,} keys in {PARTITIONS} partitions, "
        f"medians of {ROUNDS}; the load of the machine was {os.getloadavg()[0]:.1f}."
    )
    show("\n".join([head, "", *lines]), command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
