"""Groups rows of a partition by key, as pandas frames, rows or Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from redis_state.spark.rows import frame_of

if TYPE_CHECKING:
    import pyarrow as pa

RowForm = Literal["pandas", "rows", "arrow"]
FORMS: tuple[RowForm, ...] = ("pandas", "rows", "arrow")

KeyedRows = tuple[tuple[Any, ...], Any]
"""A key and its rows, in the requested form."""


def groups(
    table: pa.Table, keys: Sequence[str], form: RowForm, time_zone: str
) -> Iterator[KeyedRows]:
    """Yields the groups in the order of their keys; rows of a group keep the table's order."""
    if not table.num_rows:
        return
    ordered = _in_order(table, keys)
    found = [_as_key(ordered[name].combine_chunks()) for name in keys]
    starts = _starts(found)
    values = zip(*(column.take(starts).to_pylist() for column in found), strict=True)
    spans = zip(starts, [*starts[1:], ordered.num_rows], strict=True)
    if form == "arrow":
        for key, (start, end) in zip(values, spans, strict=True):
            yield key, ordered.slice(start, end - start)
    elif form == "rows":
        rows = rows_of(ordered)
        for key, (start, end) in zip(values, spans, strict=True):
            yield key, rows[start:end]
    else:
        import pandas as pd

        frame = frame_of(ordered, time_zone)
        for key, (start, end) in zip(values, spans, strict=True):
            part = frame.iloc[start:end]
            part.index = pd.RangeIndex(end - start)
            yield key, part


def _in_order(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [part for name in keys for part in _parts(table[name].combine_chunks())]
    names = [str(number) for number in range(len(columns))]
    order = pc.sort_indices(
        pa.Table.from_arrays(columns, names), [(name, "ascending") for name in names]
    )
    return table.take(order).combine_chunks()


def _starts(keys: Sequence[pa.Array]) -> list[int]:
    """Returns the index at which each group begins."""
    import numpy as np

    begins = np.zeros(len(keys[0]), dtype=bool)
    begins[0] = True
    for column in (part for key in keys for part in _parts(key)):
        codes = column.dictionary_encode(null_encoding="encode")
        numbers = codes.indices.to_numpy(zero_copy_only=False)
        begins[1:] |= numbers[1:] != numbers[:-1]
    found: list[int] = np.flatnonzero(begins).tolist()
    return found


def _parts(column: pa.Array) -> Iterator[pa.Array]:
    """Yields columns that Arrow can sort and compare: for a struct its validity, and its fields."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        yield column.is_valid()
        for number in range(column.type.num_fields):
            yield from _parts(pc.struct_field(column, number))
    else:
        yield _as_key(column)


def _as_key(column: pa.Array) -> pa.Array:
    """Normalizes floating-point numbers as Spark groups them: one zero, and one NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return column
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def rows_of(table: pa.Table) -> list[Any]:
    """Converts a table to PySpark's rows."""
    from pyspark.sql import Row

    make = Row(*table.schema.names)
    columns = [column.to_pylist() for column in table.columns]
    return [make(*values) for values in zip(*columns, strict=True)]
