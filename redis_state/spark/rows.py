"""Converts rows of a partition to dicts, pandas frames or Arrow batches, and back; no pyspark.

Spark's own conversions belong to its operators, and differ between its minors. Here, as in Spark, a
time stamp in pandas is naive and of the session's zone. In dicts a time stamp has its zone. A naive
time stamp in a returned dict is of this machine's zone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from redis_state.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

RowKind = Literal["dicts", "pandas", "arrow"]
KINDS: tuple[RowKind, ...] = ("dicts", "pandas", "arrow")
_DICTS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Row format of a function's input and output.

    Attributes:
        schema: Schema of the function's output.
        time_zone: Time zone of the session.
    """

    kind: RowKind
    schema: pa.Schema
    time_zone: str

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        """Yields the rows in the function's format; no row is ``None``."""
        if self.kind == "arrow":
            return iter(batches)
        if self.kind == "pandas":
            return (self._frame(batch) for batch in batches)
        return (row for batch in batches for row in _dicts(batch))

    def write(self, given: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Converts the function's output to the columns of the schema.

        Raises:
            UsageError: The output is not rows, or does not fit the schema.
        """
        if isinstance(given, (str, bytes, dict)) or not isinstance(given, Iterable):
            raise _unfit(f"it returned a {type(given).__name__}, not an iterator of rows")
        if self.kind == "dicts":
            return self._from_dicts(iter(given))
        convert = self._from_frame if self.kind == "pandas" else self._from_arrow
        return (batch for one in given for batch in convert(one))

    def batch_of(self, columns: Sequence[list[Any]]) -> pa.RecordBatch:
        """Converts values by column, in the order of the schema; NaN is a null as in Spark.

        Raises:
            UsageError: The values do not fit the schema.
        """
        pairs = zip(self.schema, columns, strict=True)
        return self._batch([self._of_pandas(field, values) for field, values in pairs])

    def _frame(self, batch: pa.RecordBatch) -> pd.DataFrame:
        return frame_of(batch, self.time_zone)

    def _from_frame(self, frame: Any) -> Iterator[pa.RecordBatch]:
        import pandas as pd
        import pyarrow as pa

        if not isinstance(frame, pd.DataFrame):
            raise _unfit(f"it yielded a {type(frame).__name__} instead of a pandas DataFrame")
        unnamed = len(frame.columns) and not any(isinstance(one, str) for one in frame.columns)
        if unnamed and len(frame.columns) == len(self.schema):
            # A frame without names has its columns in the order of the schema, as in Spark.
            frame = frame.set_axis(self.schema.names, axis="columns")
        self._check_names(frame.columns)
        if not frame.columns.is_unique:
            raise _unfit("it yielded two columns of one name")
        columns = []
        for field in self.schema:
            series = frame[field.name]
            if pa.types.is_timestamp(field.type) and field.type.tz is not None:
                series = self._with_zone(series)
            columns.append(self._of_pandas(field, series))
        yield self._batch(columns)

    def _of_pandas(self, field: pa.Field, values: Any) -> pa.Array:
        """Converts values of a frame: NaN is null, nested naive times are of the session's zone."""
        import pyarrow as pa

        if not pa.types.is_nested(field.type):
            if pa.types.is_decimal(field.type):
                values = _with_decimals(field, values)
            return _array(field, values, from_pandas=True)
        local = _in_zone(self.time_zone)
        convert = _zoned(field.type, local)
        if convert is None:
            try:
                return _array(field, values, from_pandas=True)
            except UsageError:
                # Arrow takes structs as dicts or as tuples, but not both in one array.
                convert = _zoned(field.type, local, structs=True)
                if convert is None:
                    raise
        listed = [None if _is_missing(one) else convert(one) for one in values]
        return _array(field, listed, from_pandas=True)

    def _with_zone(self, series: Any) -> Any:
        import pandas as pd

        times = pd.to_datetime(series)
        if times.dt.tz is None:
            return times.dt.tz_localize(
                self.time_zone, ambiguous=False, nonexistent="shift_forward"
            )
        return times

    def _from_arrow(self, given: Any) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if isinstance(given, pa.Table):
            yield from (one for part in given.to_batches() for one in self._from_arrow(part))
            return
        if not isinstance(given, pa.RecordBatch):
            raise _unfit(f"it yielded a {type(given).__name__} instead of a RecordBatch")
        self._check_names(given.schema.names)
        columns = []
        for field in self.schema:
            column = given.column(field.name)
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowException as error:
                raise _mistyped(field, str(column.type)) from error
        yield self._batch(columns)

    def _from_dicts(self, given: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        names = set(self.schema.names)
        while rows := list(islice(given, _DICTS_AT_ONCE)):
            for row in rows:
                if not isinstance(row, dict):
                    raise _unfit(f"it yielded a {type(row).__name__} instead of a dict")
                if not names >= row.keys():
                    self._check_names([*names, *row])
            columns = [
                _array(field, [row.get(field.name) for row in rows]) for field in self.schema
            ]
            yield self._batch(columns)

    def _batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        import pyarrow as pa

        for field, column in zip(self.schema, columns, strict=True):
            if column.null_count and not field.nullable:
                raise _unfit(
                    f"it yielded nulls in column '{field.name}', which does not allow them"
                )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _check_names(self, names: Iterable[Any]) -> None:
        found = list(names)
        missing = [name for name in self.schema.names if name not in found]
        foreign = [name for name in found if name not in self.schema.names]
        if missing:
            raise _unfit(f"it yielded rows without the column '{missing[0]}'")
        if foreign:
            raise _unfit(f"it yielded the column {foreign[0]!r}, which the schema does not have")


def frame_of(rows: pa.Table | pa.RecordBatch, time_zone: str) -> pd.DataFrame:
    """Converts rows to pandas, with naive time stamps in the session's zone."""
    import pyarrow as pa

    frame: pd.DataFrame = rows.to_pandas(date_as_object=True)
    for field in rows.schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            local = frame[field.name].dt.tz_convert(time_zone).dt.tz_localize(None)
            frame[field.name] = local
    return frame


def rows_of_structs(structs: pa.StructArray) -> pa.RecordBatch:
    """Converts structs to rows, and skips null structs."""
    import pyarrow as pa

    there = structs.drop_null() if structs.null_count else structs
    kind = there.type
    names = [kind.field(number).name for number in range(kind.num_fields)]
    return pa.RecordBatch.from_arrays(there.flatten(), names=names)


def _dicts(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def _array(field: pa.Field, values: Any, *, from_pandas: bool = False) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_integer(field.type) and type(values) is list:
        _check_whole(field, values)
    try:
        if not from_pandas and (zoned := _zoned(field.type, _local)):
            values = [None if value is None else zoned(value) for value in values]
        made = pa.array(values, type=field.type, from_pandas=from_pandas)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise _mistyped(field, ", ".join(kinds[:5])) from error
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def _with_decimals(field: pa.Field, values: Any) -> Any:
    """Rounds floats among the values to the digits of a decimal, as Spark does.

    Raises:
        UsageError: A float has too many digits.
    """
    import pyarrow as pa

    listed = values if isinstance(values, list) else values.tolist()
    places = [at for at, one in enumerate(listed) if isinstance(one, float) and one == one]
    if not places:
        return values
    try:
        found = pa.array([float(listed[at]) for at in places], pa.float64()).cast(field.type)
    except pa.ArrowException as error:
        raise _mistyped(field, "float") from error
    made = list(listed)
    for at, one in zip(places, found.to_pylist(), strict=True):
        made[at] = one
    return made


def _zoned(
    kind: pa.DataType, local: Callable[[Any], Any], *, structs: bool = False
) -> Callable[[Any], Any] | None:
    """Returns a function that adds a zone to the naive times in a value, as PySpark does.

    Arrow takes naive times for UTC. ``None`` if a value of the type has no times.

    Args:
        local: Adds its zone to a naive time; returns any other value unchanged.
        structs: Converts each struct to a dict, even without times.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return None if kind.tz is None else local
    if pa.types.is_struct(kind):
        fields = {field.name: _zoned(field.type, local, structs=structs) for field in kind}
        return _each(fields) if structs or any(fields.values()) else None
    if pa.types.is_map(kind):
        key = _zoned(kind.key_type, local, structs=structs) or _same
        item = _zoned(kind.item_type, local, structs=structs) or _same
        if key is item is _same:
            return None
        return lambda value: [(key(one), item(other)) for one, other in _pairs(value)]
    if pa.types.is_list(kind):
        element = _zoned(kind.value_type, local, structs=structs)
        return None if element is None else lambda value: [*map(element, value)]
    return None


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """Yields the pairs of a dict or of Arrow's map, whose keys may be unhashable."""
    return value.items() if isinstance(value, Mapping) else value


def _each(fields: Mapping[str, Callable[[Any], Any] | None]) -> Callable[[Any], Any]:
    def zoned(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == len(fields):
            value = dict(zip(fields, value, strict=True))
        if not isinstance(value, dict):
            return value
        return {name: (fields.get(name) or _same)(one) for name, one in value.items()}

    return zoned


def _same(value: Any) -> Any:
    return value


def _local(value: Any) -> Any:
    # pandas' NaT is a datetime to Python, but not equal to itself.
    if not isinstance(value, datetime) or value.tzinfo is not None or value != value:
        return value
    plain = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    return plain.astimezone()


def _in_zone(name: str) -> Callable[[Any], Any]:
    """Returns a function that adds a zone to naive times; `fold` selects one of two equal hours."""
    import numpy as np
    import pandas as pd

    zone = ZoneInfo(name)

    def local(value: Any) -> Any:
        value = pd.Timestamp(value) if isinstance(value, np.datetime64) else value
        if not isinstance(value, datetime) or value.tzinfo is not None or value != value:
            return value
        plain = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
        return plain.replace(tzinfo=zone)

    return local


def _is_missing(value: Any) -> bool:
    """Returns whether pandas uses the value for null."""
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or isinstance(value, float)


def _check_whole(field: pa.Field, values: list[Any]) -> None:
    """Refuses fractions, which Arrow would cut off from values that come one by one."""
    if any(issubclass(kind, float) for kind in set(map(type, values))) and any(
        isinstance(one, float) and math.isfinite(one) and not one.is_integer() for one in values
    ):
        raise _mistyped(field, "float, with a fraction")


def _mistyped(field: pa.Field, kinds: str) -> UsageError:
    return _unfit(f"values of column '{field.name}' ({kinds}) are not of type {field.type}")


def _unfit(found: str) -> UsageError:
    return UsageError(
        "reading the rows of the function",
        found=found,
        advice="Yield rows of the kind and the schema that were declared.",
    )
