"""State by columns: a function over the Arrow table of a partition, and the state of its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis_state.batches.event_time import note_times
from redis_state.codec.typed_row import TypedRow
from redis_state.errors import UsageError
from redis_state.spark.processor.arrow_values import values_of
from redis_state.spark.processor.own_keys import OwnKeys
from redis_state.spark.rows import RowFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_state.batches.streams import Inputs
    from redis_state.spark.processor.handle import Handle, ProcessorQueryInfo
    from redis_state.store.family_store import FamilyStore

EXPIRY = "expiry_ms"

ColumnFunction = Callable[["ColumnState", "pa.Table"], "pa.Table | None"]


class ColumnState:
    """State of all keys of a partition, one row of state columns for each key.

    Keys are an Arrow array if there is one key column, else a table with the key columns. They must
    be keys of this partition: those of its rows and of its due timers. Nothing is written before
    the function has returned and its output was read.

    Attributes:
        times: Processing time and watermark of the batch, in ms since 1970.
        info: Ids of query, run and batch.
    """

    def __init__(
        self,
        handle: Handle,
        prefix: bytes,
        row: TypedRow,
        schema: pa.Schema,
        keys: pa.Schema,
        own: OwnKeys,
    ) -> None:
        self._handle = handle
        self._store = handle.store
        self._prefix = prefix
        self._row = row
        self._schema = schema
        self._keys = keys
        self._own = own
        self.times = handle.times
        self.info = handle.info

    def get(self, keys: Any) -> pa.Table:
        """Returns the state of keys, in their order: a row of nulls for each key without state.

        Raises:
            UsageError: The keys are of other types than the key columns, or a key is of another
                partition.
        """
        import pyarrow as pa

        columns, encoded = self._encoded(keys)
        stored = self._stored(encoded)
        found = self._store.get_many(stored)
        self._check_absent(columns, encoded, found, "looking for the state of keys")
        decode = self._row.decode
        none = (None,) * len(self._schema)
        rows = [none if data is None else decode(data) for data in found]
        values = zip(*rows, strict=True) if rows else ([] for _ in self._schema)
        arrays = [
            pa.array(column, type=field.type)
            for column, field in zip(values, self._schema, strict=True)
        ]
        return pa.table(arrays, schema=self._schema)

    def put(self, keys: Any, columns: pa.Table | pa.RecordBatch) -> None:
        """Sets the state of keys; of two rows of one key the later one counts.

        Args:
            columns: The state columns by their names, with a row for each key.

        Raises:
            UsageError: A column is missing, its values do not fit, there are more keys than rows or
                fewer, or a key is of another partition. Nothing was changed.
        """
        key_columns, encoded = self._encoded(keys)
        self._own.check(key_columns, encoded, "putting the state of keys")
        stored = self._stored(encoded)
        missing = [name for name in self._row.names if name not in columns.schema.names]
        if missing or columns.num_rows != len(stored):
            raise UsageError(
                "putting the state of keys",
                found=f"there is no column '{missing[0]}'"
                if missing
                else f"{len(stored)} keys and {columns.num_rows} rows",
                advice=f"Give a row for each key, with the columns {', '.join(self._row.names)}.",
            )
        encode = self._row.encode
        lists = [
            values_of(columns.column(field.name), field.type, f"state column '{field.name}'")
            for field in self._schema
        ]
        rows = zip(stored, zip(*lists, strict=True), strict=True)
        self._store.put_many({key: encode(row) for key, row in rows})

    def remove(self, keys: Any) -> None:
        """Removes the state of keys; keys without state are ignored.

        Raises:
            UsageError: The keys are of other types than the key columns, or a key without state is
                of another partition.
        """
        columns, encoded = self._encoded(keys)
        stored = self._stored(encoded)
        if self._own.others(columns, encoded):
            found = self._store.get_many(stored)
            self._check_absent(columns, encoded, found, "removing the state of keys")
        self._store.remove_many(stored)

    def expired(self) -> pa.Table:
        """Removes the due timers and returns them: the key columns, and ``expiry_ms``.

        The rows are in the order of their times. Without a time mode the table is empty.
        """
        import pyarrow as pa

        found = list(self._handle.due_timers())
        keys = [self._own.codec.decode(encoded) for _, encoded in found]
        for at_ms, encoded in found:
            self._handle.group.key = encoded
            self._handle.deleteTimer(at_ms)
        columns = zip(*keys, strict=True) if keys else ([] for _ in self._keys)
        arrays = [
            pa.array(column, type=field.type)
            for column, field in zip(columns, self._keys, strict=True)
        ]
        times = pa.array([at_ms for at_ms, _ in found], type=pa.int64())
        return pa.table([*arrays, times], names=[*self._keys.names, EXPIRY])

    def set_timers(self, keys: Any, expiry_ms: Any) -> None:
        """Sets a timer for each key, in ms since 1970.

        Raises:
            UsageError: There is no time mode, there are more keys than times or fewer, or a key is
                of another partition.
        """
        self._each_timer(keys, expiry_ms, self._handle.registerTimer)

    def delete_timers(self, keys: Any, expiry_ms: Any) -> None:
        """Deletes a timer of each key; an absent timer is ignored.

        Raises:
            UsageError: See `set_timers`.
        """
        self._each_timer(keys, expiry_ms, self._handle.deleteTimer)

    def _each_timer(self, keys: Any, expiry_ms: Any, call: Callable[[int], None]) -> None:
        columns, encoded = self._encoded(keys)
        self._own.check(columns, encoded, "changing timers")
        times = expiry_ms.to_pylist() if hasattr(expiry_ms, "to_pylist") else list(expiry_ms)
        if len(times) != len(encoded):
            raise UsageError(
                "changing timers",
                found=f"{len(encoded)} keys and {len(times)} times",
                advice="Give a time for each key.",
            )
        for key, at_ms in zip(encoded, times, strict=True):
            self._handle.group.key = key
            call(at_ms)

    def _stored(self, encoded: Sequence[bytes]) -> list[bytes]:
        prefix = self._prefix
        return [prefix + key for key in encoded]

    def _encoded(self, keys: Any) -> tuple[list[list[Any]], list[bytes]]:
        """Returns the values of the key columns, and the encoded keys."""
        if hasattr(keys, "column_names"):
            columns = [self._key_values(keys.column(field.name), field) for field in self._keys]
        elif len(self._keys) == 1:
            columns = [self._key_values(keys, self._keys.field(0))]
        else:
            raise UsageError(
                "looking for the state of keys",
                found=f"there are {len(self._keys)} key columns, and one array was given",
                advice=f"Give a table with the columns {', '.join(self._keys.names)}.",
            )
        encode = self._handle.keys.encode
        return columns, [encode(key) for key in zip(*columns, strict=True)]

    def _check_absent(
        self,
        columns: Sequence[Sequence[Any]],
        encoded: Sequence[bytes],
        found: Sequence[bytes | None],
        attempted: str,
    ) -> None:
        """Refuses keys of other partitions, except those that an earlier release put here."""
        absent = [at for at, data in enumerate(found) if data is None]
        if absent:
            some = [[column[at] for at in absent] for column in columns]
            self._own.check(some, [encoded[at] for at in absent], attempted)

    def _key_values(self, column: Any, field: pa.Field) -> list[Any]:
        if not hasattr(column, "to_pylist"):
            return list(column)
        return values_of(column, field.type, f"key column '{field.name}'")


@dataclass(frozen=True, slots=True)
class ColumnEngine:
    """Runs a function over the table of one partition; is serialized to the tasks.

    Attributes:
        state: The state columns, as Spark's JSON; `state_schema` is their Arrow schema.
        name: Name of the state for live reads.
        output: Schema of the output.
        partitions: Number of the store's partitions; ``None`` for a batch DataFrame, whose state
            ends with it.
    """

    function: ColumnFunction
    inputs: Inputs
    state: str
    state_schema: pa.Schema
    name: str
    output: pa.Schema
    partitions: int | None = None

    def run(
        self,
        store: FamilyStore,
        table: pa.Table,
        began_ms: int,
        watermark_ms: int,
        info: ProcessorQueryInfo,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the output of the function; see `Engine.run` for arguments and errors."""
        # Imported here: these modules import pyspark, which readers lack.
        from redis_state.spark.processor.handle import Handle, Times

        table = note_times(store, table, self.inputs.event_time, watermark_ms)
        times = Times(self.inputs.mode, began_ms, watermark_ms)
        handle = Handle(store, self.inputs.key_schema, times, info)
        prefix, row = handle.declare_columns(self.name, self.state)
        handle.close_declarations()
        keys = table.select(list(self.inputs.keys)).schema
        own = OwnKeys(self.inputs.key_schema, store.id.partition_id, self.partitions)
        state = ColumnState(handle, prefix, row, self.state_schema, keys, own)
        given = self.function(state, table)
        if given is not None:
            yield from RowFormat("arrow", self.output, self.inputs.time_zone).write([given])
