"""`python -m tests.faults.soak`: a query whose Redis is killed every minute; what grows?"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.protocol.retention import DROPPED_TTL_MS
from tests.bench.page import replace_section
from tests.faults.processes import DRIVER_JVM, descendants, named
from tests.faults.rig import UNREACHABLE
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import application

COMMAND = "python -m tests.faults.soak"
SAMPLE_S = 15.0
BOUNCE_S = 60.0
PACE = "3 seconds"
WARM_UP = 1 / 3  # of the time, in which caches fill and code is compiled
WARM_UP_MIN_S = DROPPED_TTL_MS / 1000 + 60  # keys that were dropped stay for so long
GROWTH_MAX = 0.05  # of the median, from the first to the last sample that counts
Z_MAX = 2.58  # a rise by chance alone is rarer than one in a hundred beyond it
SAMPLES_MIN = 6  # fewer cannot reach that z, even if each is above the one before
_KEYS = 100
_ROWS = 400  # of a batch
_MIB = 1 << 20
_MINUTES_MIN = 20
_MINUTES_MAX = 24 * 60


@dataclass(frozen=True)
class Verdict:
    """Trend of a series.

    Attributes:
        growth: From the first sample to the last by the median of all slopes, in parts of the
            median value.
        z: Of Mann and Kendall's test: how far the order of the samples is from chance.
    """

    growth: float
    z: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= GROWTH_MAX or self.z <= Z_MAX

    def __str__(self) -> str:
        return "flat" if self.is_flat else "grows"


def slope(values: Sequence[float]) -> float:
    """Growth from a sample to the next by Theil and Sen: the median of the slopes of all pairs."""
    pairs = combinations(range(len(values)), 2)
    return statistics.median((values[b] - values[a]) / (b - a) for a, b in pairs)


def judge(values: Sequence[float]) -> Verdict:
    """Theil and Sen's slope and Mann and Kendall's test: single outliers do not move them."""
    count = len(values)
    pairs = combinations(values, 2)
    rises = sum((later > earlier) - (later < earlier) for earlier, later in pairs)
    ties = (values.count(value) for value in set(values))
    variance = count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)
    z = (rises - (rises > 0) + (rises < 0)) / math.sqrt(variance / 18) if variance else 0.0
    return Verdict(slope(values) * (count - 1) / (statistics.median(values) or 1), z)


def trends(samples: Sequence[Mapping[str, float]]) -> tuple[list[str], bool]:
    """The rows of a table with the trend of each figure, and whether none of them grows."""
    rows = [
        "| what | first | median | last | growth | z | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    all_flat = True
    for name in samples[0] if len(samples) > 1 else ():
        values = [one[name] for one in samples]
        verdict = judge(values)
        all_flat = all_flat and verdict.is_flat
        shown = verdict if len(samples) >= SAMPLES_MIN else "too few"
        rows.append(
            f"| {name} | {values[0]:.0f} | {statistics.median(values):.0f} | {values[-1]:.0f} "
            f"| {verdict.growth:+.1%} | {verdict.z:+.1f} | {shown} |"
        )
    return rows, all_flat


@dataclass
class Soak:
    """Measurements so far."""

    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    bounces: int = 0
    batches: int = 0
    rows: int = 0
    wrong: int = 0
    restarts: int = 0
    failure: str = ""

    def keep(self, batch: DataFrame, _batch_id: int) -> None:
        """The values of a key are as far from each other as there are keys, from the key on."""
        for key, count, newest in batch.collect():
            self.rows += 1
            self.wrong += count != (newest - key) // _KEYS + 1
        self.batches += 1


def session(folder: Path, url: str) -> SparkSession:
    settings = {
        # The heap is there from the start, so that the process grows by what leaks beside it.
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch",
        # What Spark keeps for its UI, also without one, would take hours to reach its bounds.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "100",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    }
    builder = application("soak", folder, settings, master="local[2,1000]")
    return redis_state.configure(
        builder, url=url, deadline="10s", versions_to_retain=10
    ).getOrCreate()


def query(spark: SparkSession, folder: Path, soak: Soak, ended: threading.Event) -> None:
    """Runs until it is told to end; starts again after an error of a server that is away."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).load()
    keyed = numbers.groupBy((sf.col("value") % _KEYS).alias("k"))
    counted = keyed.agg(sf.count("*"), sf.max("value"))
    writer = counted.writeStream.outputMode("update").foreachBatch(soak.keep)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    # Keys that were dropped stay for a time: their number follows the pace of the batches.
    writer = writer.trigger(processingTime=PACE)
    while not ended.is_set():
        try:
            started = writer.start()
            while not ended.is_set() and not started.awaitTermination(1):
                pass
            started.stop()
        except StreamingQueryException as error:
            if not any(kind in str(error) for kind in UNREACHABLE):
                soak.failure = str(error)
                return
            soak.restarts += 1


