"""Spark task for one partition of a batch: open, run the function, commit; no pyspark.

Rows come as Arrow batches of two columns: the number of the partition, and the row as a struct. One
row of each partition has no struct, so that a partition without rows runs, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from redis_state.batches.driver import Batch, superseded
from redis_state.codec import MSGPACK, RAW, Codec
from redis_state.config import Config
from redis_state.errors import ConflictError, InternalError, UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.spark.rows import RowFormat, rows_of_structs
from redis_state.spark.worker import WORKER, ConfiguredPartition
from redis_state.store import KeyValue, StateStore, StateStoreMetrics
from redis_state.store.provider import StateStoreProvider

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator

_CODECS = {codec.name: codec for codec in (MSGPACK, RAW)}


class BatchStore:
    """Store that a function gets: a `StateStore` without `commit` and `abort`.

    The task calls `commit` when the function has read all its rows and returned.
    """

    __slots__ = (
        "_store",
        "get",
        "get_many",
        "prefetch",
        "put",
        "put_many",
        "remove",
        "remove_many",
    )

    get: Callable[[Any], Any]
    """Returns the value of a key; ``None`` if the key is absent."""
    get_many: Callable[[Iterable[Any]], list[Any]]
    """Returns the values of keys, in their order; ``None`` for each absent key."""
    prefetch: Callable[[Iterable[Any]], int]
    """Reads the rows of keys into memory together. See `ReadStateStore.prefetch`."""
    put: Callable[[Any, Any], None]
    """Sets the value of a key."""
    put_many: Callable[..., None]
    """Sets the values of many keys; none if one is refused. See `StateStore.put_many`."""
    remove: Callable[[Any], None]
    """Removes a key; an absent key is ignored."""
    remove_many: Callable[[Iterable[Any]], None]
    """Removes many keys; none if one of them is refused."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.get, self.put, self.remove = store.get, store.put, store.remove
        self.get_many, self.put_many = store.get_many, store.put_many
        self.remove_many, self.prefetch = store.remove_many, store.prefetch

    def __repr__(self) -> str:
        return f"BatchStore({self.id}, version={self.version})"

    @property
    def id(self) -> StateStoreId:
        """Returns the id of the partition."""
        return self._store.id

    @property
    def version(self) -> int:
        """Returns the version that the batch starts from."""
        return self._store.version

    def get_range(self, start: Any | None = None, end: Any | None = None) -> Iterator[KeyValue]:
        """Iterates over a range of rows; see `ReadStateStore.get_range`."""
        return self._store.get_range(start, end)

    def prefix_scan(self, prefix: Any) -> Iterator[KeyValue]:
        """Iterates over rows by key prefix; see `ReadStateStore.prefix_scan`."""
        return self._store.prefix_scan(prefix)

    def iterator(self) -> Iterator[KeyValue]:
        """Iterates over all rows in key order, as of the call."""
        return self._store.iterator()

    @property
    def metrics(self) -> StateStoreMetrics:
        """Returns the metrics of this store."""
        return self._store.metrics


Function = Callable[[BatchStore, Iterator[Any]], "Iterable[Any] | None"]


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """Runs a function over the rows of one partition; is serialized to the tasks.

    Attributes:
        codec: Name of a built-in codec, else the codec: the store has fast paths for built-in
            codecs, which it recognizes by identity.
        wide: Schema of the output with one more column, whose last row holds the partition's
            figures as JSON; ``None`` adds neither column nor row.
    """

    batch: Batch
    config: Config
    codec: Codec | str
    function: Function
    format: RowFormat
    sums: Accumulator[dict[str, int]] | None = None
    wide: pa.Schema | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the function's output, then commits.

        Raises:
            ConflictError: `map_partitions_with_state_store` was called again in the meantime.
            UsageError: The function returned before the end of its rows, or yielded no rows.
        """
        partition = PartitionRows(self.batch.name, batches)
        number = partition.number
        if number is None:
            return
        what = f"evaluating batch {self.batch.number} of store '{self.batch.name}'"
        client = WORKER.client(self.config)
        try:
            late = superseded(client, self.batch, what)
            if late is not None:
                raise late
            provider = self._provider(number)
            store = provider.get_store(self.batch.version)
            yield from self._evaluate(store, partition)
            figures = _figures(store)
            # The store references the version, whose memory maintenance may have to free.
            del store
            WORKER.maintain(self.config, provider, self.batch.number + number)
            figures |= provider.custom_metrics
            if self.sums is not None:
                self.sums.add(figures)
            WORKER.keep(self._place(number), provider, self.batch.run.run_id)
            if self.wide is not None:
                yield _only_figures(figures, self.wide)
        except ConflictError as error:
            raise superseded(client, self.batch, what) or error from error.__cause__

    def _evaluate(
        self, store: StateStore, partition: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        rows = self.format.read(partition)
        given = None
        try:
            given = self.function(BatchStore(store), rows)
            if given is not None:
                written = self.format.write(given)
                wide = self.wide
                yield from written if wide is None else (_widened(one, wide) for one in written)
            if next(rows, None) is not None:
                raise self._unread(store)
            store.commit()
        finally:
            if not store.has_committed:
                close = getattr(given, "close", None)
                if close is not None:
                    close()
                store.abort()

    def _unread(self, store: StateStore) -> UsageError:
        return UsageError(
            f"evaluating batch {self.batch.number} of store '{self.batch.name}'",
            found="the function returned before it had read all of its rows",
            advice="Read all rows, even those that you do not need: a partition that was read "
            "only in part is not committed. Nothing was changed.",
            where=str(store.id),
        )

    def _provider(self, partition: int) -> StateStoreProvider:
        run = self.batch.run
        return WORKER.serve(
            self._place(partition),
            StateStoreProviderId(self.batch.store_id(partition), run.run_id),
            run,
            codec=_CODECS[self.codec] if isinstance(self.codec, str) else self.codec,
        )

    def _place(self, partition: int) -> ConfiguredPartition:
        return self.config, self.batch.partition(partition)


class PartitionRows:
    """Rows of a partition as Arrow batches, without the row that marks the partition."""

    def __init__(self, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        self._name = name
        first = next((one for one in batches if one.num_rows), None)
        self._batches = batches if first is None else chain([first], batches)
        self.number: int | None = None if first is None else first.column(0)[0].as_py()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        for batch in self._batches:
            numbers, structs = batch.columns
            bounds = pc.min_max(numbers).as_py()
            if batch.num_rows and bounds != {"min": self.number, "max": self.number}:
                raise InternalError(
                    f"reading the rows of partition {self.number} of store '{self._name}'",
                    found=f"one task has rows of partitions {bounds['min']} to {bounds['max']}",
                )
            rows = rows_of_structs(structs)
            if rows.num_rows:
                yield rows


def _figures(store: StateStore) -> dict[str, int]:
    found = store.metrics
    return {"num_keys": found.num_keys, "memory_bytes": found.memory_bytes, **found.custom}


def _widened(batch: pa.RecordBatch, wide: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    none = pa.nulls(batch.num_rows, wide.field(len(wide) - 1).type)
    return pa.RecordBatch.from_arrays([*batch.columns, none], schema=wide)


def _only_figures(figures: Mapping[str, int], wide: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    *others, last = wide
    columns = [pa.nulls(1, field.type) for field in others]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array([json.dumps(figures)], last.type)], schema=wide
    )
