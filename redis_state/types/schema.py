"""Spark's types, parsed from schema JSON without pyspark, and the Python objects of their values.

An *internal* value is the value that Spark stores: an int for whole numbers, dates, times and the
unscaled decimal, a float, bytes for strings and binary, `CalendarInterval`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_state.errors import FormatError
from redis_state.types.decoding import AS_WRITTEN, HANDLERS, Decoding

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

JsonType = str | dict[str, Any]
"""A type as in Spark's JSON."""

DECIMAL_COMPACT_DIGITS_MAX = 18
_DECIMAL_DIGITS_MAX = 38
_NESTING_MAX = 64
_OPAQUE_NAME_MAX = 60
_COLLATIONS = "__COLLATIONS"
_BINARY_COLLATION = "UTF8_BINARY"

# Bytes of a value in an array; 0 means a variable length. In a row each value takes 8 bytes.
_WIDTHS = {
    "boolean": 1,
    "byte": 1,
    "short": 2,
    "integer": 4,
    "long": 8,
    "float": 4,
    "double": 8,
    "date": 4,
    "timestamp": 8,
    "timestamp_ntz": 8,
    "string": 0,
    "binary": 0,
    "void": 0,
    "variant": 0,
}
_OPAQUE = re.compile(r"[a-z_][a-z0-9_ ]*(\([^()]*\))?", re.IGNORECASE)


class CalendarInterval(NamedTuple):
    """A value of Spark's `interval`, whose parts cannot be converted into each other."""

    months: int
    days: int
    microseconds: int


@dataclass(frozen=True, slots=True)
class Atomic:
    """A type without parts.

    Attributes:
        name: Spark's name without parameters: ``integer``, ``decimal``, ``time``, ``year-month``,
            ``day-time``, ``calendar`` …
        width: Bytes of the value; 0 means a variable length.
        precision: Digits of a decimal.
        scale: Digits of a decimal after the point.
        collated: True if the string does not compare by its bytes.
        errors: The `errors` argument of `str` that decodes a string, or a text inside a VARIANT,
            that
            is not UTF-8.
        binary: True if a VARIANT is read as its binaries.
        opaque: True if this release cannot represent the values outside Spark. `name` is then the
            type as Spark writes it.
    """

    name: str
    width: int
    precision: int = 0
    scale: int = 0
    collated: bool = False
    errors: str = "strict"
    binary: bool = False
    opaque: bool = False


UNASKED = Atomic("void", 0, opaque=True)
"""Placeholder for the type of a column that is not parsed."""


def free_name(name: str, taken: Sequence[str]) -> str:
    """The name, or with a number behind it where it is taken."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}.{number}"
    return found


@dataclass(frozen=True, slots=True)
class Field:
    """A named part of a struct."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Struct:
    """A type with named parts, such as the type of a row.

    Attributes:
        names: Names of the fields, in order. Spark allows duplicates.
        labels: Names as keys of a dict: a name that occurs again gets a numeric suffix.
        distinct: True if no name occurs twice.
    """

    fields: tuple[Field, ...]
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    labels: tuple[str, ...] = field(init=False, repr=False, compare=False)
    distinct: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed once, because each decoded row reads both.
        names = tuple(one.name for one in self.fields)
        object.__setattr__(self, "names", names)
        labels: list[str] = []
        for name in names:
            labels.append(free_name(name, labels))
        object.__setattr__(self, "labels", tuple(labels))
        object.__setattr__(self, "distinct", len(set(names)) == len(names))


