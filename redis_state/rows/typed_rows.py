"""Encodes keys and decodes rows of a processor's state variables, for live reads.

Rows have the shape of those of Spark's `transformWithState` (docs/format.md, section 10.6).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timezone
from functools import lru_cache
from typing import Any

from redis_state.codec.spark_types import JsonType
from redis_state.codec.typed_row import TypedKey, TypedRow
from redis_state.errors import ConfigError, FormatError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, split_elements, stored_key
from redis_state.rows.murmur3 import partition_of
from redis_state.rows.spark_types import Atomic, Field, Row, Struct, parse_schema
from redis_state.rows.unsafe_row import in_order

_KEY, _USER_KEY = "key", "userKey"
_VALUE, _EXPIRY = "value", "ttlExpirationMs"
_KNOWN_MAX = 256

_ToPython = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class TypedRowCodec:
    """Encodes keys and decodes rows of one state variable.

    Attributes:
        key: The columns of a key: those of the group. For a map: a struct of the group's columns,
            and
            the user's key.
        row: Decodes values.
        value: The columns of a value.
        shapes: Converts the value of each column for the caller; ``None`` for no conversion.
        expires: True if rows have a time to live.
        asked: Ordinals of the key and value columns to return by name; ``None`` means all.
    """

    family: Family
    key: Struct
    keys: tuple[_KeyColumns, ...]
    row: TypedRow
    value: Struct
    shapes: tuple[_ToPython | None, ...]
    expires: bool = False
    asked: tuple[frozenset[int], frozenset[int]] | None = None

    def only(self, keys: Collection[int], values: Collection[int]) -> TypedRowCodec:
        """Returns a codec that returns only these columns by name. All columns are parsed."""
        asked = frozenset(keys), frozenset(values)
        if self.asked is not None:
            asked = asked[0] & self.asked[0], asked[1] & self.asked[1]
        return replace(self, asked=asked)

    @property
    def layout(self) -> Hashable:
        """Identity of the key encoding: codecs with equal layouts encode a key to equal bytes."""
        return (self.family.id, self.key)

    @property
    def shuffled_by(self) -> Struct:
        """The columns of the group."""
        return self.keys[0].columns

    def likely_partition(self, key: Any, *, partitions: int) -> int:
        """Returns the shuffle partition of a group; 0 if only Spark can hash the key."""
        group = self.keys[0]
        try:
            values = group.in_order(self._parts(key)[0])
            return partition_of(group.columns, values, partitions=partitions)
        except ConfigError:
            return 0

    def encode_key(self, values: Any) -> bytes:
        """Encodes the stored key.

        Raises:
            ConfigError: A column is missing or unknown.
            UsageError: A value does not fit its column.
        """
        parts = zip(self.keys, self._parts(values), strict=True)
        encoded = b"".join(one.codec.encode(one.in_order(part)) for one, part in parts)
        return stored_key(self.family.id, encoded)

    def decode_key(self, stored: bytes) -> dict[str, Any]:
        """Decodes the key columns of a stored key. A map has ``key`` (the group) and ``userKey``.

        Raises:
            FormatError: The bytes are not a key of this variable.
        """
        return self._named(0, self.key.names, self.key_row(stored))

    def key_row(self, stored: bytes) -> Sequence[Any]:
        """Decodes the values of the key columns, in their order.

        Raises:
            FormatError: The bytes are not a key of this variable.
        """
        at, found = FAMILY_BYTES, []
        for one in self.keys:
            values, at = one.codec.decode_first(stored, at)
            found.append(one.handed_out(values))
        if at != len(stored):
            raise FormatError(
                f"reading family '{self.family.name}'", found="bytes follow after a key"
            )
        return found[0] if len(found) == 1 else found

    def decode_value(self, value: bytes) -> dict[str, Any]:
        """Decodes the value columns. Values with a time to live are nested as ``value``.

        A second column has the expiry in ms.

        Raises:
            FormatError: The bytes are not a value of this variable.
        """
        expiry, values = self.row.decode_with_expiry(value)
        row = _row(self.row.names, values, self.shapes)
        if expiry is None:
            return self._named(1, self.row.names, row)
        return self._named(1, (_VALUE, _EXPIRY), (row, expiry))

    def _named(self, part: int, names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
        """Returns the columns of a row by name, without those that are not asked for."""
        if self.asked is None:
            return dict(zip(names, row, strict=True))
        return {
            name: value
            for at, (name, value) in enumerate(zip(names, row, strict=True))
            if at in self.asked[part]
        }

    @property
    def columns(self) -> tuple[Struct, Struct]:
        """The columns of `key_row` and of `value_row`."""
        if not self.expires:
            return self.key, self.value
        fields = Field(_VALUE, self.value), Field(_EXPIRY, Atomic("long", 8))
        return self.key, Struct(fields)

    def value_row(self, value: bytes) -> Sequence[Any]:
        """Decodes the values of the value columns, in their order.

        Raises:
            FormatError: The bytes are not a value of this variable.
        """
        expiry, values = self.row.decode_with_expiry(value)
        row = _row(self.row.names, values, self.shapes)
        return (row, expiry) if self.expires else row

    def decode_values(self, value: bytes) -> list[dict[str, Any]]:
        """Decodes the value columns of each element of a list.

        Raises:
            FormatError: The bytes are not a list of this variable.
        """
        return [self.decode_value(element) for element in split_elements(value)]

    def _parts(self, key: Any) -> Sequence[Any]:
        """Splits a key into the group and, for a map, the user's key."""
        return (key,) if len(self.keys) == 1 else in_order(self.key, key)


