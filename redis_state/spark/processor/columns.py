"""State by columns: a function over the Arrow table of a partition, and the state of its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    from redis_state.spark.processor.state import CurrentGroup, TimeToLive
    from redis_state.store.family_store import FamilyStore

EXPIRY = "expiry_ms"

ColumnFunction = Callable[["ColumnState", "pa.Table"], "pa.Table | None"]


class ColumnRows:
    """Rows of state columns by their encoded keys, many at a time.

    Attributes:
        names: Names of the columns.
    """

    def __init__(
        self,
        store: FamilyStore,
        prefix: bytes,
        row: TypedRow,
        group: CurrentGroup,
        ttl: TimeToLive | None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._row = row
        self._group = group
        self._ttl = ttl
        self.names = row.names

    def get_many(self, keys: Sequence[bytes]) -> list[tuple[Any, ...] | None]:
        """Returns the rows of keys in their order; ``None`` if a row is absent or has expired."""
        found = self._store.get_many(self._stored(keys))
        if self._ttl is None:
            decode = self._row.decode
            return [None if data is None else decode(data) for data in found]
        now_ms, decode_timed = self._group.now_ms, self._row.decode_with_expiry
        rows: list[tuple[Any, ...] | None] = []
        for data in found:
            expiry, row = (None, None) if data is None else decode_timed(data)
            rows.append(None if expiry is not None and expiry <= now_ms else row)
        return rows

    def put_many(self, keys: Sequence[bytes], rows: Iterable[tuple[Any, ...]]) -> None:
        """Sets the rows of keys; of two rows of one key the later one counts."""
        encode, stored = self._row.encode, self._stored(keys)
        expiry = None if self._ttl is None else self._ttl.begins()
        encoded = {key: encode(row, expiry) for key, row in zip(stored, rows, strict=True)}
        for key, before in self._expiries(keys).items():
            assert self._ttl is not None
            self._ttl.begin(key, before)
        self._store.put_many(encoded)

    def remove_many(self, keys: Sequence[bytes]) -> None:
        """Removes the rows of keys; absent keys are ignored."""
        for key, before in self._expiries(keys).items():
            assert self._ttl is not None
            self._ttl.end(key, before)
        self._store.remove_many(self._stored(keys))

    def _expiries(self, keys: Sequence[bytes]) -> dict[bytes, int | None]:
        """Returns the expiries that rows have now; empty without a time to live."""
        if self._ttl is None:
            return {}
        found = self._store.get_many(self._stored(keys))
        expiry = self._row.expiry
        return {
            key: None if data is None else expiry(data)
            for key, data in zip(keys, found, strict=True)
        }

    def _stored(self, keys: Sequence[bytes]) -> list[bytes]:
        prefix = self._prefix
        return [prefix + key for key in keys]


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
        rows: ColumnRows,
        schema: pa.Schema,
        keys: pa.Schema,
        own: OwnKeys,
    ) -> None:
        self._handle = handle
        self._rows = rows
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
        found = self._rows.get_many(encoded)
        self._check_absent(columns, encoded, found, "looking for the state of keys")
        none = (None,) * len(self._schema)
        rows = [none if row is None else row for row in found]
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
        names = self._rows.names
        missing = [name for name in names if name not in columns.schema.names]
        if missing or columns.num_rows != len(encoded):
            raise UsageError(
                "putting the state of keys",
                found=f"there is no column '{missing[0]}'"
                if missing
                else f"{len(encoded)} keys and {columns.num_rows} rows",
                advice=f"Give a row for each key, with the columns {', '.join(names)}.",
            )
        lists = [
            values_of(columns.column(field.name), field.type, f"state column '{field.name}'")
            for field in self._schema
        ]
        self._rows.put_many(encoded, zip(*lists, strict=True))

    def remove(self, keys: Any) -> None:
        """Removes the state of keys; keys without state are ignored.

        Raises:
            UsageError: The keys are of other types than the key columns, or a key without state is
                of another partition.
        """
        columns, encoded = self._encoded(keys)
        if self._own.others(columns, encoded):
            found = self._rows.get_many(encoded)
            self._check_absent(columns, encoded, found, "removing the state of keys")
        self._rows.remove_many(encoded)

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
        found: Sequence[Any],
        attempted: str,
    ) -> None:
        """Refuses keys of other partitions, except those that an earlier release put here."""
        absent = [at for at, row in enumerate(found) if row is None]
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
        ttl_ms: Time to live of the state of a key; ``None`` for none.
    """

    function: ColumnFunction
    inputs: Inputs
    state: str
    state_schema: pa.Schema
    name: str
    output: pa.Schema
    partitions: int | None = None
    ttl_ms: int | None = None

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
        handle = Handle(store, self.inputs.key_schema, times, info, ttl_ms=self.ttl_ms)
        prefix, row, ttl = handle.declare_columns(self.name, self.state)
        handle.close_declarations()
        keys = table.select(list(self.inputs.keys)).schema
        own = OwnKeys(self.inputs.key_schema, store.id.partition_id, self.partitions)
        rows = ColumnRows(store, prefix, row, handle.group, ttl)
        state = ColumnState(handle, rows, self.state_schema, keys, own)
        given = self.function(state, table)
        if given is not None:
            yield from RowFormat("arrow", self.output, self.inputs.time_zone).write([given])
        handle.expire()
