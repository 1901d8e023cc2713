"""Encodes keys and decodes rows of a processor's state variables, for live reads.

Rows have the shape of those of Spark's `transformWithState` (docs/format.md, section 10.6).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timezone
from functools import lru_cache
from typing import Any

from redis_state.codec.typed_row import TypedKey, TypedRow
from redis_state.errors import ConfigError, FormatError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, split_elements, stored_key
from redis_state.rows.murmur3 import partition_of
from redis_state.rows.unsafe_row import in_order
from redis_state.types.schema import Atomic, Field, Row, Struct, named, parse_schema

_KEY, _USER_KEY = "key", "userKey"
_VALUE, _EXPIRY = "value", "ttlExpirationMs"
_KNOWN_MAX = 256


@dataclass(frozen=True, slots=True)
class TypedRowCodec:
    """Encodes keys and decodes rows of one state variable.

    Attributes:
        key: The columns of a key: those of the group. For a map: a struct of the group's columns,
            and the user's key.
        row: Decodes values.
        value: The columns of a value.
        expires: True if rows have a time to live.
        asked: Ordinals of the key and value columns to return by name; ``None`` means all.
    """

    family: Family
    key: Struct
    keys: tuple[_KeyColumns, ...]
    row: TypedRow
    value: Struct
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
        return named(self.key.names, self.key_row(stored), self.asked and self.asked[0])

    def key_row(self, stored: bytes) -> Sequence[Any]:
        """Decodes the values of the key columns, in their order.

        Raises:
            FormatError: The bytes are not a key of this variable.
        """
        at, found = FAMILY_BYTES, []
        for one in self.keys:
            values, at = one.codec.decode_first(stored, at)
            found.append(Row(one.columns.names, values))
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
        row = Row(self.value.names, values)
        asked = self.asked and self.asked[1]
        if expiry is None:
            return named(self.value.names, row, asked)
        return named((_VALUE, _EXPIRY), (row, expiry), asked)

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
        row = Row(self.value.names, values)
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

    def in_order(self, key: Any) -> Sequence[Any]:
        """Returns the values of a key, given by name, in order, or bare if there is one column."""
        several = isinstance(key, (Mapping, Sequence)) and not isinstance(key, (str, bytes))
        if len(self.columns.fields) == 1 and not several:
            return (key,)
        return in_order(self.columns, key)


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
        what_row = f"state variable '{family.name}'"
        row = TypedRow(now, written, what=what_row, zone=timezone.utc, rows=True)
        value = parse_schema(now)
    except (ValueError, TypeError, KeyError, IndexError, FormatError) as error:
        raise FormatError(what, found="its schema is malformed") from error
    parts = tuple(
        Field(name, one.columns) for name, one in zip((_KEY, _USER_KEY), keys, strict=False)
    )
    return TypedRowCodec(
        family, keys[0].columns if len(keys) == 1 else Struct(parts), keys, row, value
    )


def _columns(schema: Mapping[str, Any], name: str) -> _KeyColumns:
    what = f"a key of state variable '{name}'"
    codec = TypedKey(json.dumps(schema), what=what, zone=timezone.utc, rows=True)
    return _KeyColumns(parse_schema(schema), codec)
