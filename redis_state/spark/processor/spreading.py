"""Distributes the rows of a stream to the partitions of their keys, each with a marker row.

A task must prove which batch its rows belong to, even without rows. So each partition gets one more
row with two values that Spark decides when it plans a batch: the time of the batch, and a newly
drawn id. `current_timestamp()` and `uuid()` are literals of a planned batch (Spark class
`IncrementalExecution`). So all tasks of a frame have the same two values, however often it is
evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from redis_state.batches.streams import (
    FRAME_COLUMN,
    FRAME_LETTERS,
    PARTITION_COLUMN,
    PLANNED_COLUMN,
)
from redis_state.spark.frames import column_of, repartition_by_number

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def spread_with_markers(
    df: DataFrame, store: str, grouping: Sequence[str], partitions: int, *, ticks: bool
) -> DataFrame:
    """Returns the rows in the partition of their key, and one marker row in each partition.

    The columns of `df` are followed by those of `streams`: the planned time and the frame id, both
    null except in marker rows, and the partition.

    Args:
        df: A streaming DataFrame.
        store: Name of the store.
        ticks: Adds a source with a row each second. Its rows have a time and no frame id.
    """
    from pyspark.sql import functions as f

    by_key = [column_of(df, name) for name in grouping]
    number = f.pmod(f.hash(*by_key), f.lit(partitions)).alias(PARTITION_COLUMN)
    unmarked = f.lit(None).cast("long").alias(PLANNED_COLUMN)
    no_frame = f.lit(None).cast("string").alias(FRAME_COLUMN)
    planned = f.unix_millis(f.current_timestamp()).alias(PLANNED_COLUMN)
    nothing = [f.lit(None).cast(field.dataType).alias(field.name) for field in df.schema]
    rows = df.select(*(column_of(df, name) for name in df.columns), unmarked, no_frame, number)
    marked = _frame_in_each(df, store, partitions).select(
        *nothing, planned, FRAME_COLUMN, PARTITION_COLUMN
    )
    spread = rows.unionAll(marked)
    if ticks:
        rate = df.sparkSession.readStream.format("rate").option("numPartitions", 1).load()
        first = f.lit(0).alias(PARTITION_COLUMN)
        spread = spread.unionAll(rate.select(*nothing, planned, no_frame, first))
    return repartition_by_number(spread, partitions, PARTITION_COLUMN)


def _frame_in_each(df: DataFrame, store: str, partitions: int) -> DataFrame:
    """Returns the frame id, once for each partition."""
    from pyspark.sql import functions as f

    one = _one_row(df, store)
    frame = f.substring(f.replace(f.expr("uuid()"), f.lit("-")), 1, FRAME_LETTERS)
    numbers: Column = f.explode(f.sequence(f.lit(0), f.lit(partitions - 1)))
    return one.select(frame.alias(FRAME_COLUMN)).select(
        FRAME_COLUMN, numbers.alias(PARTITION_COLUMN)
    )


def _one_row(df: DataFrame, store: str) -> DataFrame:
    """Returns a streaming DataFrame of one row in each batch, without a source.

    Spark refuses the union of a stream and a batch DataFrame. With the driver in this process,
    `Range` is declared as streaming. Spark Connect has no such call. There an empty part of the
    stream itself is passed to a task, which adds the row.
    """
    spark = df.sparkSession
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        from pyspark.sql import DataFrame

        plan = spark.range(0, 1, 1, 1)._jdf.queryExecution().analyzed()
        streaming = plan.copy(
            plan.start(), plan.end(), plan.step(), plan.numSlices(), plan.output(), True
        )
        dataset = jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(spark._jsparkSession, streaming), spark)
    from pyspark.sql import functions as f

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})

    empty = df.where(f.lit(False)).select(f.lit(0).cast("long").alias("id"))
    # Spark does not optimize through an observation, so the empty part stays in the plan.
    kept = empty.observe(f"redis_state_{store}", f.count(f.lit(1)).alias("rows"))
    return kept.repartition(1).mapInArrow(add, "id long")
