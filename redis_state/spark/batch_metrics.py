"""What the stores of a batch count: on the driver, in Spark's UI and in a query's progress.

The driver gets it by an accumulator of Spark. The rest takes a class of our jar: Spark has no place
there for what a Python worker counts, so each partition gives it out in one row more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from redis_state.spark.driver_jvm import java_class
from redis_state.store.metrics import BATCH_METRICS

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

_CLASS = "BatchFigures"
_COLUMN = "redis_state figures"


class _Sums(AccumulatorParam[dict[str, int]]):
    """Adds figures of one name."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002  # Spark's signature
        return {}

    def addInPlace(  # noqa: N802  # Spark's name
        self, value1: dict[str, int], value2: dict[str, int]
    ) -> dict[str, int]:
        for name, number in value2.items():
            value1[name] = value1.get(name, 0) + number
        return value1


def sums(spark: SparkSession) -> Accumulator[dict[str, int]] | None:
    """An accumulator for the figures of all partitions; ``None`` with Spark Connect."""
    if getattr(spark, "_jvm", None) is None:
        return None
    return spark.sparkContext.accumulator({}, _Sums())


def can_show(spark: SparkSession) -> bool:
    """Whether the driver is in this process and has our jar."""
    return java_class(spark, _CLASS) is not None


def widened(schema: StructType) -> StructType:
    """A schema with one column more, for the figures; all of their row's other columns are null."""
    nullable = [StructField(one.name, one.dataType, True, one.metadata) for one in schema]
    return StructType([*nullable, StructField(_COLUMN, StringType())])


def shown(mapped: DataFrame, store: str, schema: StructType) -> DataFrame:
    """Rows of the widened schema as those of the schema; Spark's UI gets the figures."""
    figures = [
        {"name": metric.name, "kind": metric.kind.value, "meaning": metric.meaning}
        for metric in BATCH_METRICS
    ]
    spark = mapped.sparkSession
    ours: Any = java_class(spark, _CLASS)
    return DataFrame(ours.shown(mapped._jdf, store, json.dumps(figures), schema.json()), spark)


def report(spark: SparkSession, store: str, counted: Accumulator[dict[str, int]] | None) -> None:
    """Adds the figures to the progress of the streaming query that this thread runs a batch of."""
    ours = java_class(spark, _CLASS)
    if ours is not None and counted is not None:
        ours.report(spark.sparkContext._jsc.sc(), store, json.dumps(counted.value))
