"""Encodes keys and decodes keys and values of a family (docs/format.md, section 4.2)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from redis_state.errors import ConfigError, FormatError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, split_elements, stored_key
from redis_state.rows import ordered_columns, unsafe_row
from redis_state.rows.murmur3 import partition_of
from redis_state.rows.row_bytes import RowBytes, row_bytes
from redis_state.types.decoding import AS_WRITTEN, Decoding
from redis_state.types.schema import Atomic, Struct, named

_LENGTH_BYTES = 4
_TIMESTAMP_BYTES = 8
_TIMESTAMP_BIAS = 1 << 63
_KNOWN_MAX = 256
_WITH_TIMESTAMP = ("ts-prefix", "ts-postfix")
_EVENT_TIME = "__event_time"
"""Spark's name of the timestamp column, which comes after the other key columns."""

KeyValues = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, slots=True)
class FamilyCodec:
    """Encodes keys and decodes rows of one family.

    Attributes:
        first: Ordinals of the key columns that are encoded first: all for kind ``none``, the
            prefix, the ordered columns, or all but the timestamp.
        rest: Ordinals of the other key columns.
        asked: Ordinals of the key columns and of the value columns to parse; ``None`` means all.
        read_keys: Decodes keys.
        read_values: Decodes values.
    """

    family: Family
    keys: RowBytes
    values: RowBytes
    first: tuple[int, ...]
    rest: tuple[int, ...]
    read_keys: RowBytes
    read_values: RowBytes
    asked: tuple[frozenset[int], frozenset[int]] | None = None

    def only(self, keys: Collection[int], values: Collection[int]) -> FamilyCodec:
        """Returns a codec that parses only these columns; other columns are ``None`` in rows.

        Args:
            keys: Ordinals of key columns.
            values: Ordinals of value columns.
        """
        asked = frozenset(keys), frozenset(values)
        if self.asked is not None:
            asked = asked[0] & self.asked[0], asked[1] & self.asked[1]
        return _only(self, asked)

    @property
    def key(self) -> Struct:
        """The key columns."""
        return self.keys.columns

    @property
    def columns(self) -> tuple[Struct, Struct]:
        """The columns of `key_row` and of `value_row`."""
        return self.key, self.values.columns

    @property
    def shuffled_by(self) -> Struct:
        """The key columns by which Spark most likely shuffles."""
        if self.family.kind == "prefix":
            return Struct(tuple(self.key.fields[at] for at in self.first))
        return self.key

    @property
    def layout(self) -> Hashable:
        """Identity of the key encoding: codecs with equal layouts encode a key to equal bytes."""
        return (self.family.id, self.family.kind, self.family.params, self.key)

    def likely_partition(self, key: KeyValues, *, partitions: int) -> int:
        """Returns the partition to search first for a key.

        Spark's shuffle chooses this partition if it groups by the key columns, as most operators
        do. A join shuffles by some of the columns only, so the key may be elsewhere.
        """
        values = unsafe_row.in_order(self.key, key)
        if self.family.kind != "prefix":
            return partition_of(self.key, values, partitions=partitions)
        return partition_of(self.shuffled_by, values[: len(self.first)], partitions=partitions)

    def encode_key(self, values: KeyValues) -> bytes:
        """Encodes the stored key of a row with these key columns.

        Raises:
            ConfigError: A column is missing, unknown or cannot be looked up.
        """
        items = unsafe_row.in_order(self.key, values)
        first = [items[at] for at in self.first]
        rest = [items[at] for at in self.rest]
        return stored_key(self.family.id, self._encoded(first, rest))

    def _encoded(self, first: Sequence[Any], rest: Sequence[Any]) -> bytes:
        match self.family.kind:
            case "none":
                return self.keys.encode(self.first, first)
            case "prefix":
                front = self.keys.encode_first(self.first, first)
            case "range":
                columns = [
                    ordered_columns.encode(self.key.fields[at], value)
                    for at, value in zip(self.first, first, strict=True)
                ]
                front = self.keys.encode_bytes(columns)
            case kind:
                at = _encoded_timestamp(rest[0], self.key.fields[-1].name)
                row = self.keys.encode(self.first, first)
                return at + row if kind == "ts-prefix" else row + at
        size = len(front).to_bytes(_LENGTH_BYTES, "little")
        return size + front + self.keys.encode(self.rest, rest)

    def decode_key(self, stored: bytes) -> dict[str, Any]:
        """Decodes the key columns of a stored key, by name.

        Raises:
            FormatError: The bytes are not a key of this family.
        """
        return named(self.key.labels, self.key_row(stored), self.asked and self.asked[0])

    def key_row(self, stored: bytes) -> list[Any]:
        """Decodes the values of the key columns, in their order.

        Raises:
            FormatError: The bytes are not a key of this family.
        """
        first, rest = self._decoded(stored[FAMILY_BYTES:])
        by_place = dict(zip((*self.first, *self.rest), (*first, *rest), strict=True))
        return [by_place[at] for at in range(len(by_place))]

    def _decoded(self, encoded: bytes) -> tuple[Sequence[Any], Sequence[Any]]:
        match self.family.kind:
            case "none":
                return self.read_keys.decode(self.first, encoded), ()
            case "ts-prefix":
                row, at = encoded[_TIMESTAMP_BYTES:], encoded[:_TIMESTAMP_BYTES]
                return self.read_keys.decode(self.first, row), (_decoded_timestamp(at),)
            case "ts-postfix":
                row, at = encoded[:-_TIMESTAMP_BYTES], encoded[-_TIMESTAMP_BYTES:]
                return self.read_keys.decode(self.first, row), (_decoded_timestamp(at),)
        size = int.from_bytes(encoded[:_LENGTH_BYTES], "little", signed=True)
        end = _LENGTH_BYTES + size
        if size < 0 or end > len(encoded):
            raise FormatError("decoding a key", found="its prefix is longer than the key")
        front = encoded[_LENGTH_BYTES:end]
        first: Sequence[Any]
        if self.family.kind == "prefix":
            first = self.read_keys.decode_first(self.first, front)
        else:
            first = [
                ordered_columns.decode(self.read_keys.columns.fields[at], column)
                for at, column in zip(
                    self.first, self.keys.decode_bytes(len(self.first), front), strict=True
                )
            ]
        return first, self.read_keys.decode(self.rest, encoded[end:])

    def decode_value(self, value: bytes) -> dict[str, Any]:
        """Decodes the value columns, by name.

        Raises:
            FormatError: The bytes are not a value of this family.
        """
        return named(
            self.values.columns.labels, self.value_row(value), self.asked and self.asked[1]
        )

    def value_row(self, value: bytes) -> Sequence[Any]:
        """Decodes the values of the value columns, in their order.

        Raises:
            FormatError: The bytes are not a value of this family.
        """
        return self.read_values.decode(range(len(self.values.columns.fields)), value)

    def decode_values(self, value: bytes) -> list[dict[str, Any]]:
        """Decodes the value columns of each element of a list.

        Raises:
            FormatError: The bytes are not a list of this family.
        """
        return [self.decode_value(element) for element in split_elements(value)]


