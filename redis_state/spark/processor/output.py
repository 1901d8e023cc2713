"""Converts the output of a processor to Arrow batches of the output's schema; no pyspark.

A processor yields one small frame or a few rows for each of very many groups. They are collected by
column before Arrow sees them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from redis_state.spark.processor.groups import RowForm
from redis_state.spark.rows import RowFormat

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 10_000
_SHORT = 64


def output_of(given: Iterable[Any], form: RowForm, schema: pa.Schema, zone: str) -> Iterator[Any]:
    """Converts the output to record batches.

    Raises:
        UsageError: The output is not of the given form, or does not fit the schema.
    """
    if form == "arrow":
        return RowFormat("arrow", schema, zone).write(given)
    if form == "rows":
        return RowFormat("dicts", schema, zone).write(_dicts(given, schema))
    return _of_frames(given, RowFormat("pandas", schema, zone))


def _dicts(given: Iterable[Any], schema: pa.Schema) -> Iterator[Any]:
    import pyarrow as pa

    nested = any(pa.types.is_nested(field.type) for field in schema)
    for row in given:
        fields = getattr(row, "__fields__", None)
        if fields is None:
            yield row
        elif nested:
            yield row.asDict(recursive=True)
        else:
            yield dict(zip(fields, row, strict=True))


def _of_frames(given: Iterable[Any], format_: RowFormat) -> Iterator[pa.RecordBatch]:
    import pandas as pd
    import pyarrow as pa

    schema = format_.schema
    names = schema.names
    zoned = any(pa.types.is_timestamp(field.type) for field in schema)
    columns: list[list[Any]] = [[] for _ in names]

    def together() -> Iterator[pa.RecordBatch]:
        if columns and columns[0]:
            yield format_.batch_of(columns)
            for column in columns:
                column.clear()

    for frame in given:
        short = isinstance(frame, pd.DataFrame) and 0 < len(frame) <= _SHORT and not zoned
        if short and len(frame.columns) == len(names) and set(frame.columns) == set(names):
            for name, column in zip(names, columns, strict=True):
                column += frame[name].tolist()
            if len(columns[0]) >= _ROWS_AT_ONCE:
                yield from together()
        elif not (isinstance(frame, pd.DataFrame) and not len(frame)):
            yield from together()
            yield from format_.write([frame])
    yield from together()
