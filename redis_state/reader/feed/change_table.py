"""Changed rows as Arrow batches: the batch, the kind of change, the key, and the value after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from redis_state.errors import UsageError
from redis_state.format.header import Family
from redis_state.format.rows import split_elements
from redis_state.reader.feed.change_spans import SpanRow
from redis_state.reader.table_columns import RowCodec
from redis_state.reader.tables.column_arrays import key_columns, value_columns
from redis_state.rows.arrow_types import arrow_field, cast_whole
from redis_state.rows.typed_rows import TypedRowCodec
from redis_state.types.schema import Struct

if TYPE_CHECKING:
    import pyarrow as pa

BATCH, CHANGE, KEY, VALUE = "batch", "change", "key", "value"
ROWS = 16_384
"""Most rows of a batch."""

_BYTES_MAX = 16 << 20


def change_schema(codec: RowCodec) -> pa.Schema:
    """Returns the columns of changes: key and value are structs; list state has lists of structs.

    A store of Python has no columns: its keys and values are JSON texts.
    """
    import pyarrow as pa

    key, value = (_whole(columns) for columns in codec.columns)
    if codec.family.multi_value:
        value = pa.list_(value)
    return pa.schema(
        [
            pa.field(BATCH, pa.int64()),
            pa.field(CHANGE, pa.string()),
            pa.field(KEY, key),
            pa.field(VALUE, value),
        ]
    )


def change_batches(
    rows: Iterable[SpanRow], made: Callable[[Family], RowCodec], wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields rows as batches with the wanted columns.

    State columns that `wanted` lacks are left out, and columns that a row lacks are null. The
    query's columns may have changed since the schema was requested.

    Args:
        made: Returns the codec of a family.
        wanted: Some of the columns of `change_schema`, by their names.

    Raises:
        FormatError: Bytes are damaged.
        UsageError: A value does not fit its type.
    """
    for some in _pieces(rows):
        for (family, after), group in groupby(some, lambda row: (row.family, row.after)):
            yield _batch(list(group), made(family), after and made(after), wanted)


def _pieces(rows: Iterable[SpanRow]) -> Iterator[list[SpanRow]]:
    some: list[SpanRow] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row.key) + len(row.value or b"")
        if len(some) == ROWS or size >= _BYTES_MAX:
            yield some
            some, size = [], 0
    if some:
        yield some


def _batch(
    rows: Sequence[SpanRow], of_key: RowCodec, of_value: RowCodec | None, wanted: pa.Schema
) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for field in wanted:
        match field.name:
            case "batch":
                made = pa.array([row.batch for row in rows], type=pa.int64())
            case "change":
                made = pa.array([row.kind for row in rows], type=pa.string())
            case "key":
                keys = key_columns(_only(of_key, 0, field.type), [row.key for row in rows])
                made = _struct(of_key.columns[0], keys, len(rows))
            case "value" if of_value is not None:
                made = _values(rows, _only(_as_wanted(of_value, field.type), 1, field.type))
            case "value":
                made = pa.nulls(len(rows), field.type)
            case _:
                raise UsageError(
                    "reading changes of the state",
                    found=f"changes have no column '{field.name}'",
                    advice=f"Columns: {BATCH}, {CHANGE}, {KEY}, {VALUE}.",
                )
        columns.append(_fitted(made, field.type, field.name))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _values(rows: Sequence[SpanRow], codec: RowCodec) -> pa.Array:
    """Returns the values, null where the key was removed."""
    import pyarrow as pa

    there = [row.value for row in rows if row.value is not None]
    if codec.family.multi_value:
        lists = [split_elements(value) for value in there]
        elements = [element for one in lists for element in one]
        flat = _struct(codec.columns[1], value_columns(codec, elements), len(elements))
        offsets = [0]
        for one in lists:
            offsets.append(offsets[-1] + len(one))
        made = pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), flat)
    else:
        made = _struct(codec.columns[1], value_columns(codec, there), len(there))
    places: list[int | None] = []
    count = 0
    for row in rows:
        places.append(None if row.value is None else count)
        count += row.value is not None
    return made.take(pa.array(places, type=pa.int64()))


def _as_wanted(codec: RowCodec, type_: pa.DataType) -> RowCodec:
    """Returns the codec with or without a time to live in each row, to fit the wanted type.

    Another family records whether rows expire. Where a time to live was added or removed, some rows
    have one and others do not.
    """
    import pyarrow as pa

    if not isinstance(codec, TypedRowCodec):
        return codec
    inner = type_.value_type if pa.types.is_list(type_) else type_
    expiring = replace(codec, expires=True)
    names = [inner.field(at).name for at in range(inner.num_fields)]
    if pa.types.is_struct(inner) and names == list(expiring.columns[1].names) != list(
        codec.value.names
    ):
        return expiring
    return replace(codec, expires=False)


def _only(codec: RowCodec, part: int, type_: pa.DataType) -> RowCodec:
    """Returns the codec restricted to the columns of a struct; others are not parsed.

    Args:
        part: 0 for a key, 1 for a value.
    """
    import pyarrow as pa

    inner = type_.value_type if pa.types.is_list(type_) else type_
    columns = codec.columns[part]
    if columns is None or not pa.types.is_struct(inner):
        return codec
    wanted = {inner.field(at).name for at in range(inner.num_fields)}
    places = [at for at, name in enumerate(columns.names) if name in wanted]
    if len(places) == len(columns.names):
        return codec
    return codec.only(places, ()) if part == 0 else codec.only((), places)


def _whole(columns: Struct | None) -> pa.DataType:
    import pyarrow as pa

    if columns is None:
        return pa.string()
    return pa.struct([arrow_field(field) for field in columns.fields])


def _struct(columns: Struct | None, arrays: Sequence[pa.Array], rows: int) -> pa.Array:
    """Returns one array of all columns; a store of Python has one column."""
    import pyarrow as pa

    if columns is None:
        return arrays[0]
    if not columns.fields:  # the key of an aggregation without a group
        return pa.array([{}] * rows, type=pa.struct([]))
    fields = [arrow_field(field) for field in columns.fields]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _fitted(array: pa.Array, type_: pa.DataType, name: str) -> pa.Array:
    """Casts an array to a type; matches fields of structs by name."""
    import pyarrow as pa

    if array.type == type_:
        return array
    if pa.types.is_struct(array.type) and pa.types.is_struct(type_) and type_.num_fields:
        there = {field.name: at for at, field in enumerate(array.type)}
        children = [
            _fitted(array.field(there[field.name]), field.type, f"{name}.{field.name}")
            if field.name in there
            else pa.nulls(len(array), field.type)
            for field in type_
        ]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    if pa.types.is_list(array.type) and pa.types.is_list(type_):
        flat = _fitted(array.flatten(), type_.value_type, name)
        sizes = array.value_lengths().fill_null(0).to_pylist()
        offsets: list[int | None] = [0]
        for size in sizes:
            offsets.append((offsets[-1] or 0) + size)
        return pa.ListArray.from_arrays(
            pa.array(offsets, type=pa.int32()), flat, type=type_, mask=array.is_null()
        )
    return cast_whole(array, type_, name=name, what="reading changes of the state")
