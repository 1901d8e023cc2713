"""Converts rows of a test to the Arrow table of a task, and output to one value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from redis_state.errors import UsageError
from redis_state.spark.frames import as_arrow
from redis_state.spark.processor.groups import RowForm, rows_of
from redis_state.spark.rows import frame_of
from redis_state.types.declared import schema_json

if TYPE_CHECKING:
    import pyarrow as pa

_WHAT = "reading the rows of a batch"


def arrow_schema(given: object) -> pa.Schema:
    """Returns the Arrow schema of a `StructType` or of DDL text, without a Spark session.

    Raises:
        UsageError: The value is neither of the two.
    """
    from pyspark.sql.types import StructType

    described = json.loads(schema_json(given))
    for field in described["fields"]:
        field["metadata"] = {}
    return as_arrow(StructType.fromJson(described))


def table_of(given: Any, schema: pa.Schema, time_zone: str) -> pa.Table:
    """Converts the rows of a batch: an Arrow table, a pandas frame, or tuples, dicts or `Row`s.

    Args:
        time_zone: Time zone of time stamps that name none.

    Raises:
        UsageError: The rows do not fit the schema.
    """
    import pyarrow as pa

    if isinstance(given, pa.Table):
        _check_names(given.schema.names, schema)
        try:
            return given.select(schema.names).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise _unfit("the columns of the table have other types") from error
    columns = _columns(given, schema)
    arrays = [
        _array(field, values, time_zone) for field, values in zip(schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def handed_out(table: pa.Table, form: RowForm, time_zone: str) -> Any:
    """Converts a batch's output to the processor's form: a frame, a list of `Row`s, or a table."""
    if form == "arrow":
        return table
    if form == "pandas":
        return frame_of(table, time_zone)
    return rows_of(table)


def _columns(given: Any, schema: pa.Schema) -> list[Any]:
    import pandas as pd

    if isinstance(given, pd.DataFrame):
        _check_names(given.columns, schema)
        return [given[name] for name in schema.names]
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise _unfit(f"a {type(given).__name__} was given")
    names, columns = schema.names, [[] for _ in schema.names]  # type: list[str], list[list[Any]]
    for row in given:
        if isinstance(row, Mapping):
            _check_names(row, schema)
            values: Sequence[Any] = [row[name] for name in names]
        elif isinstance(row, (tuple, list)):
            values = row
        else:
            raise _unfit(f"a row is a {type(row).__name__}")
        if len(values) != len(names):
            raise _unfit(f"a row has {len(values)} values")
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return columns


def _array(field: pa.Field, values: Any, time_zone: str) -> pa.Array:
    import pyarrow as pa

    zoned = pa.types.is_timestamp(field.type) and field.type.tz is not None
    from_pandas = not isinstance(values, list)
    try:
        if zoned:
            at = _time_reader(time_zone)
            values = [None if _is_nothing(value) else at(value) for value in values]
        made = pa.array(values, type=field.type, from_pandas=from_pandas)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _unfit(f"a value of column '{field.name}' is no {field.type}") from error
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def _time_reader(time_zone: str) -> Callable[[Any], datetime]:
    zone = ZoneInfo(time_zone)

    def at(value: Any) -> datetime:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        return found if found.tzinfo is not None else found.replace(tzinfo=zone)

    return at


def _is_nothing(value: Any) -> bool:
    return value is None or value != value  # as pandas' NaT is


def _check_names(names: Iterable[Any], schema: pa.Schema) -> None:
    found = list(names)
    missing = [name for name in schema.names if name not in found]
    foreign = [name for name in found if name not in schema.names]
    if missing:
        raise _unfit(f"column '{missing[0]}' is missing")
    if foreign:
        raise _unfit(f"column {foreign[0]!r} is unknown")


def _unfit(found: str) -> UsageError:
    return UsageError(
        _WHAT,
        found=found,
        advice="Give tuples, dicts, a pandas frame or an Arrow table with the columns of input=….",
    )
