"""Converts columns of Spark's types to values that MessagePack and keys can hold; no pyspark.

Each type is compiled once to a rule for both directions, which reads back exactly what it writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from redis_state.codec.ordered_key import encode_key
from redis_state.codec.single_values import (
    INTEGERS,
    Convert,
    Misfit,
    class_name,
    single_converters,
)
from redis_state.errors import UsageError

JsonType = str | dict[str, Any]
"""A type as in Spark's JSON."""

_WIDER = {
    "byte": {"short", "integer", "long"},
    "short": {"integer", "long"},
    "integer": {"long"},
    "float": {"double"},
}
_PARTS = {"keyType": "{key}", "valueType": "{value}"}
_EXACT: dict[str, type] = {"boolean": bool, "string": str, "double": float, "binary": bytes}


class MapPairs(list[tuple[Any, Any]]):
    """Pairs of a map, as in Arrow; the keys may be unhashable."""


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """Conversion of one column's values. A `read` of ``None`` returns stored values unchanged."""

    name: str
    kind: JsonType
    nullable: bool
    write: Convert
    read: Convert | None


def exact_type(kind: JsonType) -> type:
    """Returns the type whose values are stored unchanged; `object` if there is no such type."""
    if isinstance(kind, str):
        return int if kind in INTEGERS else _EXACT.get(kind, object)
    return object


def fields_of(schema: str, zone: tzinfo | None, what: str) -> list[ColumnRule]:
    """Returns the columns of a schema.

    Args:
        zone: Time zone of the timestamps that are returned; ``None`` for naive ones in the zone of
            this machine.
        what: Name of the row in errors.

    Raises:
        UsageError: A column has a type that cannot be stored.
    """
    return _fields(json.loads(schema), zone, what)


def _fields(struct: Mapping[str, Any], zone: tzinfo | None, what: str) -> list[ColumnRule]:
    made = []
    for field in struct["fields"]:
        write, read = _converters(field["type"], zone, f"{what}, column '{field['name']}'")
        nullable = field.get("nullable", True)
        made.append(ColumnRule(field["name"], field["type"], nullable, write, read))
    return made


def fits(older: JsonType, now: JsonType) -> bool:
    """Returns whether the older type can be read as the newer one: equal, or wider numbers."""
    if isinstance(older, str) and isinstance(now, str):
        return older == now or now in _WIDER.get(older, ())
    return older == now


def shown(kind: JsonType) -> str:
    """Returns the name of a type for errors."""
    return kind if isinstance(kind, str) else str(kind.get("type"))


def listed(value: Any) -> Sequence[Any]:
    """Returns the items of a list, a tuple, or an array of NumPy, pandas or Arrow.

    Raises:
        Misfit: The value is anything else. A set has no order, an iterator can be read only once,
            and a
            text or a frame is not a list.
    """
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return value
    if hasattr(value, "to_pylist") and hasattr(value, "type"):
        found: list[Any] = value.to_pylist()
        return found
    if getattr(value, "ndim", 0) and hasattr(value, "__len__") and not hasattr(value, "columns"):
        return value  # type: ignore[no-any-return]  # an array, which has a length and items
    raise Misfit(f"the value of type {class_name(value)} does not fit")


def _converters(kind: JsonType, zone: tzinfo | None, what: str) -> tuple[Convert, Convert | None]:
    """Returns the functions that write and read a type. A reader of ``None`` changes nothing."""
    if isinstance(kind, dict):
        return _nested(kind, zone, what)
    found = single_converters(kind, zone)
    if found is None:
        raise UsageError(
            f"declaring {what}",
            found=f"its type is {kind}, which cannot be stored",
            advice=(
                "Choose one of: numbers, boolean, string, binary, date, timestamp, timestamp_ntz, "
                "decimal, array, map, struct."
            ),
        )
    return found


def _nested(kind: dict[str, Any], zone: tzinfo | None, what: str) -> tuple[Convert, Convert]:
    if kind["type"] == "array":
        return _array(kind, zone, what)
    if kind["type"] == "map":
        return _map(kind, zone, what)
    if kind["type"] == "struct":
        return _struct(kind, zone, what)
    if kind["type"] == "udt":
        name = kind.get("pyClass") or kind.get("class") or "a program"
        raise UsageError(
            f"declaring {what}",
            found=f"its type is the user-defined type {name}, which cannot be stored",
            advice="Declare the type that its sqlType() returns, and convert values by its "
            "serialize() and deserialize(). Nothing was changed.",
        )
    raise UsageError(
        f"declaring {what}",
        found=f"its type is {kind['type']}, which cannot be stored",
        advice="Use arrays, maps and structs.",
    )