def sample(spark: SparkSession, server: RedisServer) -> dict[str, float]:
    java = spark._jvm
    assert java is not None
    runtime = java.java.lang.Runtime.getRuntime()
    java.java.lang.System.gc()
    (jvm,) = named(descendants(os.getpid()), DRIVER_JVM)
    status = Path(f"/proc/{jvm}/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    with server.client() as client:
        keys = client.info("keyspace").get("db0", {"keys": 0, "expires": 0})
        return {
            "JVM, resident MiB": resident / 1024,
            "JVM, MiB in use after a collection": (runtime.totalMemory() - runtime.freeMemory())
            / _MIB,
            "keys": float(keys["keys"]),
            "keys that do not expire": float(keys["keys"] - keys["expires"]),
            "connections": client.info("clients")["connected_clients"] - 1.0,
        }


def run(minutes: float, folder: Path) -> Soak:
    soak = Soak()
    ended = threading.Event()
    data = folder / "redis"
    data.mkdir()
    with RedisServer(folder=data, options={"appendfsync": "always"}) as server:
        spark = session(folder, server.url)
        spark.sparkContext.setLogLevel("OFF")
        thread = threading.Thread(target=query, args=(spark, folder, soak, ended))
        thread.start()
        try:
            begun = time.monotonic()
            end = begun + minutes * 60
            bounce = begun + BOUNCE_S
            while time.monotonic() < end and not soak.failure:
                ended.wait(SAMPLE_S)
                found = sample(spark, server)
                soak.samples.append((time.monotonic() - begun, found))
                if time.monotonic() >= bounce:
                    server.kill()
                    server.restart()
                    soak.bounces += 1
                    bounce += BOUNCE_S
                latest = {name: round(value) for name, value in found.items()}
                print(
                    f"{time.monotonic() - begun:5.0f} s, {soak.batches} batches: {latest}",
                    flush=True,
                )
        finally:
            ended.set()
            thread.join()
            spark.stop()
    return soak


def table(soak: Soak, minutes: float) -> tuple[str, bool]:
    """The result, as it stands on a page, and whether everything is as it has to be."""
    today = datetime.now(timezone.utc).date()
    warm_s = max(WARM_UP_MIN_S, minutes * 60 * WARM_UP)
    counted = [found for seconds, found in soak.samples if seconds > warm_s]
    good = not soak.wrong and not soak.failure and soak.batches > 0
    lines = [
        f"{today}: {minutes:.0f} minutes, Redis killed {soak.bounces} times; {soak.batches:,} "
        f"batches, {soak.rows:,} rows compared, {soak.wrong} wrong; the query was started again "
        f"{soak.restarts} times; {len(counted)} samples, from minute {warm_s / 60:.0f} on.",
        "",
    ]
    rows, flat = trends(counted)
    return "\n".join([*lines, *rows]), good and flat


def main(words: list[str] | None = None) -> int:
    """Soak for as long as is asked; 0 if no row was wrong and everything is flat."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--write", metavar="PAGE", help="put the table on this page")
    asked = parser.parse_args(words)
    if not _MINUTES_MIN <= asked.minutes <= _MINUTES_MAX:
        parser.error(f"--minutes is {_MINUTES_MIN} to {_MINUTES_MAX}")
    folder = Path(tempfile.mkdtemp(prefix="rs-soak-"))
    try:
        soak = run(asked.minutes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text, good = table(soak, asked.minutes)
    print(text)
    if soak.failure:
        print(f"FAILED {soak.failure}", file=sys.stderr)
    if asked.write:
        page = Path(asked.write)
        page.write_text(replace_section(page.read_text(), COMMAND, text))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
