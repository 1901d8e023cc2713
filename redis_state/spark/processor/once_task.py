"""Spark task of a processor on a batch DataFrame, which runs once and keeps no state.

As in Spark's operator, each group begins without state or with its initial state. No row is late,
and there is no watermark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis_state.batches.driver import OPERATOR
from redis_state.errors import InternalError, UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.spark.processor.engine import Engine
from redis_state.spark.processor.handle import ProcessorQueryInfo
from redis_state.spark.rows import rows_of_structs
from redis_state.store.scratch import scratch_store

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_state.spark.batch_metrics import BatchCounters
    from redis_state.spark.processor.columns import ColumnEngine

PLANNED, ROW, INITIAL = "planned", "row", "initial"
"""Columns of the input: planned time, rows, and rows of the initial state, if any.

The time is the one for which Spark planned the query, in ms since 1970. Rows are structs, one of
which is null.
"""

_NO_WATERMARK = -1
_BATCH = 0
_QUERY_ID = "00000000-0000-0000-0000-000000000000"  # Spark's id outside of a streaming query


@dataclass(frozen=True, slots=True)
class OnceTask:
    """Runs a processor over the rows of one partition; is serialized to the tasks.

    Attributes:
        name: Name of the store, for errors.
        run_id: Id of the call.
        input: Columns of the rows.
        initial: Columns of the initial state; ``None`` without one.
    """

    name: str
    run_id: str
    engine: Engine | ColumnEngine
    input: pa.Schema
    initial: pa.Schema | None
    counted: BatchCounters | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the processor's output.

        Raises:
            UsageError: The DataFrame is a batch of a streaming query; else see `Engine.run`.
        """
        partition = self._partition()
        read = [batch for batch in batches if batch.num_rows]
        planned_ms = read[0][PLANNED][0].as_py() if read else time.time_ns() // 1_000_000
        table = _table(read, ROW, self.input)
        more: dict[str, Any] = {}
        if self.initial is not None:
            more["initial"] = _table(read, INITIAL, self.initial)
        read.clear()
        id_ = StateStoreProviderId(StateStoreId(self.name, OPERATOR, partition), self.run_id)
        store = scratch_store(id_)
        info = ProcessorQueryInfo(_QUERY_ID, self.run_id, _BATCH)
        began = time.monotonic()
        try:
            yield from self.engine.run(store, table, planned_ms, _NO_WATERMARK, info, **more)
        finally:
            store.abort()
        if self.counted is not None:
            figures = {
                "rows_read": table.num_rows,
                "function_ms": int((time.monotonic() - began) * 1000),
            }
            self.counted.add(_BATCH, partition, figures)

    def _partition(self) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise InternalError("running transform_with_state", found="this is not a task of Spark")
        if context.getLocalProperty("sql.streaming.queryId"):
            raise UsageError(
                f"running transform_with_state for store '{self.name}'",
                found="the DataFrame is one batch of a streaming query, whose state would be gone "
                "when the batch is done",
                advice="Call transform_with_state on the stream, before writeStream; in "
                "foreachBatch use foreach_batch_with_state_store.",
            )
        return context.partitionId()


def _table(read: list[pa.RecordBatch], column: str, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    rows = [rows_of_structs(batch[column]) for batch in read]
    there = [batch for batch in rows if batch.num_rows]
    return pa.Table.from_batches(there) if there else schema.empty_table()
