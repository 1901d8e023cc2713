"""Spark's types as Arrow types, and values as Arrow arrays; imports pyarrow only when needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from redis_state.errors import ConfigError, UnreadableError, UsageError
from redis_state.types.schema import Array, Atomic, Field, Map, Type
from redis_state.types.values import Internal, to_internal

if TYPE_CHECKING:
    import pyarrow as pa

_NANOS_OF_MICRO = 1_000
_NANOS_MAX = 1 << 63
_DATE_BYTES = 4


def library(what: str) -> Any:
    """Imports numpy and pyarrow, and returns pyarrow.

    Raises:
        ConfigError: One of the packages is not installed.
    """
    for package in ("numpy", "pyarrow"):
        try:
            found = import_module(package)
        except ImportError:
            raise missing_extra(what, package, "arrow") from None
    return found


def missing_extra(what: str, package: str, extra: str) -> ConfigError:
    """Returns the error for a missing package."""
    return ConfigError(
        what,
        found=f"the package {package} is not installed",
        advice=f"Install it: pip install 'redis-state[{extra}]'.",
    )


def arrow_type(type_: Type) -> pa.DataType:
    """Returns the Arrow type that represents a Spark type."""
    import pyarrow as pa

    if isinstance(type_, Atomic):
        return _atomic_type(type_)
    if isinstance(type_, Array):
        return pa.list_(arrow_type(type_.element))
    if isinstance(type_, Map):
        return pa.map_(arrow_type(type_.key), arrow_type(type_.value))
    return pa.struct([arrow_field(field) for field in type_.fields])


def arrow_field(field: Field) -> pa.Field:
    """Returns the Arrow field of a Spark field."""
    import pyarrow as pa

    return pa.field(field.name, arrow_type(field.type))


def _atomic_type(type_: Atomic) -> pa.DataType:
    import pyarrow as pa

    if type_.opaque:
        return pa.binary()  # holds only nulls; decoding rejects any other value
    makers: dict[str, Callable[[], pa.DataType]] = {
        "boolean": pa.bool_,
        "byte": pa.int8,
        "short": pa.int16,
        "integer": pa.int32,
        "long": pa.int64,
        "float": pa.float32,
        "double": pa.float64,
        "string": pa.string,
        "binary": pa.binary,
        "void": pa.null,
        "date": pa.date32,
        "timestamp": lambda: pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": lambda: pa.timestamp("us"),
        "time": lambda: pa.time64("ns"),
        "day-time": lambda: pa.duration("us"),
        # Arrow's own month interval has no Python values.
        "year-month": pa.int32,
        "calendar": pa.month_day_nano_interval,
        "decimal": lambda: pa.decimal128(type_.precision, type_.scale),
        "variant": lambda: _variant_type() if type_.binary else pa.string(),
    }
    return makers[type_.name]()


def arrow_array(type_: Type, values: Sequence[Any]) -> pa.Array:
    """Converts values, in the form that `items` returns, to an Arrow array."""
    import pyarrow as pa

    if isinstance(type_, Atomic):
        return _atomic_array(type_, values)
    if isinstance(type_, (Array, Map)):
        offsets, flat = _flattened(values)
        starts = pa.array(offsets, type=pa.int32())
        if isinstance(type_, Array):
            return pa.ListArray.from_arrays(starts, arrow_array(type_.element, flat))
        keys = arrow_array(type_.key, [key for key, _ in flat])
        items = arrow_array(type_.value, [value for _, value in flat])
        return pa.MapArray.from_arrays(starts, keys, items)
    children = [
        arrow_array(field.type, [None if one is None else one[at] for one in values])
        for at, field in enumerate(type_.fields)
    ]
    absent = pa.array([one is None for one in values], type=pa.bool_())
    fields = [arrow_field(field) for field in type_.fields]
    if not fields:
        return pa.array([None if one is None else {} for one in values], type=pa.struct([]))
    return pa.StructArray.from_arrays(children, fields=fields, mask=absent)


def named_array(name: str, type_: Type, values: Sequence[Any]) -> pa.Array:
    """Converts the values of a named column to an Arrow array.

    Raises:
        UnreadableError: Arrow cannot represent a value.
    """
    try:
        return arrow_array(type_, values)
    except UnreadableError as error:
        raise error.within(name) from None


def _atomic_array(type_: Atomic, values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    arrow = _atomic_type(type_)
    if type_.name == "calendar":
        values = [one if one is None else _interval(one) for one in values]
    elif type_.name == "day-time" or any(type(one) is Internal for one in values):
        # Arrow takes all stored numbers, but refuses the least ones as `timedelta`.
        numbers = [None if one is None else to_internal(type_, one, name="") for one in values]
        return pa.array(numbers, pa.int32() if type_.width == _DATE_BYTES else pa.int64()).view(
            arrow
        )
    try:
        return pa.array(values, type=arrow)
    except UnicodeEncodeError:
        raise UnreadableError.of(
            type_.name,
            "Arrow's texts are UTF-8, and have no place for a surrogate",
            advice="Read it by text='replace', or as Python objects by scan and items.",
        ) from None


def _variant_type() -> pa.DataType:
    import pyarrow as pa

    # Arrow casts no struct with a null whose fields are not null.
    return pa.struct([pa.field(name, pa.binary()) for name in ("value", "metadata")])


def _flattened(values: Sequence[Any]) -> tuple[list[int | None], list[Any]]:
    """Returns offsets, with ``None`` for a missing list, and all elements."""
    offsets: list[int | None] = []
    flat: list[Any] = []
    for one in values:
        offsets.append(None if one is None else len(flat))
        if one is not None:
            flat += one.items() if isinstance(one, dict) else one
    return [*offsets, len(flat)], flat


def _interval(value: Any) -> Any:
    import pyarrow as pa

    nanos = value.microseconds * _NANOS_OF_MICRO
    if not -_NANOS_MAX <= nanos < _NANOS_MAX:
        raise UnreadableError.of(
            "interval",
            "Arrow has no place for an interval of so many microseconds",
            advice="Nothing is damaged. Read it as a Python object by scan and items, or leave "
            "the column out (columns=…).",
        )
    return pa.MonthDayNano([value.months, value.days, nanos])


def inferred(values: Sequence[Any], name: str) -> pa.Array:
    """Converts values of a Python store to an Arrow array of their common type.

    Raises:
        ConfigError: The values have no common type.
    """
    import pyarrow as pa

    try:
        return pa.array([_plain(one) for one in values])
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise mixed(name) from error


def mixed(name: str) -> ConfigError:
    """Returns the error for values that no Arrow type fits."""
    return ConfigError(
        "making an Arrow table",
        found=f"the values of column '{name}' have no Arrow type in common",
        advice="Read them by items or scan, which return them unchanged.",
    )


def _plain(value: Any) -> Any:
    """Converts tuples to structs, because each element has a type of its own."""
    if isinstance(value, tuple):
        named = getattr(value, "_fields", None) or [f"_{at}" for at in range(1, len(value) + 1)]
        return {name: _plain(one) for name, one in zip(named, value, strict=True)}
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def cast_whole(array: pa.Array, type_: pa.DataType, *, name: str, what: str) -> pa.Array:
    """Casts a column to another type, without loss and without a change of kind.

    Raises:
        UsageError: A value would be lost or become one of another kind.
    """
    import pyarrow as pa

    if array.type == type_:
        return array
    kinds = _sort(array.type), _sort(type_)
    made = None
    if None in kinds or kinds[0] == kinds[1] or kinds in _ALSO:
        try:
            made = array.cast(type_)
        except pa.ArrowException:
            made = None
    if made is None or not _is_whole(array, made):
        raise UsageError(
            what,
            found=f"column '{name}' is of type {array.type}, and {type_} was requested",
            advice="Leave schema(…) out, or give a type that all of its values fit.",
        )
    return made


_ALSO = {("boolean", "number"), ("date", "naive time")}
"""Kinds of values that may also be cast to another kind."""


def _sort(type_: pa.DataType) -> str | None:
    """Returns the kind of a type's values; ``None`` if Arrow itself checks a cast for loss."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_boolean(type_):
        return "boolean"
    if kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_):
        return "number"
    if kinds.is_date(type_):
        return "date"
    if kinds.is_timestamp(type_):
        return "naive time" if type_.tz is None else "time"
    return "time of day or length" if kinds.is_time(type_) or kinds.is_duration(type_) else None


def _is_whole(array: pa.Array, made: pa.Array) -> bool:
    """Returns whether numbers survived the cast; Arrow silently rounds floats to a smaller type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(array.type) or not pa.types.is_floating(made.type):
        return True
    same = pc.or_(pc.equal(made.cast(array.type), array), pc.is_nan(array))
    return bool(pc.all(same, min_count=0).as_py())
