"""Converts columns of Spark's types to values that MessagePack and keys can hold; no pyspark.

Each type is compiled once to a rule for both directions, which reads back exactly what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import Any

from redis_state.codec.ordered_key import encode_key
from redis_state.errors import UsageError
from redis_state.types.schema import (
    INTEGERS,
    UDT,
    Array,
    Atomic,
    Map,
    Row,
    Struct,
    Type,
    hashable,
    kind_of,
    parse_schema,
)
from redis_state.types.single_values import Convert, Misfit, class_name, single_converters

_WIDER = {
    "byte": {"short", "integer", "long"},
    "short": {"integer", "long"},
    "integer": {"long"},
    "float": {"double"},
}
_EXACT: dict[str, type] = {"boolean": bool, "string": str, "double": float, "binary": bytes}
_EXACT |= dict.fromkeys(INTEGERS, int)


class MapPairs(list[tuple[Any, Any]]):
    """Pairs of a map, as in Arrow; the keys may be unhashable."""


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """Conversion of one column's values. A `read` of ``None`` returns stored values unchanged."""

    name: str
    type: Type
    nullable: bool
    write: Convert
    read: Convert | None


@dataclass(frozen=True, slots=True)
class Reading:
    """Forms of the values that are read.

    Attributes:
        zone: Time zone of timestamps; ``None`` for naive ones in the zone of this machine.
        rows: Makes structs `Row` objects, which have names, instead of tuples.
    """

    zone: tzinfo | None = None
    rows: bool = False


def exact_type(type_: Type) -> type:
    """Returns the type whose values are stored unchanged; `object` if there is no such type."""
    return _EXACT.get(type_.name, object) if isinstance(type_, Atomic) else object


def rules_of(schema: str, reading: Reading, what: str) -> list[ColumnRule]:
    """Returns the rules of the columns of a schema. `what` names the row in errors.

    Raises:
        UsageError: A column has a type that cannot be stored.
    """
    return _rules(parse_schema(schema, with_udts=True), reading, what)


def _rules(struct: Struct, reading: Reading, what: str) -> list[ColumnRule]:
    return [
        ColumnRule(
            field.name,
            field.type,
            field.nullable,
            *_converters(field.type, reading, f"{what}, column '{field.name}'"),
        )
        for field in struct.fields
    ]


def fits(older: Type, now: Type) -> bool:
    """Returns whether the older type can be read as the newer one: equal, or wider numbers."""
    if (
        isinstance(older, Atomic)
        and isinstance(now, Atomic)
        and now.name in _WIDER.get(older.name, ())
    ):
        return True
    return older == now


def listed(value: Any) -> Sequence[Any]:
    """Returns the items of a list, a tuple, or an array of NumPy, pandas or Arrow.

    Raises:
        Misfit: The value is anything else. A set has no order, an iterator can be read only once,
            and a text or a frame is not a list.
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


def _converters(type_: Type, reading: Reading, what: str) -> tuple[Convert, Convert | None]:
    """Returns the functions that write and read a type. A reader of ``None`` changes nothing."""
    match type_:
        case Array():
            return _array(type_, reading, what)
        case Map():
            return _map(type_, reading, what)
        case Struct():
            return _struct(type_, reading, what)
    found = single_converters(type_, reading.zone)
    if found is not None:
        return found
    if type_.name == UDT:
        raise UsageError(
            f"declaring {what}",
            found=f"its type is the user-defined type {type_.text}, which cannot be stored",
            advice="Declare the type that its sqlType() returns, and convert values by its "
            "serialize() and deserialize(). Nothing was changed.",
        )
    raise UsageError(
        f"declaring {what}",
        found=f"its type is {type_.text}, which cannot be stored",
        advice="Take one of: numbers, boolean, string, binary, date, timestamp, "
        "timestamp_ntz, decimal, array, map, struct.",
    )


def _array(type_: Array, reading: Reading, what: str) -> tuple[Convert, Convert]:
    write, read = _converters(type_.element, reading, what)
    nullable = type_.nullable

    def write_array(value: Any) -> list[Any]:
        items = listed(value)
        try:
            return [_null(nullable) if one is None else write(one) for one in items]
        except Misfit as error:
            raise error.below("[]", kind_of(type_.element)) from None

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


def _map(type_: Map, reading: Reading, what: str) -> tuple[Convert, Convert]:
    write_key, read_key = _converters(type_.key, reading, what)
    write, read = _converters(type_.value, reading, what)
    nullable = type_.nullable
    freeze: Convert | None = None if isinstance(type_.key, Atomic) else hashable

    def write_map(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, (Mapping, MapPairs)):
            raise Misfit(f"the value of type {class_name(value)} does not fit")
        items = value if isinstance(value, MapPairs) else value.items()
        pairs, is_key = [], True
        try:
            for key, one in items:
                is_key = True
                plain = write_key(key)
                is_key = False
                pairs.append((plain, _null(nullable) if one is None else write(one)))
        except Misfit as error:
            part, wrong = ("{key}", type_.key) if is_key else ("{value}", type_.value)
            raise error.below(part, kind_of(wrong)) from None
        if len({freeze(plain) if freeze else plain for plain, _ in pairs}) < len(pairs):
            raise Misfit("two of its keys are the same as that type, and do not fit")
        return pairs

    def read_map(plain: Any) -> dict[Any, Any]:
        found = {}
        for key, one in plain:
            made = key if read_key is None else read_key(key)
            found[freeze(made) if freeze else made] = (
                one if one is None or read is None else read(one)
            )
        return found

    return write_map, read_map


def _struct(type_: Struct, reading: Reading, what: str) -> tuple[Convert, Convert]:
    fields = _rules(type_, reading, what)
    names = type_.names
    make: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    make = partial(Row, names) if reading.rows else tuple

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
        return make(read_all(fields, plain))

    return write_struct, read_struct


def _write_part(field: ColumnRule, value: Any, part: str) -> Any:
    """Converts a value to its stored form.

    Raises:
        Misfit: The value does not fit the field; the path begins with `part`.
    """
    try:
        return _null(field.nullable) if value is None else field.write(value)
    except Misfit as error:
        raise error.below(part, kind_of(field.type)) from None


def read_all(rules: Sequence[ColumnRule], plain: Sequence[Any]) -> tuple[Any, ...]:
    """Converts the stored values of columns."""
    return tuple(
        [
            one if one is None or rule.read is None else rule.read(one)
            for rule, one in zip(rules, plain, strict=True)
        ]
    )


def key_writer(rule: ColumnRule) -> Convert:
    """Returns the function that writes a column's values as part of a key."""
    if isinstance(rule.type, Atomic):
        return rule.write
    return lambda value: _in_order(rule.write(value), rule.type)


def _in_order(plain: Any, type_: Type) -> Any:
    """Sorts the maps inside a stored key, so that equal keys have equal bytes."""
    if plain is None:
        return plain
    match type_:
        case Array():
            return [_in_order(one, type_.element) for one in plain]
        case Map():
            pairs = [(_in_order(key, type_.key), _in_order(one, type_.value)) for key, one in plain]
            return sorted(pairs, key=lambda pair: encode_key(pair[0]))
        case Struct():
            fields = zip(plain, type_.fields, strict=True)
            return [_in_order(one, field.type) for one, field in fields]
    return plain
