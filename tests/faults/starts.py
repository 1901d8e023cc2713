"""`python -m tests.faults.starts`: what grows when one application starts a query again and again.

Each provider has an application of its own, which starts the same queries with `foreachBatch`, each
of which ends by itself. After every tenth start the memory, threads and open files of the JVM and
of the Python process are counted, after a collection. What grows with Spark's own provider is
Spark's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from tests.bench.page import add_write_option, show
from tests.faults.processes import DRIVER_JVM, descendants, named
from tests.faults.soak import WARM_UP, slope
from tests.faults.usage import heap_mib, process_figures
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import application

COMMAND = "python -m tests.faults.starts"
STARTS = 90
STEP = 10
PROVIDERS = ("HDFSBacked", "Redis")
_LIMIT_S = 1800
_BATCH_S = 120
_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
}

Samples = Sequence[Mapping[str, float]]


def session(folder: Path, url: str) -> SparkSession:
    """The session of one application; without an address, with Spark's own provider."""
    builder = application("starts", folder, _SETTINGS, master="local[2]")
    if url:
        builder = redis_state.configure(builder, url=url, versions_to_retain=2)
    return builder.getOrCreate()


def start(spark: SparkSession, folder: Path, number: int) -> None:
    """Starts a query with a state of its own, and stops it after a batch."""
    evaluated = threading.Event()

    def keep(batch: DataFrame, _batch_id: int) -> None:
        batch.collect()
        evaluated.set()

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    counted = numbers.groupBy((sf.col("value") % 10).alias("k")).agg(sf.count("*"))
    query = (
        counted.writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
        .start()
    )
    try:
        if not evaluated.wait(_BATCH_S):
            raise SystemExit(f"no batch was run: {query.exception()}")
    finally:
        query.stop()


def figures() -> dict[str, float]:
    """Memory, threads and open files of this application, after a collection."""
    (jvm,) = named(descendants(os.getpid()), DRIVER_JVM)
    found = {"JVM: heap in use, MiB": heap_mib(jvm)}
    for title, pid in (("JVM", jvm), ("Python", os.getpid())):
        found |= dict(process_figures(title, [pid]))
        del found[f"{title}: processes"]
    return found


def measure(folder: Path, url: str, starts: int) -> list[dict[str, float]]:
    """Starts the queries, and returns the figures after each ten of them."""
    spark = session(folder, url)
    spark.sparkContext.setLogLevel("ERROR")
    samples = []
    for number in range(1, starts + 1):
        start(spark, folder, number)
        if number % STEP == 0:
            samples.append(figures())
            print(number, json.dumps(samples[-1]), file=sys.stderr, flush=True)
    spark.stop()
    return samples


def growth(samples: Samples, name: str) -> float:
    """Growth for each start: the median of all slopes, the warm-up left out."""
    values = [one[name] for one in samples[round(len(samples) * WARM_UP) :]]
    return slope(values) / STEP


def table(found: Mapping[str, Samples], starts: int) -> str:
    """The result, as it stands on a page."""
    theirs, ours = (found[name] for name in PROVIDERS)
    lines = [
        f"{datetime.now(timezone.utc).date()}: {starts} starts of a query in each application, "
        f"figures of the last {starts - round(starts * WARM_UP)}.",
        "",
        "| what | HDFSBacked: first | last | a start | Redis: first | last | a start |",
        "|---|---|---|---|---|---|---|",
    ]
    first = round(len(ours) * WARM_UP)
    for name in ours[0]:
        cells = [
            f"{of[first][name]:.0f} | {of[-1][name]:.0f} | {growth(of, name):+.2f}"
            for of in (theirs, ours)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def side_by_side(starts: int) -> dict[str, Samples]:
    """The figures of each provider, in applications that run one after the other."""
    found: dict[str, Samples] = {}
    with tempfile.TemporaryDirectory() as scratch, RedisServer() as server:
        for name in PROVIDERS:
            folder = Path(scratch) / name
            folder.mkdir()
            url = server.url if name == "Redis" else ""
            words = [sys.executable, "-m", "tests.faults.starts", "--starts", str(starts)]
            done = subprocess.run(
                [*words, "--in", str(folder), "--url", url],
                stdout=subprocess.PIPE,
                text=True,
                timeout=_LIMIT_S,
                check=True,
            )
            found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measures both providers, or one in this process."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help=f"how many ({STARTS})")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    add_write_option(parser)
    asked = parser.parse_args(words)
    if asked.folder is not None:
        print(json.dumps(measure(asked.folder, asked.url, asked.starts)))
        return 0
    show(table(side_by_side(asked.starts), asked.starts), COMMAND, asked.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
