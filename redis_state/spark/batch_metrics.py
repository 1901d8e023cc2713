"""Metrics of a batch's stores: on the driver, in Spark's UI and in a query's progress.

The driver gets them from a Spark accumulator. UI and progress need a class of the project's jar:
Spark has no place there for metrics of a Python worker. So each partition adds a row with its
figures to the output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from redis_state.spark.driver_jvm import java_class
from redis_state.store.metrics import BATCH_METRICS

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

_CLASS = "batches.BatchFigures"
_COLUMN = "redis_state figures"


class _Sums(AccumulatorParam[dict[str, int]]):
    """Adds figures of the same name."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002  # Spark's signature
        return {}

    def addInPlace(  # noqa: N802  # Spark's name
        self, value1: dict[str, int], value2: dict[str, int]
    ) -> dict[str, int]:
        for name, number in value2.items():
            value1[name] = value1.get(name, 0) + number
        return value1


BATCHES_KEPT = 10
"""Number of newest batches of a streaming query whose figures are kept."""

ByBatch = dict[int, dict[int, dict[str, int]]]
"""Figures by batch and partition."""


class _NewestBatches(AccumulatorParam[ByBatch]):
    """Keeps the figures of each partition's last attempt, for the newest batches."""

    def zero(self, value: ByBatch) -> ByBatch:  # noqa: ARG002  # Spark's signature
        return {}

    def addInPlace(self, value1: ByBatch, value2: ByBatch) -> ByBatch:  # noqa: N802  # Spark's name
        for batch, partitions in value2.items():
            value1.setdefault(batch, {}).update(partitions)
        for old in sorted(value1)[:-BATCHES_KEPT]:
            del value1[old]
        return value1


@dataclass(frozen=True, slots=True)
class BatchCounters:
    """Accumulators of a streaming operator; is serialized to the tasks.

    Attributes:
        sums: Sums over all batches and attempts.
        newest: Figures of the newest batches.
    """

    sums: Accumulator[dict[str, int]]
    newest: Accumulator[ByBatch]

    def add(self, batch: int, partition: int, figures: Mapping[str, int]) -> None:
        """Adds the figures of a task for a partition."""
        self.sums.add({name: n for name, n in figures.items() if name not in _OF_A_MOMENT})
        self.newest.add({batch: {partition: dict(figures)}})

    def by_batch(self) -> dict[int, dict[str, int]]:
        """Returns the sums over all partitions for the newest batches, in the order of batches."""
        found: dict[int, dict[str, int]] = {}
        for batch, partitions in sorted(self.newest.value.items()):
            for figures in list(partitions.values()):
                into = found.setdefault(batch, {})
                for name, number in figures.items():
                    into[name] = into.get(name, 0) + number
        return found


_OF_A_MOMENT = frozenset(("num_keys", "memory_bytes"))


def counted_by(spark: SparkSession) -> BatchCounters | None:
    """Creates the accumulators of a streaming operator; ``None`` with Spark Connect."""
    total = sums(spark)
    if total is None:
        return None
    return BatchCounters(total, spark.sparkContext.accumulator({}, _NewestBatches()))


def sums(spark: SparkSession) -> Accumulator[dict[str, int]] | None:
    """Creates an accumulator for the figures of all partitions; ``None`` with Spark Connect."""
    if getattr(spark, "_jvm", None) is None:
        return None
    return spark.sparkContext.accumulator({}, _Sums())


def can_show(spark: SparkSession) -> bool:
    """Returns whether the driver is in this process and has the project's jar."""
    return java_class(spark, _CLASS) is not None


def widened(schema: StructType) -> StructType:
    """Adds a column for the figures to a schema; all other columns of a figures row are null."""
    nullable = [StructField(one.name, one.dataType, True, one.metadata) for one in schema]
    return StructType([*nullable, StructField(_COLUMN, StringType())])


def shown(mapped: DataFrame, store: str, schema: StructType) -> DataFrame:
    """Converts rows of the widened schema to the schema, and sends the figures to Spark's UI."""
    figures = [
        {"name": metric.name, "kind": metric.kind.value, "meaning": metric.meaning}
        for metric in BATCH_METRICS
    ]
    spark = mapped.sparkSession
    ours: Any = java_class(spark, _CLASS)
    return DataFrame(ours.shown(mapped._jdf, store, json.dumps(figures), schema.json()), spark)


def report(spark: SparkSession, store: str, counted: Accumulator[dict[str, int]] | None) -> None:
    """Adds the figures to the progress of the streaming query whose batch this thread runs."""
    ours = java_class(spark, _CLASS)
    if ours is not None and counted is not None:
        ours.report(spark.sparkContext._jsc.sc(), store, json.dumps(counted.value))