@dataclass(frozen=True, slots=True)
class Array:
    """A list of values of one type."""

    element: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Pairs of key and value."""

    key: Type
    value: Type


Type = Atomic | Struct | Array | Map


class Row(tuple[Any, ...]):
    """Values of a struct, by position or name, in the manner of `pyspark.sql.Row`."""

    names: tuple[str, ...]

    def __new__(cls, names: tuple[str, ...], values: tuple[Any, ...]) -> Self:
        """Creates a row from names and values of equal number."""
        if len(names) != len(values):
            raise ValueError("names and values differ in number")
        row = super().__new__(cls, values)
        row.names = names
        return row

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.names, tuple(self))

    def __getitem__(self, item: Any) -> Any:
        """Returns the value at a position, or the first value with a name."""
        if not isinstance(item, str):
            return super().__getitem__(item)
        if item not in self.names:
            raise KeyError(item)
        return super().__getitem__(self.names.index(item))

    def as_dict(self) -> dict[str, Any]:
        """Returns name → value. Nested rows stay rows. The last value of a duplicate name wins."""
        return dict(zip(self.names, self, strict=True))

    def __repr__(self) -> str:
        pairs = zip(self.names, self, strict=True)
        return f"Row({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def parse_schema(
    schema: str | bytes | Mapping[str, Any], decoding: Decoding = AS_WRITTEN
) -> Struct:
    """Parses the schema of a row, given as Spark's JSON text or as `StructType.jsonValue()`.

    An unknown type becomes opaque, so that the other columns can be read.

    Raises:
        FormatError: The schema is malformed.
    """
    if isinstance(schema, (str, bytes)):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise _malformed("it is not JSON") from error
    parsed = _parse(schema, decoding, collated=False, depth=0)
    if not isinstance(parsed, Struct):
        raise _malformed("it is not a struct")
    return parsed


def is_opaque(type_: Type) -> bool:
    """Returns whether a type, or a part of the type, is opaque."""
    if isinstance(type_, Struct):
        return any(is_opaque(field.type) for field in type_.fields)
    if isinstance(type_, Array):
        return is_opaque(type_.element)
    if isinstance(type_, Map):
        return is_opaque(type_.key) or is_opaque(type_.value)
    return type_.opaque


def _malformed(found: str) -> FormatError:
    return FormatError("reading a Spark schema", found=found)


def _parse(node: Any, decoding: Decoding, *, collated: bool, depth: int) -> Type:
    if depth > _NESTING_MAX:
        raise _malformed(f"types are nested more than {_NESTING_MAX} deep")
    if isinstance(node, str):
        return _parse_atomic(node, decoding, collated=collated)
    kind = node.get("type") if isinstance(node, Mapping) else None
    if kind == "struct":
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise _malformed("a struct has no list of fields")
        return Struct(tuple(_parse_field(field, decoding, depth=depth + 1) for field in fields))

    def part(name: str) -> Type:
        return _parse(node.get(name), decoding, collated=collated, depth=depth + 1)

    if kind == "array":
        return Array(part("elementType"))
    if kind == "map":
        return Map(part("keyType"), part("valueType"))
    if kind == "udt":
        return _parse(node.get("sqlType"), decoding, collated=collated, depth=depth + 1)
    raise _malformed("a type is neither a name nor a struct, array, map or user-defined type")


def _parse_field(node: Any, decoding: Decoding, *, depth: int) -> Field:
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        raise _malformed("a field has no name")
    metadata = node.get("metadata")
    # Spark writes a collated string as "string" and puts the collation into the field's metadata,
    # keyed
    # by the path to the string. The whole field counts as collated if one of its strings is.
    collations = metadata.get(_COLLATIONS) if isinstance(metadata, Mapping) else None
    collated = isinstance(collations, Mapping) and any(
        not str(name).endswith(_BINARY_COLLATION) for name in collations.values()
    )
    return Field(node["name"], _parse(node.get("type"), decoding, collated=collated, depth=depth))


def _parse_atomic(text: str, decoding: Decoding, *, collated: bool) -> Atomic:
    errors = HANDLERS[decoding.text]
    if text == "string":
        return Atomic(text, 0, collated=collated, errors=errors)
    if text == "variant":
        return Atomic(text, 0, errors=errors, binary=decoding.variant == "binary")
    if text in _WIDTHS:
        return Atomic(text, _WIDTHS[text])
    decimal = re.fullmatch(r"decimal(?:\(\s*(\d{1,2})\s*,\s*(-?\d{1,2})\s*\))?", text)
    if decimal:
        precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        if not 1 <= precision <= _DECIMAL_DIGITS_MAX or scale > precision:
            raise _malformed("a decimal type has impossible digits")
        compact = precision <= DECIMAL_COMPACT_DIGITS_MAX
        return Atomic("decimal", 8 if compact else 0, precision=precision, scale=scale)
    string = re.fullmatch(r"(?:var)?char\(\d+\)|string collate (\w+)", text)
    if string:
        other = string[1] is not None and string[1] != _BINARY_COLLATION
        return Atomic("string", 0, collated=collated or other, errors=errors)
    if re.fullmatch(r"time\(\d\)", text):
        return Atomic("time", 8)
    if text in ("interval", "calendar_interval"):
        return Atomic("calendar", 0)
    if re.fullmatch(r"interval (year|month)( to month)?", text):
        return Atomic("year-month", 4)
    if re.fullmatch(r"interval (day|hour|minute|second)( to (hour|minute|second))?", text):
        return Atomic("day-time", 8)
    if _OPAQUE.fullmatch(text) and not text.startswith("decimal"):
        return Atomic(text[:_OPAQUE_NAME_MAX], 0, opaque=True)
    raise _malformed(f"the type '{text[:60]}' cannot be decoded")