@dataclass(frozen=True, slots=True)
class _KeyColumns:
    """The columns of a group's or of a user's key."""

    columns: Struct
    codec: TypedKey
    shapes: tuple[_ToPython | None, ...]

    def in_order(self, key: Any) -> Sequence[Any]:
        """Returns the values of a key, given by name, in order, or bare if there is one column."""
        several = isinstance(key, (Mapping, Sequence)) and not isinstance(key, (str, bytes))
        if len(self.columns.fields) == 1 and not several:
            return (key,)
        return in_order(self.columns, key)

    def handed_out(self, values: Sequence[Any]) -> Row:
        return _row(self.columns.names, values, self.shapes)


@lru_cache(maxsize=_KNOWN_MAX)
def typed_row_codec(family: Family) -> TypedRowCodec:
    """Returns the codec of a state variable.

    Raises:
        FormatError: The schemas of the family are malformed.
    """
    what = f"reading family '{family.name}'"
    try:
        described = json.loads(family.key_schema)
        values = json.loads(family.value_schema)
        written = values["written"]
        keys = tuple(
            _columns(described[part], family.name) for part in ("key", "user") if part in described
        )
        now = written[values["now"]]
        row = TypedRow(now, written, what=f"state variable '{family.name}'", zone=timezone.utc)
        shapes = _shapes(json.loads(now))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise FormatError(what, found="its schema is malformed") from error
    parts = tuple(
        Field(name, one.columns) for name, one in zip((_KEY, _USER_KEY), keys, strict=False)
    )
    return TypedRowCodec(
        family,
        keys[0].columns if len(keys) == 1 else Struct(parts),
        keys,
        row,
        parse_schema(now),
        shapes,
    )


def _columns(schema: Mapping[str, Any], name: str) -> _KeyColumns:
    text = json.dumps(schema)
    codec = TypedKey(text, what=f"a key of state variable '{name}'", zone=timezone.utc)
    return _KeyColumns(parse_schema(text), codec, _shapes(schema))


def _row(names: Sequence[str], values: Sequence[Any], shapes: Sequence[_ToPython | None]) -> Row:
    pairs = zip(values, shapes, strict=True)
    made = tuple(one if one is None or shape is None else shape(one) for one, shape in pairs)
    return Row(tuple(names), made)


def _shapes(schema: Mapping[str, Any]) -> tuple[_ToPython | None, ...]:
    return tuple(_shape(field["type"]) for field in schema["fields"])


def _shape(kind: JsonType) -> _ToPython | None:
    """Returns the conversion of structs at any depth to rows; ``None`` without a struct."""
    if isinstance(kind, str):
        return None
    if kind["type"] == "struct":
        names = [field["name"] for field in kind["fields"]]
        shapes = _shapes(kind)
        return lambda values: _row(names, values, shapes)
    if kind["type"] == "array":
        element = _shape(kind["elementType"])
        if element is None:
            return None
        return lambda values: [one if one is None else element(one) for one in values]
    key, value = _shape(kind["keyType"]) or _same, _shape(kind["valueType"]) or _same
    return lambda pairs: {
        key(one): other if other is None else value(other) for one, other in pairs.items()
    }


def _same(value: Any) -> Any:
    return value
