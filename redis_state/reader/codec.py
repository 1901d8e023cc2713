"""Keys and values of a family: column values to stored bytes and back (docs/format.md, 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from redis_state.errors import ConfigError, FormatError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, stored_key
from redis_state.reader import unsafe_row
from redis_state.reader.spark_types import Row, Struct, parse_schema

_VERSION = b"\0"
_LENGTH_BYTES = 4
_KNOWN_MAX = 256
_READABLE_KINDS = ("none", "prefix")

KeyValues = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """Encodes keys and decodes rows of one family."""

    family: Family
    key: Struct
    value: Struct

    def encode_key(self, values: KeyValues) -> bytes:
        """The stored key of a row with these key columns.

        Raises:
            ConfigError: A column is missing, unknown or cannot be looked up.
        """
        items = unsafe_row.in_order(self.key, values)
        if self.family.kind == "none":
            encoded = _VERSION + unsafe_row.encode(self.key, items, normalize_zero=True)
        else:
            prefix_schema, rest_schema = self._split()
            count = len(prefix_schema.fields)
            prefix = _VERSION + unsafe_row.encode(prefix_schema, items[:count], normalize_zero=True)
            rest = _VERSION + unsafe_row.encode(rest_schema, items[count:], normalize_zero=True)
            encoded = len(prefix).to_bytes(_LENGTH_BYTES, "little") + prefix + rest
        return stored_key(self.family.id, encoded)

    def decode_key(self, stored: bytes) -> dict[str, Any]:
        """The key columns of a stored key.

        Raises:
            FormatError: The bytes are no such key.
        """
        encoded = stored[FAMILY_BYTES:]
        if self.family.kind == "none":
            return _row(self.key, encoded).as_dict()
        size = int.from_bytes(encoded[:_LENGTH_BYTES], "little", signed=True)
        end = _LENGTH_BYTES + size
        if size < 0 or end > len(encoded):
            raise FormatError("decoding a key", found="its prefix is longer than the key")
        prefix_schema, rest_schema = self._split()
        prefix = _row(prefix_schema, encoded[_LENGTH_BYTES:end]).as_dict()
        return {**prefix, **_row(rest_schema, encoded[end:]).as_dict()}

    def decode_value(self, value: bytes) -> dict[str, Any]:
        """The value columns of a value.

        Raises:
            FormatError: The bytes are no such value.
        """
        return _row(self.value, value).as_dict()

    def _split(self) -> tuple[Struct, Struct]:
        count = self.family.params[0]
        return Struct(self.key.fields[:count]), Struct(self.key.fields[count:])


@lru_cache(maxsize=_KNOWN_MAX)
def codec_of(family: Family) -> Codec:
    """The codec of a family.

    Raises:
        ConfigError: This release cannot read rows of its kind by column.
        FormatError: A schema is malformed.
    """
    if family.kind not in _READABLE_KINDS or family.multi_value:
        kind = "multi-value" if family.multi_value else family.kind
        raise ConfigError(
            f"reading family '{family.name}'",
            found=f"its kind is {kind}",
            advice=f"This release reads families of the kinds {' and '.join(_READABLE_KINDS)}.",
        )
    key, value = parse_schema(family.key_schema), parse_schema(family.value_schema)
    if family.kind == "prefix" and not 0 < family.params[0] <= len(key.fields):
        raise FormatError(f"reading family '{family.name}'", found="its prefix has no such columns")
    return Codec(family, key, value)


def _row(schema: Struct, data: bytes) -> Row:
    if data[:1] != _VERSION:
        raise FormatError("decoding a row", found="its encoding version is unknown")
    return unsafe_row.decode(schema, data[1:])
