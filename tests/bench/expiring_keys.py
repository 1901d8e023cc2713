"""`python -m tests.bench.expiring_keys [--keys N]`: does state that expires hold still?

`dropDuplicates` gets keys that never come again, and each of them once more in the next batch. A
time to live of 50 batches has to keep heap, Redis and rows where they are after the first ones. All
of Redis takes longest to hold still: dropped segments stay there for ten minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import cast

import pyspark
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from redis_state.format.entry import segments_in
from redis_state.protocol.retention import DROPPED_TTL_MS
from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.workloads import PARTITIONS, PROVIDER, PROVIDERS
from tests.spark.streams import PREFIX
from tests.support.redis_server import RedisServer

KEYS = 22_500_000
BATCH_KEYS = 50_000
BATCHES_TO_LIVE = 50
SECONDS = 3.0
VERSIONS = 10
SAMPLES = 15
STILL_MAX = 1.1
"""Largest ratio between the last third of the samples and the third before it."""

SETTLED_S = BATCHES_TO_LIVE * SECONDS + 90 + DROPPED_TTL_MS / 1000
"""Time until all of Redis holds still: rows expire, maintenance runs, dropped segments leave."""

_MIB = 1 << 20
_SLOW = 3
"""Factor of the time that the batches should take, after which the soak ends, plus a minute."""


@dataclass(frozen=True, slots=True)
class Sample:
    """State of the query after some batches.

    Attributes:
        heap_mib: Heap of the JVM of driver and executor, after a collection.
        rows: Rows in memory and Redis, expired ones included until they are removed.
        segments_mib: Segments in Redis that a version needs.
        redis_mib: All of Redis, with segments that were dropped in the last ten minutes.
    """

    seconds: float
    batches: int
    keys: int
    rows: int
    state_mib: float
    heap_mib: float
    segments_mib: float
    redis_mib: float


class Soak:
    """One query, sampled while it runs."""

    def __init__(self, spark: SparkSession, server: redis.Redis, folder: Path, keys: int) -> None:
        self._spark, self._server = spark, server
        self._batches = -(-keys // BATCH_KEYS)
        self._passed: list[int] = []
        self.samples: list[Sample] = []
        spark.conf.set(PROVIDER, PROVIDERS["redis"])
        spark.conf.set(PREFIX + "stateTtl", f"{BATCHES_TO_LIVE * SECONDS:.0f}s")
        spark.conf.set(PREFIX + "versionsToRetain", str(VERSIONS))
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_KEYS)
        fresh = rate.option("numPartitions", 2).load().select("value")
        twice = fresh.select(sf.explode(sf.array("value", sf.col("value") - BATCH_KEYS)).alias("k"))
        self._query = (
            twice.where("k >= 0")
            .dropDuplicates(["k"])
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(folder / "check"))
            .trigger(processingTime=f"{SECONDS} seconds")
            .start()
        )

    def _take(self, batch: DataFrame, _: int) -> None:
        self._passed.append(batch.count())

    def run(self) -> None:
        """Waits for all batches.

        Raises:
            SystemExit: The query passed a key twice, lost one, or is much too slow.
        """
        began = time.monotonic()
        every = max(1, self._batches // SAMPLES)
        while len(self._passed) < self._batches and self._query.isActive:
            time.sleep(SECONDS / 2)
            if len(self._passed) >= every * (len(self.samples) + 1):
                self.samples.append(self._sample(time.monotonic() - began))
                print(self.samples[-1], file=sys.stderr)
            if time.monotonic() - began > _SLOW * self._batches * SECONDS + 60:
                break
        self._query.stop()
        failure = self._query.exception()
        if failure is not None:
            raise SystemExit(f"the query failed: {failure}")
        if len(self._passed) < self._batches:
            done = len(self._passed)
            raise SystemExit(f"only {done} of {self._batches} batches were done in time")
        if set(self._passed) != {BATCH_KEYS}:
            raise SystemExit(f"batches passed {set(self._passed)} keys instead of {BATCH_KEYS:,}")

    def _sample(self, seconds: float) -> Sample:
        jvm = self._spark._jvm
        assert jvm is not None
        jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        progress = self._query.lastProgress
        assert progress is not None
        operator = progress["stateOperators"][0]
        return Sample(
            seconds,
            len(self._passed),
            sum(self._passed),
            int(operator["numRowsTotal"]),
            int(operator["memoryUsedBytes"]) / _MIB,
            (runtime.totalMemory() - runtime.freeMemory()) / _MIB,
            sum(self._segment_bytes()) / _MIB,
            int(self._server.info("memory")["used_memory"]) / _MIB,
        )

    def _segment_bytes(self) -> Iterator[int]:
        """Yields the bytes of the segments that a version needs."""
        for meta in self._server.scan_iter(match="*:m"):
            manifest = cast("Mapping[bytes, bytes]", self._server.hgetall(meta))
            yield sum(one.entry.bytes for one in segments_in(manifest))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.expiring_keys", description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS, metavar="N", help=f"instead of {KEYS:,}")
    add_write_option(parser)
    options = parser.parse_args()
    if options.keys < SAMPLES * BATCH_KEYS:
        parser.error(f"--keys: at least {SAMPLES * BATCH_KEYS:,}")
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        spark = session(server.url, Path(folder))
        try:
            soak = Soak(spark, server.client(), Path(folder), options.keys)
            soak.run()
        finally:
            spark.stop()
    words = "" if options.keys == KEYS else f" --keys {options.keys}"
    command = f"python -m tests.bench.expiring_keys{words}"
    show("\n".join([_head(command), "", *_table(soak.samples), ""]), command, options.write)
    return 0


def _head(command: str) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    return (
        f"`{command}` on {machine}, {date.today().isoformat()}: {BATCH_KEYS:,} new keys every "
        f"{SECONDS:g} s in {PARTITIONS} partitions, a time to live of {BATCHES_TO_LIVE} batches, "
        f"{VERSIONS} retained versions; the load of the machine was {os.getloadavg()[0]:.1f}."
    )


def _table(samples: Sequence[Sample]) -> list[str]:
    lines = [
        "| seconds | batches | keys that passed | rows of the state | state in memory, MiB "
        "| heap, MiB | segments in use, MiB | all of Redis, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.seconds:.0f} | {one.batches} | {one.keys:,} | {one.rows:,} | {one.state_mib:.0f} "
        f"| {one.heap_mib:.0f} | {one.segments_mib:.0f} | {one.redis_mib:.0f} |"
        for one in samples
    ]
    third = len(samples) // 3
    before, last = samples[-2 * third : -third], samples[-third:]
    found = [
        _still("rows", *([one.rows for one in part] for part in (before, last))),
        _still("heap", *([one.heap_mib for one in part] for part in (before, last))),
        _still("segments", *([one.segments_mib for one in part] for part in (before, last))),
        _of_redis(before, last),
    ]
    return [
        *lines,
        "",
        f"The last third of the samples against the one before: {', '.join(found)}.",
    ]


def _of_redis(before: Sequence[Sample], last: Sequence[Sample]) -> str:
    """Compares all of Redis once dropped segments leave as fast as they come."""
    settled = [one.redis_mib for one in before if one.seconds >= SETTLED_S]
    if not settled:
        return f"all of Redis can hold still after {SETTLED_S:.0f} s only"
    return _still("all of Redis", settled, [one.redis_mib for one in last])


def _still(name: str, before: Sequence[float], last: Sequence[float]) -> str:
    share = max(last) / max(before)
    return f"{name} × {share:.2f} {'holds still' if share <= STILL_MAX else '**grows**'}"


if __name__ == "__main__":
    sys.exit(main())
