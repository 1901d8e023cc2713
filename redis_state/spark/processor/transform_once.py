"""Runs a processor over a batch DataFrame once, without a server; no state is kept."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from redis_state.spark.frames import arrow_schema, column_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from redis_state.spark.batch_metrics import BatchCounters
    from redis_state.spark.processor.call import CalledStore, KeyedRows
    from redis_state.spark.processor.columns import ColumnEngine
    from redis_state.spark.processor.engine import Engine


def transformed_once(
    rows: KeyedRows,
    store: CalledStore,
    engine: Engine | ColumnEngine,
    output: StructType,
    counted: BatchCounters | None,
) -> DataFrame:
    """Returns the processor's output for all rows of a batch DataFrame.

    Args:
        store: Its name is for errors.
        counted: Gets the figures of all partitions.
    """
    from redis_state.spark.processor.once_task import OnceTask

    spark, initial_state = rows.df.sparkSession, rows.initial_state
    task = OnceTask(
        store.name,
        uuid.uuid4().hex,
        engine,
        arrow_schema(spark, rows.df.schema),
        None if initial_state is None else arrow_schema(spark, initial_state.schema),
        counted,
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    spread = _spread(rows.df, initial_state, engine.inputs.keys, store.partitions)
    return spread.mapInArrow(run, output)


def _spread(
    df: DataFrame, initial: DataFrame | None, keys: Sequence[str], partitions: int | None
) -> DataFrame:
    """Returns rows as structs with those of the initial state, a group's in one partition."""
    from pyspark.sql import functions as f

    from redis_state.spark.processor.once_task import INITIAL, PLANNED, ROW

    planned = f.unix_millis(f.current_timestamp()).alias(PLANNED)
    row = f.struct(*(column_of(df, name) for name in df.columns)).alias(ROW)
    rows = df.select(planned, row)
    groups = [f.col(ROW).getField(name) for name in keys]
    if initial is not None:
        one = f.struct(*(column_of(initial, name) for name in initial.columns)).alias(INITIAL)
        first = initial.select(planned, one)
        no_row = f.lit(None).cast(rows.schema[ROW].dataType).alias(ROW)
        no_initial = f.lit(None).cast(first.schema[INITIAL].dataType).alias(INITIAL)
        rows = rows.select(PLANNED, ROW, no_initial).unionAll(
            first.select(PLANNED, no_row, INITIAL)
        )
        groups = [f.coalesce(f.col(ROW).getField(k), f.col(INITIAL).getField(k)) for k in keys]
    return (
        rows.repartition(*groups) if partitions is None else rows.repartition(partitions, *groups)
    )
