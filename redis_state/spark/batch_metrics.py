"""What the stores of a batch count, brought to the driver by an accumulator of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession


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