@lru_cache(maxsize=_KNOWN_MAX)
def codec_of(family: Family, decoding: Decoding = AS_WRITTEN) -> FamilyCodec:
    """Returns the codec of a family.

    Args:
        decoding: The forms of values. Its `columns` are ignored: the caller applies them.

    Raises:
        FormatError: A schema is malformed, or does not name all columns of the key.
    """
    keys = row_bytes(family.key_schema, decoding)
    values = row_bytes(family.value_schema, decoding)
    columns = keys.columns.fields
    every = range(len(columns))
    first: Sequence[int] = every
    if family.kind == "prefix":
        first = range(family.params[0])
    elif family.kind == "range":
        first = family.params
    elif family.kind in _WITH_TIMESTAMP:
        first = every[:-1]
        if not columns or columns[-1].name != _EVENT_TIME or columns[-1].type != Atomic("long", 8):
            raise FormatError(
                f"reading family '{family.name}'",
                found="it is described without the event time of its keys",
                advice=(
                    "An earlier redis-state wrote it. Run one batch of the query with this "
                    "release, then read the version that it commits."
                ),
            )
    if not set(first) <= set(every) or len(set(first)) < len(first):
        raise _bad(family, "its key has no such columns")
    if family.kind == "range":
        for at in first:
            ordered_columns.check(columns[at], family.name)
    rest = tuple(at for at in every if at not in set(first))
    return FamilyCodec(family, keys, values, tuple(first), rest, keys, values)


def _only(codec: FamilyCodec, asked: tuple[frozenset[int], frozenset[int]]) -> FamilyCodec:
    return replace(
        codec,
        read_keys=codec.keys.only(asked[0]),
        read_values=codec.values.only(asked[1]),
        asked=asked,
    )


def _bad(family: Family, found: str) -> FormatError:
    return FormatError(f"reading family '{family.name}'", found=found)


def _encoded_timestamp(value: Any, name: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _TIMESTAMP_BIAS:
        raise ConfigError(
            f"key column '{name}'",
            found=f"a {type(value).__name__} was given",
            advice="Give a whole number: milliseconds or microseconds, as Spark keeps them.",
        )
    return (value + _TIMESTAMP_BIAS).to_bytes(_TIMESTAMP_BYTES, "big")


def _decoded_timestamp(data: bytes) -> int:
    if len(data) != _TIMESTAMP_BYTES:
        raise FormatError("decoding a key", found="it has no timestamp")
    return int.from_bytes(data, "big") - _TIMESTAMP_BIAS
