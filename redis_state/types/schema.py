"""Spark's types, parsed from schema JSON without pyspark, and the rows of their values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_state.errors import FormatError
from redis_state.types.decoding import AS_WRITTEN, HANDLERS, Decoding

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

DECIMAL_COMPACT_DIGITS_MAX = 18
_DECIMAL_DIGITS_MAX = 38
_NESTING_MAX = 64
_OPAQUE_NAME_MAX = 60
_COLLATIONS = "__COLLATIONS"
_BY_BYTES = "UTF8_BINARY"

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
    "binary": 0,
    "void": 0,
}
_NAMED = (
    (re.compile(r"time\(\d\)"), "time", 8),
    (re.compile(r"(calendar_)?interval"), "calendar", 0),
    (re.compile(r"interval (year|month)( to month)?"), "year-month", 4),
    (re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?"), "day-time", 8),
)
"""Types that have another name here: as Spark writes them, the name, and the bytes of a value."""

INTEGERS = {
    "byte": (-(1 << 7), (1 << 7) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "integer": (-(1 << 31), (1 << 31) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
}
"""Bounds of each type of whole numbers."""

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
        collation: Collation of a string that does not compare by its bytes; else empty.
        errors: The `errors` argument of `str` that decodes a string, or a text inside a VARIANT,
            that is not UTF-8.
        binary: True if a VARIANT is read as its binaries.
        opaque: True if this release cannot represent the values outside Spark. `name` is then the
            type as Spark writes it.
        text: The type as Spark writes it; of a user-defined type, the name of its class.
    """

    name: str
    width: int
    precision: int = 0
    scale: int = 0
    collation: str = ""
    errors: str = "strict"
    binary: bool = False
    opaque: bool = False
    text: str = field(default="", compare=False)


UDT = "udt"
"""Name of a user-defined type."""

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
    nullable: bool = True


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
    """A list of values of one type, which may be null if `nullable`."""

    element: Type
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Map:
    """Pairs of key and value; the values may be null if `nullable`."""

    key: Type
    value: Type
    nullable: bool = True


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


def named(
    names: Sequence[str], values: Sequence[Any], asked: Collection[int] | None
) -> dict[str, Any]:
    """Returns values by name: those at the places asked for, or all if `asked` is ``None``."""
    pairs = zip(names, values, strict=True)
    if asked is None:
        return dict(pairs)
    return {name: value for at, (name, value) in enumerate(pairs) if at in asked}


def hashable(value: Any) -> Any:
    """Makes a map key hashable: lists, also inside a struct, become tuples."""
    if isinstance(value, Row):
        return Row(value.names, tuple(map(hashable, value)))
    return tuple(map(hashable, value)) if type(value) in (list, tuple) else value


def parse_schema(
    schema: str | bytes | Mapping[str, Any],
    decoding: Decoding = AS_WRITTEN,
    *,
    with_udts: bool = False,
) -> Struct:
    """Parses the schema of a row, given as Spark's JSON text or as `StructType.jsonValue()`.

    An unknown type becomes opaque, so that the other columns can be read.

    Args:
        with_udts: Makes a user-defined type the opaque type `UDT`, instead of its storage type.

    Raises:
        FormatError: The schema is malformed.
    """
    if isinstance(schema, (str, bytes)):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise _malformed("it is not JSON") from error
    parsed = _SchemaParser(decoding, with_udts=with_udts).parse(schema, {}, "", depth=0)
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


def kind_of(type_: Type) -> str:
    """Returns the name of a type for errors: ``array``, ``map``, ``struct``, or as Spark's JSON."""
    return type_.text if isinstance(type_, Atomic) else type(type_).__name__.lower()


def _malformed(found: str) -> FormatError:
    return FormatError("reading a Spark schema", found=found)


class _SchemaParser:
    """Parses types.

    `collations` has the collations of the nearest field by the paths of its strings, and `path` is
    the path of the type there.
    """

    def __init__(self, decoding: Decoding, *, with_udts: bool) -> None:
        self._errors = HANDLERS[decoding.text]
        self._binary = decoding.variant == "binary"
        self._with_udts = with_udts

    def parse(self, node: Any, collations: Mapping[str, str], path: str, *, depth: int) -> Type:
        if depth > _NESTING_MAX:
            raise _malformed(f"types are nested more than {_NESTING_MAX} deep")
        if isinstance(node, str):
            return self._atomic(node, collations.get(path, ""))
        kind = node.get("type") if isinstance(node, Mapping) else None
        if kind == "struct":
            fields = node.get("fields")
            if not isinstance(fields, list):
                raise _malformed("a struct has no list of fields")
            return Struct(tuple(self._field(one, depth=depth + 1) for one in fields))

        def part(name: str, step: str) -> Type:
            return self.parse(node.get(name), collations, path + step, depth=depth + 1)

        if kind == "array":
            return Array(part("elementType", ".element"), _is_nullable(node, "containsNull"))
        if kind == "map":
            nullable = _is_nullable(node, "valueContainsNull")
            return Map(part("keyType", ".key"), part("valueType", ".value"), nullable)
        if kind == "udt":
            if self._with_udts:
                name = node.get("pyClass") or node.get("class") or "a program"
                return Atomic(UDT, 0, opaque=True, text=str(name))
            return part("sqlType", "")
        raise _malformed("a type is neither a name nor a struct, array, map or user-defined type")

    def _field(self, node: Any, *, depth: int) -> Field:
        if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
            raise _malformed("a field has no name")
        name = node["name"]
        metadata = node.get("metadata")
        # Spark writes a collated string as "string" and puts the collation into the metadata of
        # the nearest field, keyed by the path to the string, which begins with the field's name.
        found = metadata.get(_COLLATIONS) if isinstance(metadata, Mapping) else None
        named = found.items() if isinstance(found, Mapping) else ()
        collations = {path[len(name) :]: str(collation) for path, collation in named}
        type_ = self.parse(node.get("type"), collations, "", depth=depth)
        return Field(name, type_, _is_nullable(node, "nullable"))

    def _atomic(self, text: str, collation: str) -> Atomic:
        if text == "variant":
            return Atomic(text, 0, errors=self._errors, binary=self._binary, text=text)
        if text in _WIDTHS:
            return Atomic(text, _WIDTHS[text], text=text)
        decimal = re.fullmatch(r"decimal(?:\(\s*(\d{1,2})\s*,\s*(-?\d{1,2})\s*\))?", text)
        if decimal:
            digits, scale = int(decimal[1] or 10), int(decimal[2] or 0)
            if not 1 <= digits <= _DECIMAL_DIGITS_MAX or scale > digits:
                raise _malformed("a decimal type has impossible digits")
            width = 8 if digits <= DECIMAL_COMPACT_DIGITS_MAX else 0
            return Atomic("decimal", width, precision=digits, scale=scale, text=text)
        string = re.fullmatch(r"string|(?:var)?char\(\d+\)|string collate (\w+)", text)
        if string:
            collation = (string[1] or collation).rpartition(".")[2]
            collation = "" if collation == _BY_BYTES else collation
            return Atomic("string", 0, collation=collation, errors=self._errors, text=text)
        for pattern, name, width in _NAMED:
            if pattern.fullmatch(text):
                return Atomic(name, width, text=text)
        if _OPAQUE.fullmatch(text) and not text.startswith("decimal"):
            return Atomic(text[:_OPAQUE_NAME_MAX], 0, opaque=True, text=text)
        raise _malformed(f"the type '{text[:60]}' cannot be decoded")


def _is_nullable(node: Mapping[str, Any], name: str) -> bool:
    return bool(node.get(name, True))
