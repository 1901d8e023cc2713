"""Converts Arrow arrays to Python objects, including dates and times outside Python's range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from redis_state.types.values import Internal

if TYPE_CHECKING:
    import pyarrow as pa


def objects(array: pa.Array) -> list[Any]:
    """Converts an array like `pyarrow.Array.to_pylist`, but keeps every date and time.

    A date or time outside Python's range becomes an `Internal`. So does a time of day with a
    fraction of a microsecond.
    """
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_struct(array.type):
        names = [array.type.field(at).name for at in range(array.type.num_fields)]
        columns = [objects(array.field(at)) for at in range(len(names))]
        rows: Iterator[Any] = zip(*columns, strict=True) if columns else iter([()] * len(array))
        there = array.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if valid else None
            for valid, row in zip(there, rows, strict=True)
        ]
    if kinds.is_map(array.type):
        pairs = list(zip(objects(array.keys), objects(array.items), strict=True))
        return _lists(array, pairs)
    if kinds.is_list(array.type):
        return _lists(array, objects(array.values))
    kind = _moment(array.type)
    if kind is None:
        return list(array.to_pylist())
    try:
        made = list(array.to_pylist())
    except (ValueError, OverflowError):
        return [_object(one, kind) for one in array]
    if kind == "time":
        # pyarrow drops fractions of a microsecond without an error.
        numbers = array.cast(pa.int64()).to_pylist()
        return [
            Internal(raw, kind) if (raw or 0) % 1000 else one
            for raw, one in zip(numbers, made, strict=True)
        ]
    return made


def _lists(array: Any, values: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    there = array.is_valid().to_pylist()
    spans = zip(there, offsets, offsets[1:], strict=False)
    return [values[start:end] if valid else None for valid, start, end in spans]


def _moment(type_: pa.DataType) -> str | None:
    """Returns Spark's name of a date or time type; ``None`` for another type."""
    import pyarrow as pa

    if pa.types.is_date32(type_):
        return "date"
    if type_ == pa.time64("ns"):
        return "time"
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return "timestamp_ntz" if type_.tz is None else "timestamp"
    return None


def _object(scalar: Any, kind: str) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return Internal(scalar.value, kind)
