"""`python -m tests.bench.processors [--quick]`: stateful processors against Spark's operator.

Two queries, one with `redis_state.transform_with_state` and one with Spark's own operator on
RocksDB with change log, run in one session and get the same files, batch by batch in turns; who
begins changes from batch to batch. The processor is the same class. Each batch reports a digest of
what it gave out, and the digests have to be equal where they can be.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import redis_state
from redis_state import transform_columns_with_state, transform_with_state
from tests.bench.__main__ import session
from tests.bench.operators import quiet_workers
from tests.bench.page import add_write_option, show
from tests.bench.workloads import CHANGELOG, PARTITIONS, PROVIDER, PROVIDERS

INPUT = "k string, v long, ts timestamp"
OUTPUT = "k string, n long"
COMMAND = "python -m tests.bench.processors"
_START = datetime(2026, 1, 1, tzinfo=timezone.utc)

Form = str


@dataclass(frozen=True, slots=True)
class Work:
    """Benchmark of one processor on both operators.

    Attributes:
        make: The processor; it is made in a function, since workers cannot import this module.
        aim: Spark's time over ours, at least; ``None`` where Spark has no such form.
        few: Batches are so long that one is measured.
    """

    name: str
    form: Form
    rows: int
    make: Callable[[], StatefulProcessor]
    aim: float
    mode: str = "None"
    columns: bool = False
    few: bool = False


def _pandas_totals() -> StatefulProcessor:
    import pandas as pd

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._total = handle.getValueState("total", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            known = self._total.get()
            total = (known[0] if known else 0) + sum(int(frame["v"].sum()) for frame in rows)
            self._total.update((total,))
            yield pd.DataFrame({"k": [key[0]], "n": [total]})

    return Totals()


def _row_totals(ttl_ms: int | None = None) -> StatefulProcessor:
    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._total = handle.getValueState("total", "n long", ttl_ms)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            known = self._total.get()
            total = (known[0] if known else 0) + sum(row.v for row in rows)
            self._total.update((total,))
            yield Row(k=key[0], n=total)

    return Totals()


def _lists() -> StatefulProcessor:
    class Seen(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._seen = handle.getListState("seen", "v long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for row in rows:
                self._seen.appendValue((row.v,))
            yield Row(k=key[0], n=sum(1 for _ in self._seen.get()))

    return Seen()


def _maps() -> StatefulProcessor:
    class Kinds(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._kinds = handle.getMapState("kinds", "kind long", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for row in rows:
                kind = (row.v % 10,)
                known = self._kinds.getValue(kind)
                self._kinds.updateValue(kind, ((known[0] if known else 0) + 1,))
            yield Row(k=key[0], n=sum(value[0] for value in self._kinds.values()))

    return Kinds()


def _timers() -> StatefulProcessor:
    class Once(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._total = handle.getValueState("total", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self._total.update((sum(row.v for row in rows),))
            self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1)
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            known = self._total.get()
            self._total.clear()
            yield Row(k=key[0], n=known[0] if known else -1)

    return Once()


def _column_totals() -> Callable[[Any, Any], Any]:
    def totals(state: Any, table: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        sums = table.group_by("k").aggregate([("v", "sum")])
        known = state.get(sums["k"])["n"]
        n = pc.add(pc.fill_null(known, 0), sums["v_sum"])
        state.put(sums["k"], pa.table({"n": n}))
        return pa.table({"k": sums["k"], "n": n})

    return totals


WORKS = (
    Work("value state, pandas, tiny", "pandas", 100, _pandas_totals, 1.0),
    Work("value state, pandas", "pandas", 4_000, _pandas_totals, 5.0),
    Work("value state, pandas", "pandas", 50_000, _pandas_totals, 10.0, few=True),
    Work("value state, rows", "rows", 50_000, _row_totals, 30.0, few=True),
    Work("columns, against rows", "rows", 50_000, _row_totals, 100.0, columns=True, few=True),
    Work("list state, rows", "rows", 10_000, _lists, 10.0),
    Work("map state, rows", "rows", 10_000, _maps, 10.0),
    Work("10,000 timers fire, rows", "rows", 10_000, _timers, 10.0, mode="EventTime"),
    Work(
        "value state with TTL, rows",
        "rows",
        10_000,
        lambda: _row_totals(3_600_000),
        10.0,
        mode="ProcessingTime",
    ),
)


class Lane:
    """A query that gets a file at a time."""

    def __init__(self, folder: Path, frame: DataFrame) -> None:
        self._input = folder / "in"
        self._seen = -1
        rows = sf.xxhash64(*frame.columns).cast("decimal(38,0)")
        digest = frame.observe("out", sf.count("*").alias("rows"), sf.sum(rows).alias("sum"))
        self._query = (
            digest.writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(folder / "check"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def feed(self, file: Path) -> tuple[float, Any]:
        """Milliseconds of the whole trigger, and what came out."""
        lock = self._query._jsq.streamingQuery().awaitProgressLock()
        lock.lock()
        try:
            os.link(file, self._input / file.name)
        finally:
            lock.unlock()
        self._query.processAllAvailable()
        found: list[Any] = []
        # A progress is told some milliseconds after its batch.
        while not found:
            found = [
                p
                for p in self._query.recentProgress
                if int(p["batchId"]) > self._seen and "out" in p["observedMetrics"]
            ]
            time.sleep(0.01)
        self._seen = max(int(p["batchId"]) for p in found)
        took = sum(float(p["durationMs"]["triggerExecution"]) for p in found)
        outs = [p["observedMetrics"]["out"].asDict() for p in found]
        rows = sum(out["rows"] for out in outs)
        return took, (rows, sum(int(out["sum"] or 0) for out in outs))

    def close(self) -> None:
        self._query.stop()


def _lane(spark: SparkSession, folder: Path, work: Work, url: str, *, ours: bool) -> Lane:
    (folder / "in").mkdir(parents=True)
    spark.conf.set(PROVIDER, PROVIDERS["rocksdb"])
    spark.conf.set(CHANGELOG, "true")
    frame = spark.readStream.schema(INPUT).parquet(str(folder / "in"))
    if work.mode == "EventTime":
        frame = frame.withWatermark("ts", "0 seconds")
    made: DataFrame
    if ours and work.columns:
        made = transform_columns_with_state(
            frame,
            _column_totals(),
            store=str(folder),
            key="k",
            state="n long",
            schema=OUTPUT,
            partitions=PARTITIONS,
            url=url,
        )
    elif ours:
        made = transform_with_state(
            frame,
            work.make(),
            store=str(folder),
            key="k",
            schema=OUTPUT,
            rows="rows" if work.form == "rows" else "pandas",
            time_mode=work.mode,
            partitions=PARTITIONS,
            url=url,
        )
    else:
        grouped = frame.groupBy("k")
        call = (
            grouped.transformWithState
            if work.form == "rows"
            else grouped.transformWithStateInPandas
        )
        made = call(work.make(), OUTPUT, "Update", work.mode)
    return Lane(folder, made)


def _file(folder: Path, number: int, rows: int) -> Path:
    """A batch: every key once, in another order each time, all at one event time."""
    path = folder / f"{number:05d}.parquet"
    at = _START + timedelta(minutes=number)
    keys = [f"customer-{(i * 7919 + number) % rows:08d}" for i in range(rows)]
    table = pa.table(
        {
            "k": keys,
            "v": pa.array([(i + number) % 1000 for i in range(rows)], pa.int64()),
            "ts": pa.array([at] * rows, pa.timestamp("us", tz="UTC")),
        }
    )
    pq.write_table(table, path)
    return path


def measure(
    spark: SparkSession, folder: Path, work: Work, url: str, batches: tuple[int, int]
) -> tuple[list[float], list[float]]:
    """Milliseconds of the measured batches, ours and Spark's.

    Raises:
        SystemExit: They disagree, or nothing was given out.
    """
    folder.mkdir()
    warm_up, measured = batches
    lanes = [
        _lane(spark, folder / "ours", work, url, ours=True),
        _lane(spark, folder / "spark", work, url, ours=False),
    ]
    times: list[list[float]] = [[], []]
    outputs: list[list[Any]] = [[], []]
    for number in range(warm_up + measured):
        file = _file(folder, number, work.rows)
        for at in (0, 1) if number % 2 else (1, 0):
            took, out = lanes[at].feed(file)
            times[at].append(took)
            outputs[at].append(out)
        print(
            f"{work.name}, {work.rows:,} rows: {times[0][-1]:.0f} and {times[1][-1]:.0f} ms",
            file=sys.stderr,
        )
    for lane in lanes:
        lane.close()
    # Spark has a batch of its own for timers; ours fire with the next rows.
    if work.mode != "EventTime" and outputs[0] != outputs[1]:
        raise SystemExit(f"{work.name}: they disagree: {outputs}")
    if not any(rows for rows, _ in outputs[0]):
        raise SystemExit(f"{work.name}: nothing was given out, so nothing was compared")
    shutil.rmtree(folder)
    return times[0][warm_up:], times[1][warm_up:]


def alone(spark: SparkSession, folder: Path, url: str, rows: int) -> float:
    """Rows a second of the columnar form, in batches of so many rows; Spark has no such form."""
    folder.mkdir()
    work = Work("columns", "rows", rows, _row_totals, 0.0, columns=True)
    lane = _lane(spark, folder / "ours", work, url, ours=True)
    took = [lane.feed(_file(folder, number, rows))[0] for number in range(4)]
    lane.close()
    return rows / statistics.median(took[1:]) * 1000


def spark_alone(spark: SparkSession, folder: Path, rows: int) -> float:
    """Milliseconds of a batch whose rows are handed on as they are: what Spark takes for itself."""

    def handed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    (folder / "in").mkdir(parents=True)
    frame = spark.readStream.schema(INPUT).parquet(str(folder / "in"))
    spread = frame.select("k", sf.col("v").alias("n")).repartition(PARTITIONS, "k")
    lane = Lane(folder, spread.mapInArrow(handed_on, OUTPUT))
    took = [lane.feed(_file(folder, number, rows))[0] for number in range(5)]
    lane.close()
    return statistics.median(took[2:])


def report(
    found: list[tuple[Work, list[float], list[float]]],
    million: float | None,
    floors: list[tuple[int, float]],
    measured: int,
) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    lines = [
        f"`{COMMAND}` on {machine}, {date.today().isoformat()}: {PARTITIONS} partitions, medians "
        f"of {measured} pairs of batches in turns (one pair where Spark's takes a minute or "
        f"more); the load of the machine was {os.getloadavg()[0]:.1f}.",
        "",
        "| work | rows a batch | ours, ms | Spark's, ms | Spark's / ours | aim | rows a second |",
        "|---|---|---|---|---|---|---|",
    ]
    for work, ours, theirs in found:
        point = statistics.median(theirs) / statistics.median(ours)
        missed = "" if point >= work.aim else " **missed**"
        a_second = work.rows / statistics.median(ours) * 1000
        lines.append(
            f"| {work.name} | {work.rows:,} | {statistics.median(ours):.0f} | "
            f"{statistics.median(theirs):.0f} | {point:.1f} | ≥ {work.aim:g}{missed} | "
            f"{a_second:,.0f} |"
        )
    if million is not None:
        lines.append(f"| columns | 1,000,000 | | no such form | | | {million:,.0f} |")
    lines += [
        f"| no state: Spark hands the rows on | {rows:,} | {took:.0f} | | | | |"
        for rows, took in floors
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.processors", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches, no long ones")
    parser.add_argument("--only", metavar="WORD", default="", help="only works with this name")
    add_write_option(parser)
    options = parser.parse_args()
    began = time.monotonic()
    warm_up, measured = (1, 3) if options.quick else (2, 6)
    works = [work for work in WORKS if options.only in work.name]
    works = [work for work in works if not (options.quick and work.few)]
    with tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch:
        folder = Path(scratch)
        with redis_state.EmbeddedRedis() as server:
            spark = session(server.url, folder)
            quiet_workers(spark)
            found = []
            for number, work in enumerate(works):
                batches = (1, 1) if work.few else (warm_up, measured)
                ours, theirs = measure(spark, folder / str(number), work, server.url, batches)
                found.append((work, ours, theirs))
            million = None
            sizes = (100, 10_000) if options.quick else (100, 10_000, 50_000)
            floors = [(rows, spark_alone(spark, folder / f"{rows}", rows)) for rows in sizes]
            if not options.quick and options.only in "columns":
                million = alone(spark, folder / "million", server.url, 1_000_000)
            spark.stop()
    text = report(found, million, floors, measured)
    show(text, COMMAND, options.write)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
