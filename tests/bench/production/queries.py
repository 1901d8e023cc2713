"""The queries of the benchmark and the rows that they are fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

_START_S = 1_767_225_600  # 2026-01-01
_BATCH_S = 60


@dataclass(frozen=True, slots=True)
class Query:
    """A stateful query over streams of batch numbers, each of which stands for many rows.

    Attributes:
        inputs: How many streams it reads.
        fills: Whether its first batch holds every key once.
    """

    name: str
    build: Callable[[Sequence[DataFrame]], DataFrame]
    inputs: int = 1
    mode: str = "append"
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """Rows of a batch and distinct keys of the stream."""

    keys: int
    rows: int


def rows_of(numbers: DataFrame, query: Query, size: Size, side: int) -> DataFrame:
    """Rows of one minute of event time for each batch number, the same for every provider.

    A source without a log of its own, as Kafka is: the number is all that the stream carries.
    """
    number = sf.col("value").cast("long")
    count: Column = sf.lit(size.rows)
    if query.fills:
        count = sf.when(number == 0, sf.lit(size.keys)).otherwise(count)
    each = numbers.select(
        number.alias("batch"), sf.explode(sf.sequence(sf.lit(0), count - 1)).alias("i")
    )
    key = sf.pmod(sf.xxhash64(sf.lit(side), "batch", "i"), sf.lit(size.keys))
    if query.fills:
        key = sf.when(sf.col("batch") == 0, sf.col("i").cast("long")).otherwise(key)
    second = _START_S + sf.col("batch") * _BATCH_S + sf.col("i") % _BATCH_S
    return each.select(
        key.alias("k"),
        sf.timestamp_seconds(second).alias("ts"),
        sf.pmod(sf.xxhash64("i", "batch"), sf.lit(1_000_000)).alias("v"),
    )


def _aggregation(inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].groupBy("k").agg(sf.sum("v").alias("v"), sf.count("*").alias("n"))


def _join(inputs: Sequence[DataFrame]) -> DataFrame:
    left = inputs[0].withWatermark("ts", "10 seconds").alias("l")
    right = inputs[1].withWatermark("ts", "10 seconds").alias("r")
    near = sf.expr(
        "l.k = r.k and r.ts between l.ts - interval 1 minute and l.ts + interval 1 minute"
    )
    pairs = left.join(right, near)
    return pairs.select("l.k", sf.col("l.v").alias("v"), sf.col("r.v").alias("w"))


def _deduplication(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "10 minutes")
    # Which of several rows of a key is the first depends on the order of the shuffle.
    return late.dropDuplicatesWithinWatermark(["k"]).select("k")


QUERIES = {
    query.name: query
    for query in (
        Query("aggregation", _aggregation, mode="update", fills=True),
        Query("join", _join, inputs=2),
        Query("deduplication", _deduplication),
    )
}