def _array(kind: dict[str, Any], zone: tzinfo | None, what: str) -> tuple[Convert, Convert]:
    write, read = _converters(kind["elementType"], zone, what)
    nullable = kind.get("containsNull", True)

    def write_array(value: Any) -> list[Any]:
        items = listed(value)
        try:
            return [_null(nullable) if one is None else write(one) for one in items]
        except Misfit as error:
            raise error.below("[]", shown(kind["elementType"])) from None

    def read_array(plain: Any) -> list[Any]:
        if read is None:
            return list(plain)
        return [None if one is None else read(one) for one in plain]

    return write_array, read_array


def _null(nullable: bool) -> Any:
    """Returns the stored form of None."""
    if not nullable:
        raise Misfit("it is NOT NULL and was given None, which does not fit")
    return None


def _map(kind: dict[str, Any], zone: tzinfo | None, what: str) -> tuple[Convert, Convert]:
    write_key, read_key = _converters(kind["keyType"], zone, what)
    write, read = _converters(kind["valueType"], zone, what)
    nullable = kind.get("valueContainsNull", True)
    freeze = isinstance(kind["keyType"], dict)

    def write_map(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, (Mapping, MapPairs)):
            raise Misfit(f"the value of type {class_name(value)} does not fit")
        items = value if isinstance(value, MapPairs) else value.items()
        pairs, part = [], "keyType"
        try:
            for key, one in items:
                part = "keyType"
                plain = write_key(key)
                part = "valueType"
                pairs.append((plain, _null(nullable) if one is None else write(one)))
        except Misfit as error:
            raise error.below(_PARTS[part], shown(kind[part])) from None
        if len({_frozen(plain) if freeze else plain for plain, _ in pairs}) < len(pairs):
            raise Misfit("two of its keys become equal in that type, and do not fit")
        return pairs

    def read_map(plain: Any) -> dict[Any, Any]:
        found = {}
        for key, one in plain:
            made = key if read_key is None else read_key(key)
            found[_frozen(made) if freeze else made] = (
                one if one is None or read is None else read(one)
            )
        return found

    return write_map, read_map


def _frozen(value: Any) -> Any:
    """Makes a map key hashable: lists become tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _struct(kind: dict[str, Any], zone: tzinfo | None, what: str) -> tuple[Convert, Convert]:
    fields = _fields(kind, zone, what)
    names = [field.name for field in fields]

    def write_struct(value: Any) -> list[Any]:
        if isinstance(value, Mapping):
            unknown = [name for name in value if name not in names]
            if unknown:
                raise Misfit("it has a field that the struct does not have, and does not fit")
            value = [value.get(name) for name in names]
        values = listed(value)
        if len(values) != len(fields):
            raise Misfit(f"it has {len(values)} values, not {len(fields)}, and does not fit")
        return [
            _write_part(field, one, f".{field.name}")
            for field, one in zip(fields, values, strict=True)
        ]

    def read_struct(plain: Any) -> tuple[Any, ...]:
        return tuple(
            one if one is None or field.read is None else field.read(one)
            for field, one in zip(fields, plain, strict=True)
        )

    return write_struct, read_struct


def _write_part(field: ColumnRule, value: Any, part: str) -> Any:
    """Converts a value to its stored form.

    Raises:
        Misfit: The value does not fit the field; the path begins with `part`.
    """
    try:
        return _null(field.nullable) if value is None else field.write(value)
    except Misfit as error:
        raise error.below(part, shown(field.kind)) from None


def key_writer(field: ColumnRule) -> Convert:
    """Returns the function that writes a column's values as part of a key."""
    if isinstance(field.kind, str):
        return field.write
    return lambda value: _in_order(field.write(value), field.kind)


def _in_order(plain: Any, kind: JsonType) -> Any:
    """Sorts the maps inside a stored key, so that equal keys have equal bytes."""
    if plain is None or isinstance(kind, str):
        return plain
    if kind["type"] == "array":
        return [_in_order(one, kind["elementType"]) for one in plain]
    if kind["type"] == "map":
        pairs = [
            (_in_order(key, kind["keyType"]), _in_order(one, kind["valueType"]))
            for key, one in plain
        ]
        return sorted(pairs, key=lambda pair: encode_key(pair[0]))
    return [_in_order(one, field["type"]) for one, field in zip(plain, kind["fields"], strict=True)]
