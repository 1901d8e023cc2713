"""Encodes keys and decodes rows of a Python store, for live reads (docs/format.md, section 10)."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from redis_state.codec import MSGPACK, RAW, Codec
from redis_state.codec.typed_row import ROW_CODEC
from redis_state.errors import ConfigError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, split_elements, stored_key

_TYPE = "redis-state.python"
_FAMILIES_MAX = 256
_OWN = {codec.name: codec for codec in (MSGPACK, RAW)}


@dataclass(frozen=True, slots=True)
class PythonCodec:
    """Encodes keys and decodes rows with the codec of a Python store."""

    family: Family
    codec: Codec

    asked = None
    """Always ``None``: keys and values have no columns that could be left out."""

    def only(self, keys: Collection[int], values: Collection[int]) -> PythonCodec:  # noqa: ARG002  # as Codec's
        """Returns the codec itself, because rows have no columns."""
        return self

    @property
    def layout(self) -> Hashable:
        """Identity of the key encoding: codecs with equal layouts encode a key to equal bytes."""
        return (self.family.id, self.family.kind, self.codec.name)

    def likely_partition(self, key: Any, *, partitions: int) -> int:  # noqa: ARG002  # as Codec's
        """Returns 0: the writing program alone knows the partition of a key."""
        return 0

    def encode_key(self, values: Any) -> bytes:
        """Encodes the stored key.

        Raises:
            UsageError: The key has no encoding.
        """
        return stored_key(self.family.id, self.codec.encode_key(values))

    def prefix_range(self, prefix: Any) -> tuple[bytes, bytes | None]:
        """Returns the range of stored keys with a prefix: the first key, and the exclusive end.

        Raises:
            UsageError: The prefix has no encoding.
        """
        low, high = self.codec.prefix_range(prefix)
        family = self.family.id
        return stored_key(family, low), None if high is None else stored_key(family, high)

    def decode_key(self, stored: bytes) -> Any:
        """Decodes a stored key.

        Raises:
            FormatError: The bytes are not a key of this codec.
        """
        return self.codec.decode_key(stored[FAMILY_BYTES:])

    @property
    def columns(self) -> tuple[None, None]:
        """Always ``None``: keys and values have no columns."""
        return None, None

    def key_row(self, stored: bytes) -> tuple[Any]:
        """Decodes a stored key as the only column of a row.

        Raises:
            FormatError: The bytes are not a key of this codec.
        """
        return (self.decode_key(stored),)

    def value_row(self, value: bytes) -> tuple[Any]:
        """Decodes a value as the only column of a row.

        Raises:
            FormatError: The bytes are not a value of this codec.
        """
        return (self.decode_value(value),)

    def decode_value(self, value: bytes) -> Any:
        """Decodes a value.

        Raises:
            FormatError: The bytes are not a value of this codec.
        """
        return self.codec.decode_value(value)

    def decode_values(self, value: bytes) -> list[Any]:
        """Decodes the elements of a list.

        Raises:
            FormatError: The bytes are not a list of this codec.
        """
        return [self.codec.decode_value(element) for element in split_elements(value)]


@lru_cache(maxsize=_FAMILIES_MAX)
def codec_name_of(family: Family) -> str | None:
    """Returns the codec name that a Python store was written with; ``None`` for other state."""
    try:
        schema = json.loads(family.key_schema)
    except ValueError:
        return None
    if not isinstance(schema, dict) or schema.get("type") != _TYPE:
        return None
    return str(schema.get("codec"))


def python_codec(family: Family, name: str, given: Codec | None) -> PythonCodec:
    """Returns the codec of a Python store.

    Args:
        name: The codec's name in the description of the store.
        given: The reader's own codec; ``None`` selects the codec of that name in redis-state.

    Raises:
        ConfigError: The given codec has another name, or redis-state has no codec of that name.
    """
    codec = _OWN.get(name) if given is None else given
    if codec is None or codec.name != name:
        found = f"the store was written with the codec '{name}'"
        if codec is not None:
            found += f", and '{codec.name}' was given"
        raise ConfigError(
            "reading a store of Python",
            found=found,
            advice="Omit the codec: the state of transform_with_state names its own codec."
            if name == ROW_CODEC
            else "Give the codec that the program writes with: operator(0, codec=…).",
        )
    return PythonCodec(family, codec)
