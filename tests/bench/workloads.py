"""The benchmark: one streaming aggregation on each provider, batch by batch in turns."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

_STATE = "org.apache.spark.sql.execution.streaming.state."
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PARTITIONS = 4

PROVIDERS = {
    "redis": "org.apache.spark.sql.redisstate.RedisStateStoreProvider",
    "hdfs": _STATE + "HDFSBackedStateStoreProvider",
    "rocksdb": _STATE + "RocksDBStateStoreProvider",
}
_OPEN = ("redisStateOpenMs", "rocksdbLoadLatencyMs")


def open_ms(metrics: Mapping[str, Any]) -> int:
    """Milliseconds that an operator's stores took to open; HDFSBacked does not report them."""
    return sum(int(metrics.get(name, 0)) for name in _OPEN)


@dataclass(frozen=True, slots=True)
class Workload:
    """`keys` rows are put first; each later batch changes `updates` of them, chosen by hash."""

    name: str
    keys: int
    updates: int
    warm_up: int
    measured: int

    @property
    def tiny(self) -> bool:
        """True if a batch changes so little that fixed costs dominate."""
        return self.updates < self.keys / 50


@dataclass(slots=True)
class Batch:
    """Times of one batch in ms: the whole trigger, and sums over the stores of the operator."""

    trigger_ms: float
    commit_ms: float
    update_ms: float
    memory_bytes: int
    rows: int
    custom: dict[str, int] = field(default_factory=dict)


class Lane:
    """One query on one provider; it is fed file by file so that the lanes take turns."""

    def __init__(self, spark: SparkSession, folder: Path, provider: str, work: Workload) -> None:
        self._spark = spark
        self._folder = folder
        self._work = work
        self._provider = provider
        self._files = 0
        self.batches: list[Batch] = []
        self.loads: list[Batch] = []
        (folder / "in").mkdir(parents=True)
        self._query: StreamingQuery = self._start()

    def feed(self, start: int, rows: int) -> Batch:
        """Runs one batch of `rows` keys, spread over the key space from `start` on."""
        keys = (sf.col("id") * 2_654_435_761 + start) % self._work.keys
        staged = self._folder / "staged"
        frame = self._spark.range(rows).select(keys.alias("k"), sf.col("id").alias("v"))
        frame.coalesce(1).write.mode("overwrite").parquet(str(staged))
        (part,) = staged.glob("*.parquet")
        part.rename(self._folder / "in" / f"{self._files:05d}.parquet")
        self._files += 1
        return self._measured()

    def stop(self) -> None:
        """Ends the query; its checkpoint stays until `close`."""
        self._query.stop()

    def restart(self, start: int, rows: int, provider: str | None = None) -> Batch:
        """A new run, perhaps on another provider: its first batch has to load the state."""
        self._query.stop()
        self._provider = provider or self._provider
        self._query = self._start()
        batch = self.feed(start, rows)
        self.loads.append(batch)
        return batch

    def state(self) -> list[tuple[int, ...]]:
        """Digest of the whole state by Spark's own reader, for the check that all lanes agree."""
        frame: DataFrame = self._spark.read.format("statestore").load(str(self._folder / "check"))
        digest = frame.select(
            sf.count("*"), sf.sum(sf.xxhash64("key.*", "value.*").cast("decimal(38,0)"))
        )
        return [tuple(int(x) for x in row) for row in digest.collect()]

    def close(self) -> None:
        self._query.stop()
        shutil.rmtree(self._folder)

    def _start(self) -> StreamingQuery:
        conf = self._spark.conf
        conf.set(PROVIDER, PROVIDERS[self._provider])
        conf.set(CHANGELOG, "true")
        stream = self._spark.readStream.schema("k long, v long").parquet(str(self._folder / "in"))
        counts = stream.groupBy("k").agg(sf.sum("v").alias("v"), sf.count("*").alias("n"))
        return (
            counts.writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(self._folder / "check"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _measured(self) -> Batch:
        self._query.processAllAvailable()
        progress = next(self._with_input())
        operator = progress["stateOperators"][0]
        batch = Batch(
            trigger_ms=float(progress["durationMs"]["triggerExecution"]),
            commit_ms=float(operator["commitTimeMs"]),
            update_ms=float(operator["allUpdatesTimeMs"]),
            memory_bytes=int(operator["memoryUsedBytes"]),
            rows=int(operator["numRowsTotal"]),
            custom={name: int(value) for name, value in operator["customMetrics"].items()},
        )
        self.batches.append(batch)
        return batch

    def _with_input(self) -> Iterator[dict[str, Any]]:
        for progress in reversed(self._query.recentProgress):
            if progress["numInputRows"] > 0:
                yield progress
