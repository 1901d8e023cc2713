"""One partition of a batch: the processor's calls in Spark's order, and their output.

The order is that of Spark's `TransformWithStateInPandasExec`: initial state, the rows of each
group, the due timers, and then the removal of expired state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor

from redis_state.batches.event_time import declare_notes, note_times
from redis_state.batches.streams import Inputs
from redis_state.spark.processor.ahead import read_ahead
from redis_state.spark.processor.groups import RowForm, groups
from redis_state.spark.processor.handle import Handle, ProcessorQueryInfo, Times
from redis_state.spark.processor.output import output_of

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_state.store.family_store import FamilyStore


@dataclass(frozen=True, slots=True)
class Engine:
    """Runs a processor over the rows of one partition; is serialized to the tasks.

    Attributes:
        form: Row form of the processor's input and output.
        output: Schema of the output.
        ttl_ms: Time to live of state variables without one of their own; ``None`` for none.
    """

    processor: StatefulProcessor
    inputs: Inputs
    form: RowForm
    output: pa.Schema
    ttl_ms: int | None = None

    def run(
        self,
        store: FamilyStore,
        table: pa.Table,
        began_ms: int,
        watermark_ms: int,
        info: ProcessorQueryInfo,
        initial: pa.Table | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the processor's output. The caller commits the store after reading all of it.

        Args:
            table: Rows of the partition.
            initial: Rows of an initial state, which the processor handles first.
            began_ms: Processing time of the batch, in ms since 1970.
            watermark_ms: Watermark of the batch, in ms since 1970.

        Raises:
            UsageError: The processor declares a variable that does not fit, or its output does not
                fit the schema.
        """
        table = note_times(store, table, self.inputs.event_time, watermark_ms)
        times = Times(self.inputs.mode, began_ms, watermark_ms)
        given = self._given(store, table, times, info, initial)
        return output_of(given, self.form, self.output, self.inputs.time_zone)

    def take_initial(
        self, store: FamilyStore, table: pa.Table, began_ms: int, info: ProcessorQueryInfo
    ) -> None:
        """Passes an initial state to the processor, before the first batch.

        Args:
            table: Rows of the initial state in the partition.
            began_ms: The processing time, in ms since 1970.

        Raises:
            UsageError: The processor declares a variable that does not fit.
        """
        declare_notes(store)
        with self._handle(store, Times(self.inputs.mode, began_ms, 0), info) as handle:
            self._initial(handle, table)

    def _given(
        self,
        store: FamilyStore,
        table: pa.Table,
        times: Times,
        info: ProcessorQueryInfo,
        initial: pa.Table | None,
    ) -> Iterator[Any]:
        """Yields frames, rows or tables, depending on the form."""
        with self._handle(store, times, info) as handle:
            if initial is not None:
                self._initial(handle, initial)
            yield from self._rows(handle, table, times)
            yield from self._timers(handle, times)
            handle.expire()

    @contextmanager
    def _handle(
        self, store: FamilyStore, times: Times, info: ProcessorQueryInfo
    ) -> Iterator[Handle]:
        handle = Handle(store, self.inputs.key_schema, times, info, ttl_ms=self.ttl_ms)
        self.processor.init(handle)
        handle.close_declarations()
        try:
            yield handle
        finally:
            self.processor.close()

    def _begin(self, handle: Handle, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """Makes a group the current one; returns its key for the processor."""
        handle.group.key = handle.keys.encode(found)
        # Keys of timers are decoded from these bytes, too: so a group has one key in all calls.
        return found if handle.keys.plain else handle.keys.decode(handle.group.key)

    def _initial(self, handle: Handle, table: pa.Table) -> None:
        values = handle.times.values
        for found, rows in groups(table, self.inputs.keys, self.form, self.inputs.time_zone):
            key = self._begin(handle, found)
            for one in rows if self.form == "rows" else (rows,):
                self.processor.handleInitialState(key, one, values)

    def _rows(self, handle: Handle, table: pa.Table, times: Times) -> Iterator[Any]:
        call, values = self.processor.handleInputRows, times.values
        alone = self.form != "rows"
        found_groups = groups(table, self.inputs.keys, self.form, self.inputs.time_zone)
        for found, rows in read_ahead(handle, found_groups):
            key = self._begin(handle, found)
            given: Iterable[Any] | None = call(key, iter((rows,) if alone else rows), values)
            yield from given or ()

    def _timers(self, handle: Handle, times: Times) -> Iterator[Any]:
        values = times.values
        for at_ms, encoded in handle.due_timers():
            handle.group.key = encoded
            key = handle.keys.decode(encoded)
            given: Iterable[Any] | None = self.processor.handleExpiredTimer(
                key, values, ExpiredTimerInfo(at_ms)
            )
            yield from given or ()
            handle.deleteTimer(at_ms)
