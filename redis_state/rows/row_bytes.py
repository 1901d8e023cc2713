"""Spark's rows as bytes: an encoding version, then an UnsafeRow or Avro (docs/format.md, 4.2)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from redis_state.errors import FormatError
from redis_state.rows import unsafe_row
from redis_state.rows.avro import AvroRecord
from redis_state.types.decoding import AS_WRITTEN, Decoding
from redis_state.types.schema import UNASKED, Field, Struct, parse_schema

_VERSION = b"\0"
_AVRO = "redis-state.avro"
_ID_BYTES = 2
_KNOWN_MAX = 256


class RowBytes(Protocol):
    """Writes and reads rows of some of the columns of a schema."""

    @property
    def columns(self) -> Struct:
        """All columns of the newest schema."""

    def only(self, ordinals: Collection[int]) -> RowBytes:
        """Returns a reader of these rows that parses only these columns."""

    def encode(self, ordinals: Sequence[int], values: Sequence[Any]) -> bytes:
        """Encodes these columns.

        Raises:
            ConfigError: A value does not fit its column, or rows cannot be looked up by the type.
        """

    def decode(self, ordinals: Sequence[int], data: bytes) -> Sequence[Any]:
        """Decodes these columns.

        Raises:
            FormatError: The bytes are not a row of this schema.
            UnreadableError: A value has no form outside Spark, or cannot take the chosen form.
        """

    def encode_first(self, ordinals: Sequence[int], values: Sequence[Any]) -> bytes:
        """Encodes the first of two parts of a key."""

    def decode_first(self, ordinals: Sequence[int], data: bytes) -> Sequence[Any]:
        """Decodes the first of two parts of a key."""

    def encode_bytes(self, columns: Sequence[bytes]) -> bytes:
        """Encodes a row of non-null byte strings, the first part of a key of kind ``range``."""

    def decode_bytes(self, count: int, data: bytes) -> Sequence[bytes]:
        """Decodes a row of `encode_bytes`."""


@dataclass(frozen=True, slots=True)
class UnsafeRows:
    """Rows in Spark's in-memory format."""

    columns: Struct

    def only(self, ordinals: Collection[int]) -> UnsafeRows:
        """Implements `RowBytes.only`."""
        return UnsafeRows(_asked(self.columns, ordinals))

    def encode(self, ordinals: Sequence[int], values: Sequence[Any]) -> bytes:
        """Implements `RowBytes.encode`."""
        return _VERSION + unsafe_row.encode(self._of(ordinals), values, normalize_zero=True)

    def decode(self, ordinals: Sequence[int], data: bytes) -> Sequence[Any]:
        """Implements `RowBytes.decode`."""
        return unsafe_row.decode(self._of(ordinals), _behind_version(data))

    def _of(self, ordinals: Sequence[int]) -> Struct:
        # Fast path: ordinals are distinct, so an equal count means all columns, mostly in their
        # order.
        count = len(self.columns.fields)
        if len(ordinals) == count and all(map(int.__eq__, ordinals, range(count))):
            return self.columns
        return _some(self.columns, tuple(ordinals))

    encode_first = encode
    decode_first = decode

    def encode_bytes(self, columns: Sequence[bytes]) -> bytes:
        """Implements `RowBytes.encode_bytes`."""
        return _VERSION + unsafe_row.encode(_binaries(len(columns)), columns)

    def decode_bytes(self, count: int, data: bytes) -> Sequence[bytes]:
        """Implements `RowBytes.decode_bytes`."""
        return unsafe_row.decode(_binaries(count), _behind_version(data))


