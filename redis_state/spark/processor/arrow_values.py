"""Conversion of Arrow arrays to the values that the row codecs take; no pyspark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis_state.codec.column_rules import MapPairs
from redis_state.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_ArrowRule = Callable[[Any], Any]


def values_of(column: pa.Array | pa.ChunkedArray, declared: pa.DataType, what: str) -> list[Any]:
    """Returns the values of a column; none is rounded or moved to another time.

    Args:
        declared: The type that the column is stored as.
        what: Name of the column in an error.

    Raises:
        UsageError: A time has no zone, but is declared to be a moment; or Python has no object for
            a value: a year outside 1 to 9999, or a text that is not UTF-8.
    """
    if _lacks_zone(column.type, declared):
        raise UsageError(
            f"reading {what}",
            found=f"its times are of type {column.type}, without a time zone",
            advice="Cast them to timestamp('us', tz='UTC'), or declare timestamp_ntz. Nothing was "
            "changed.",
        )
    convert = _converter(column.type)
    values = _objects(column, what)
    return values if convert is None else [one if one is None else convert(one) for one in values]


def _objects(column: pa.Array | pa.ChunkedArray, what: str) -> list[Any]:
    import pyarrow as pa

    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError, pa.ArrowException) as error:
        text = isinstance(error, UnicodeDecodeError)
        raise UsageError(
            f"reading {what}",
            found="a text is not UTF-8" if text else "Python has no object for one of its values",
            advice="Declare the column as binary, and cast it. Nothing was changed."
            if text
            else "Give times in microseconds, in the years 1 to 9999. Nothing was changed.",
        ) from None
    return values


def _lacks_zone(found: pa.DataType, declared: pa.DataType) -> bool:
    """Returns whether a time without a zone is found where a moment is declared."""
    import pyarrow as pa

    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_timestamp(declared):
        return declared.tz is not None and pa.types.is_timestamp(found) and found.tz is None
    if pa.types.is_map(declared) and pa.types.is_map(found):
        return _lacks_zone(found.key_type, declared.key_type) or _lacks_zone(
            found.item_type, declared.item_type
        )
    if _is_list(declared) and _is_list(found):
        return _lacks_zone(found.value_type, declared.value_type)
    if pa.types.is_struct(declared) and pa.types.is_struct(found):
        return any(
            found.get_field_index(field.name) >= 0
            and _lacks_zone(found.field(field.name).type, field.type)
            for field in declared
        )
    return False


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_map(kind):
        return False
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _converter(kind: pa.DataType) -> _ArrowRule | None:
    """Returns a converter of Arrow's pairs into maps; ``None`` if the type has no maps."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return lambda pairs: MapPairs((_with(key, one), _with(item, other)) for one, other in pairs)
    if _is_list(kind):
        element = _converter(kind.value_type)
        return None if element is None else lambda values: [_with(element, one) for one in values]
    if pa.types.is_struct(kind):
        parts = {field.name: _converter(field.type) for field in kind}
        if not any(parts.values()):
            return None
        return lambda value: {name: _with(parts[name], one) for name, one in value.items()}
    return None


def _with(convert: _ArrowRule | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)
