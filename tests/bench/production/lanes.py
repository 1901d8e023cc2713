"""One query on one provider, fed batch by batch, and the lanes that take turns."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tests.bench.production.cluster import Cluster, bucket_of
from tests.bench.production.queries import Query, Size, rows_of
from tests.bench.workloads import CHANGELOG, PROVIDER, PROVIDERS


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one lane.

    Attributes:
        trigger_ms: The whole batch.
        logs_ms: Of it, Spark's logs of offsets and commits.
        wall_ms: From the arrival of the rows until Spark has looked for more.
        output: Number of rows and digest of what the batch gave out.
    """

    trigger_ms: float
    logs_ms: float
    wall_ms: float
    output: dict[str, Any]


class Lane:
    """A query on one provider with its checkpoint on the S3 server."""

    def __init__(
        self, place: Cluster, name: str, query: Query, size: Size, provider: str, partitions: int
    ) -> None:
        self.provider = provider
        self.partitions = partitions
        self._spark = place.spark
        conf = self._spark.conf
        conf.set(PROVIDER, PROVIDERS[provider])
        conf.set(CHANGELOG, "true")
        conf.set("spark.sql.shuffle.partitions", str(partitions))
        jvm: Any = self._spark._jvm
        self._jvm = jvm
        encoder = jvm.org.apache.spark.sql.Encoders.STRING()
        kind = jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._streams = [
            kind.apply(encoder, self._spark._jsparkSession) for _ in range(query.inputs)
        ]
        numbers = [DataFrame(stream.toDF(), self._spark) for stream in self._streams]
        frame = query.build([rows_of(one, query, size, side) for side, one in enumerate(numbers)])
        digest = sf.xxhash64(*frame.columns).cast("decimal(38,0)")
        observed = frame.observe("out", sf.count("*").alias("rows"), sf.sum(digest).alias("sum"))
        self._checkpoint = f"s3a://{bucket_of(provider)}/{name}"
        self._query = (
            observed.writeStream.outputMode(query.mode)
            .format("noop")
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )

    def feed(self, number: int) -> Batch:
        """Runs one batch."""
        began = time.monotonic()
        # While the query looks for input it holds this lock: it sees all streams, or none.
        lock = self._query._jsq.streamingQuery().awaitProgressLock()
        lock.lock()
        try:
            for stream in self._streams:
                stream.addData(self._jvm.PythonUtils.toSeq([str(number)]))
        finally:
            lock.unlock()
        self._query.processAllAvailable()
        wall_ms = (time.monotonic() - began) * 1e3
        progress = next(p for p in reversed(self._query.recentProgress) if p["numInputRows"] > 0)
        durations = progress["durationMs"]
        return Batch(
            trigger_ms=float(durations["triggerExecution"]),
            logs_ms=float(durations.get("walCommit", 0) + durations.get("commitOffsets", 0)),
            wall_ms=wall_ms,
            output={"batch": progress["batchId"], **progress["observedMetrics"]["out"].asDict()},
        )

    def executors(self) -> list[str]:
        """Executor that holds each partition of the first operator, by its id."""
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        state = streaming.state
        session = self._spark._jsparkSession
        environment = getattr(getattr(self._jvm.org.apache.spark, "SparkEnv$"), "MODULE$").get()
        reference = state.StateStoreCoordinatorRef.forDriver(
            environment, session.sessionState().conf()
        )
        run = self._jvm.java.util.UUID.fromString(self._query.runId)
        found = []
        for partition in range(self.partitions):
            id_ = state.StateStoreId(f"{self._checkpoint}/state", 0, partition, "default")
            place = reference.getLocation(state.StateStoreProviderId(id_, run))
            if place.isDefined():
                found.append(place.get().rpartition("_")[2])
        return found

    def stop(self) -> None:
        self._query.stop()


class Lanes:
    """One query on every provider, fed the same batches in random order.

    Attributes:
        fed: Number of batches so far.
    """

    def __init__(
        self, place: Cluster, name: str, query: Query, size: Size, partitions: int
    ) -> None:
        self.all = {
            provider: Lane(place, name, query, size, provider, partitions) for provider in PROVIDERS
        }
        self.name = name
        self.query = query.name
        self.partitions = partitions
        self.fed = 0
        self.output_rows = 0
        self._dice = random.Random(1)

    def feed(self, first: str | None = None) -> dict[str, Batch]:
        """Runs the next batch on every lane.

        Args:
            first: The lane that begins; `None` draws it.

        Raises:
            SystemExit: The outputs differ.
        """
        order = self._dice.sample(list(self.all), len(self.all))
        if first is not None:
            order.sort(key=lambda name: name != first)
        found = {name: self.all[name].feed(self.fed) for name in order}
        outputs = {name: batch.output for name, batch in found.items()}
        if len({str(output) for output in outputs.values()}) != 1:
            raise SystemExit(
                f"{self.name}: the providers disagree, so no figure is printed: {outputs}"
            )
        self.fed += 1
        self.output_rows += int(found["redis"].output["rows"])
        return found


@contextmanager
def lanes(place: Cluster, name: str, query: Query, size: Size, partitions: int) -> Iterator[Lanes]:
    """Queries that are stopped at the end of the context."""
    made = Lanes(place, name, query, size, partitions)
    try:
        yield made
    finally:
        for lane in made.all.values():
            lane.stop()
