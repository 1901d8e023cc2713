"""Runs a streaming query over prepared batches and keeps its output, batch by batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
REDIS = "org.apache.spark.sql.redisstate.RedisStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PREFIX = "spark.sql.streaming.stateStore.redis."

Row = Mapping[str, Any]
Output = dict[int, list[str]]
_FIRST_MTIME_S = 1_000_000_000
# What Spark says when a Python worker of the driver was not there after ten seconds, which no conf
# makes longer: a machine that stands still that long is not what a test is about.
WORKER_LATE = "Python worker failed to connect back"
STARTS = 6


def run_to_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Starts a query that ends by itself, again if its Python worker came too late."""
    for _ in range(STARTS - 1):
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if WORKER_LATE not in str(error):
                raise
        else:
            return query
    query = start()
    query.awaitTermination()
    return query


class Input:
    """A folder that a stream reads, one file a batch, in order."""

    def __init__(self, folder: Path, schema: str) -> None:
        self.folder = folder
        self.schema = schema
        self._files = 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, rows: Iterable[Row]) -> None:
        path = self.folder / f"{self._files:05d}.json"
        # A running query that saw the file of today would take those of the past for too old.
        hidden = path.with_name("." + path.name)
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (_FIRST_MTIME_S + self._files, _FIRST_MTIME_S + self._files))
        hidden.rename(path)
        self._files += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder))


class Streams:
    """Starts queries of one test under its own folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder

    def input(self, name: str, schema: str) -> Input:
        return Input(self.folder / "input" / name, schema)

    def run(
        self,
        frame: DataFrame,
        name: str,
        *,
        mode: str = "update",
        provider: str = REDIS,
        output: Output | None = None,
    ) -> StreamingQuery:
        """Processes what there is; `output` gets the rows of each batch, as sorted text."""
        kept: Output = {} if output is None else output

        def keep(batch: DataFrame, batch_id: int) -> None:
            kept[batch_id] = sorted(str(row) for row in batch.collect())

        writer = self._writer(frame, name, mode, provider).foreachBatch(keep)
        return run_to_end(writer.trigger(availableNow=True).start)

    def start(
        self, frame: DataFrame, name: str, *, mode: str = "update", provider: str = REDIS
    ) -> StreamingQuery:
        """Starts a query without output, which the caller stops."""
        return self._writer(frame, name, mode, provider).format("noop").start()

    def _writer(self, frame: DataFrame, name: str, mode: str, provider: str) -> DataStreamWriter:
        self.spark.conf.set(PROVIDER, provider)
        return frame.writeStream.outputMode(mode).option(
            "checkpointLocation", str(self.checkpoint(name))
        )

    def checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / name

    def same_on_both(
        self,
        build: Callable[[Sequence[DataFrame]], DataFrame],
        schemas: Sequence[str],
        batches: Sequence[Sequence[Sequence[Row]]],
        *,
        mode: str = "update",
        oracle: str = HDFS,
    ) -> Output:
        """Runs one query on Spark's provider and on Redis, restarted half way: equal outputs.

        Args:
            batches: For each batch the rows of each input.
            oracle: Spark's provider.
        """
        outputs: dict[str, Output] = {}
        for provider in (oracle, REDIS):
            label = provider.rsplit(".", 1)[-1]
            inputs = [self.input(f"{label}{i}", schema) for i, schema in enumerate(schemas)]
            output: Output = {}
            half = len(batches) // 2
            for part in (batches[:half], batches[half:]):
                for batch in part:
                    for source, rows in zip(inputs, batch, strict=True):
                        source.add(rows)
                frame = build([source.stream(self.spark) for source in inputs])
                self.run(frame, label, mode=mode, provider=provider, output=output)
            outputs[label] = output
        first, second = outputs.values()
        assert second == first
        assert any(first.values()), "the query gave nothing out: the test would prove nothing"
        return second
