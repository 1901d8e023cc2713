"""Spark task of a processor for one partition of a batch: join, run, commit."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_state.batches.streams import (
    FRAME_COLUMN,
    PARTITION_COLUMN,
    PLANNED_COLUMN,
    StreamPlan,
    TaskPlace,
    join_batch,
)
from redis_state.config import Config
from redis_state.errors import InternalError, UsageError
from redis_state.ids import StateStoreProviderId
from redis_state.protocol import RegisteredRun
from redis_state.spark.partition_task import PartitionRows
from redis_state.spark.processor.columns import ColumnEngine
from redis_state.spark.processor.engine import Engine
from redis_state.spark.processor.handle import ProcessorQueryInfo
from redis_state.spark.worker import WORKER
from redis_state.store.provider import StateStoreProvider

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from redis_state.spark.batch_metrics import BatchCounters

_RUN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessorTask:
    """Runs a processor over the rows of one partition; is serialized to the tasks.

    Attributes:
        input: Columns of the input, which the three columns of `streams` follow.
    """

    plan: StreamPlan
    config: Config
    engine: Engine | ColumnEngine
    input: pa.Schema
    counted: BatchCounters | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the processor's output, then commits.

        Raises:
            RedisStateError: See `join_batch`; also errors of open and commit.
        """
        place, table = self._read(batches)
        client = WORKER.client(self.config)
        keep_ms = self.config.keep_ms
        joined = join_batch(client, self.plan, place, keep_ms=keep_ms)
        warm = (self.config, self.plan.partition(place.partition))
        provider = WORKER.serve(
            warm,
            StateStoreProviderId(self.plan.store_id(place.partition), place.run_id),
            joined.run,
            families=True,
        )
        store = provider.get_family_store(joined.version)
        info = ProcessorQueryInfo(place.query_id, place.run_id, place.batch)
        began = time.monotonic()
        try:
            yield from self.engine.run(store, table, joined.began_ms, joined.watermark_ms, info)
            function_ms = int((time.monotonic() - began) * 1000)
            store.commit()
        finally:
            if not store.has_committed:
                store.abort()
        figures = {
            "rows_read": table.num_rows,
            "function_ms": function_ms,
            "num_keys": store.metrics.num_keys,
            "memory_bytes": store.metrics.memory_bytes,
        }
        # Both reference the version, whose memory maintenance may have to free.
        del store, table
        WORKER.maintain(self.config, provider, place.batch + place.partition)
        if self.counted is not None:
            figures |= provider.custom_metrics
            # This counter belongs to the process, and includes its other tasks.
            del figures["round_trips"]
            self.counted.add(place.batch, place.partition, figures)
        WORKER.keep(warm, provider, place.run_id)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> tuple[TaskPlace, pa.Table]:
        """Returns the task's place, from the marker row of its partition, and the other rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        number = _context().partitionId()
        read = [batch for batch in batches if batch.num_rows]
        found = "it has no marker row"
        if read:
            table = pa.Table.from_batches(read)
            bounds = pc.min_max(table[PARTITION_COLUMN]).as_py()
            if bounds == {"min": number, "max": number}:
                rows, planned, frame = _without_marks(table)
                if frame:
                    return task_place(self.plan, str(planned), frame), rows
            else:
                found = f"its rows are of {bounds['min']} to {bounds['max']}"
        raise self._moved(number, found)

    def _moved(self, number: int, found: str) -> UsageError:
        return UsageError(
            f"evaluating partition {number} of store '{self.plan.name}'",
            found=found,
            advice=(
                "A union or coalesce after transform_with_state renumbers partitions: write "
                "repartition(…) between the two. Nothing was committed here."
            ),
        )


@dataclass(frozen=True, slots=True)
class InitialTask:
    """Writes an initial state into one partition, as version 1; is serialized to the tasks.

    Rows have the form of `PartitionTask`'s rows: a partition without rows runs, too.

    Attributes:
        input: Columns of the initial state.
        began_ms: The processing time, in ms since 1970.
    """

    plan: StreamPlan
    config: Config
    registered: RegisteredRun
    engine: Engine
    input: pa.Schema
    began_ms: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Commits version 1 and yields the partition's number."""
        import pyarrow as pa

        partition = PartitionRows(self.plan.name, batches)
        number = partition.number
        if number is None:
            return
        read = list(partition)
        table = pa.Table.from_batches(read) if read else self.input.empty_table()
        run = self.registered
        provider = StateStoreProvider(
            StateStoreProviderId(self.plan.store_id(number), run.run_id),
            config=self.config,
            families=True,
            run=run,
            gen=self.plan.gen,
            client=WORKER.client(self.config),
        )
        with closing(provider):
            store = provider.get_family_store(0)
            info = ProcessorQueryInfo("", run.run_id, self.plan.first)
            try:
                self.engine.take_initial(store, table, self.began_ms, info)
                store.commit()
            finally:
                if not store.has_committed:
                    store.abort()
        yield pa.RecordBatch.from_pydict({"partition": pa.array([number], pa.int32())})


def _without_marks(table: pa.Table) -> tuple[pa.Table, int, str]:
    """Returns the input rows, without a copy, and the planned time and frame id of a marker row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    marks = pc.indices_nonzero(pc.is_valid(table[PLANNED_COLUMN])).to_pylist()
    planned, frame = 0, ""
    for at in marks:
        if table[FRAME_COLUMN][at].is_valid:
            planned, frame = table[PLANNED_COLUMN][at].as_py(), table[FRAME_COLUMN][at].as_py()
    rows = table.drop_columns([PLANNED_COLUMN, FRAME_COLUMN, PARTITION_COLUMN])
    begins, ends = [0, *(at + 1 for at in marks)], [*marks, rows.num_rows]
    pieces = [rows.slice(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
    kept = [piece for piece in pieces if piece.num_rows] or pieces[:1]
    return pa.concat_tables(kept), planned, frame


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise InternalError("running transform_with_state", found="this is not a task of Spark")
    return context


def task_place(plan: StreamPlan, planned: str, frame: str) -> TaskPlace:
    """Returns the place of this task in its streaming query.

    Args:
        planned: Time for which the batch was planned, from the marker row.
        frame: Frame id, from the marker row.

    Raises:
        UsageError: The task does not belong to a streaming query.
    """
    context = _context()
    batch = context.getLocalProperty("streaming.sql.batchId")
    query_id = context.getLocalProperty("sql.streaming.queryId")
    run_id = context.getLocalProperty("spark.jobGroup.id")
    if not (batch and query_id and run_id):
        raise UsageError(
            f"running transform_with_state on store '{plan.name}'",
            found="the task is not one of a streaming query's batch",
            advice=(
                "Start the DataFrame as a query; for batches use map_partitions_with_state_store. "
                "Over Spark Connect, foreachBatch evaluates it outside of the batch: use another "
                "sink."
            ),
        )
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"running transform_with_state on store '{plan.name}'",
            found="the job group is not the one that Spark gave the run of the query",
            advice=(
                "Do not call setJobGroup in the function of foreachBatch: the group identifies "
                "the run of a query."
            ),
        )
    number, attempt = context.partitionId(), context.taskAttemptId()
    return TaskPlace(query_id, run_id, int(batch), number, attempt, planned, frame)