@dataclass(frozen=True, slots=True)
class AvroRows:
    """Rows of Spark's Avro encoder; each row names the schema that it was written with.

    Attributes:
        columns: The newest columns; those that are not asked for have the type `UNASKED`.
        written: Columns of each schema id.
        whole: The newest columns with all types; ``None`` if `columns` has them.
    """

    columns: Struct
    written: Mapping[int, Struct]
    whole: Struct | None = None

    def only(self, ordinals: Collection[int]) -> AvroRows:
        """Implements `RowBytes.only`."""
        return AvroRows(_asked(self.columns, ordinals), self.written, self.columns)

    def encode(self, ordinals: Sequence[int], values: Sequence[Any]) -> bytes:
        """Implements `RowBytes.encode`, with the newest schema."""
        newest = max(self.written, default=0)
        return b"%s%s%s" % (
            _VERSION,
            newest.to_bytes(_ID_BYTES, "little"),
            self._record(self.columns, ordinals).encode(values),
        )

    def decode(self, ordinals: Sequence[int], data: bytes) -> Sequence[Any]:
        """Implements `RowBytes.decode`; columns that were added later are ``None``."""
        body = _behind_version(data)
        id_ = int.from_bytes(body[:_ID_BYTES], "little")
        writer = self.written.get(id_)
        if writer is None or len(body) < _ID_BYTES:
            raise FormatError("decoding a row", found=f"its schema {id_} is unknown")
        wanted = _some(self.columns, tuple(ordinals))
        # Columns of a key keep their positions; value columns are all wanted, and matched by
        # name.
        whole = len(ordinals) == len(self.columns.fields)
        record = AvroRecord(writer) if whole else self._record(writer, ordinals)
        return record.decode(body[_ID_BYTES:], wanted)

    def encode_first(self, ordinals: Sequence[int], values: Sequence[Any]) -> bytes:
        """Implements `RowBytes.encode_first`: only the second part names its schema."""
        return _VERSION + self._record(self.columns, ordinals).encode(values)

    def decode_first(self, ordinals: Sequence[int], data: bytes) -> Sequence[Any]:
        """Implements `RowBytes.decode_first`."""
        wanted = _some(self.columns, tuple(ordinals))
        written = _some(self.whole or self.columns, tuple(ordinals))
        return AvroRecord(written).decode(_behind_version(data), wanted)

    def encode_bytes(self, columns: Sequence[bytes]) -> bytes:
        """Implements `RowBytes.encode_bytes`: sign and number of a column are separate fields."""
        flat = [part for column in columns for part in (column[:1], column[1:])]
        return _VERSION + AvroRecord(_binaries(len(flat))).encode(flat)

    def decode_bytes(self, count: int, data: bytes) -> Sequence[bytes]:
        """Implements `RowBytes.decode_bytes`."""
        columns = _binaries(2 * count)
        flat = AvroRecord(columns).decode(_behind_version(data), columns)
        if None in flat:
            raise FormatError("decoding a key", found="a required part is null")
        return [sign + number for sign, number in zip(flat[::2], flat[1::2], strict=True)]

    def _record(self, columns: Struct, ordinals: Sequence[int]) -> AvroRecord:
        return AvroRecord(_some(columns, tuple(ordinals)))


@lru_cache(maxsize=_KNOWN_MAX)
def row_bytes(schema: str, decoding: Decoding = AS_WRITTEN) -> UnsafeRows | AvroRows:
    """Returns the row format that a family describes (docs/format.md, section 4.5).

    Raises:
        FormatError: The schema is malformed.
    """
    found = _object(schema)
    if found.get("type") != _AVRO:
        return UnsafeRows(parse_schema(schema, decoding))
    written = found.get("written")
    if not isinstance(written, list) or not all(map(_is_entry, written)):
        raise FormatError("reading a Spark schema", found="it has no written schemas")
    return AvroRows(
        parse_schema(_mapping(found.get("schema")), decoding),
        {id_: parse_schema(columns, decoding) for id_, columns in written},
    )


def _is_entry(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int


def _object(text: str) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise FormatError("reading a Spark schema", found="it is not JSON") from error


def _mapping(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise FormatError("reading a Spark schema", found="it is not a JSON object")
    return found


def _behind_version(data: bytes) -> bytes:
    if data[:1] != _VERSION:
        raise FormatError("decoding a row", found="its encoding version is unknown")
    return data[1:]


@lru_cache(maxsize=_KNOWN_MAX)
def _some(columns: Struct, ordinals: tuple[int, ...]) -> Struct:
    if max(ordinals, default=-1) >= len(columns.fields):
        raise FormatError("decoding a row", found="its schema has fewer columns")
    return Struct(tuple(columns.fields[at] for at in ordinals))


def _asked(columns: Struct, ordinals: Collection[int]) -> Struct:
    fields = enumerate(columns.fields)
    return Struct(tuple(one if at in ordinals else Field(one.name, UNASKED) for at, one in fields))


@lru_cache(maxsize=_KNOWN_MAX)
def _binaries(count: int) -> Struct:
    names = [{"name": f"c{at}", "type": "binary"} for at in range(count)]
    return parse_schema({"type": "struct", "fields": names})
