"""Keys and values of a store that Python keeps, for live reads (docs/format.md, section 10)."""

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
    """Encodes keys and decodes rows as the store's own codec does."""

    family: Family
    codec: Codec

    asked = None
    """Keys and values have no columns that could be left out."""

    def only(self, keys: Collection[int], values: Collection[int]) -> PythonCodec:  # noqa: ARG002  # as Codec's
        """The codec itself."""
        return self

    @property
    def layout(self) -> Hashable:
        """What decides the bytes of a key."""
        return (self.family.id, self.family.kind, self.codec.name)

    def likely_partition(self, key: Any, *, partitions: int) -> int:  # noqa: ARG002  # as Codec's
        """The first: which key lies where is up to the program that writes."""
        return 0

    def encode_key(self, values: Any) -> bytes:
        """The stored key.

        Raises:
            UsageError: The key has no encoding.
        """
        return stored_key(self.family.id, self.codec.encode_key(values))

    def prefix_range(self, prefix: Any) -> tuple[bytes, bytes | None]:
        """The stored keys that begin so: from the first up to, not including, the second.

        Raises:
            UsageError: The prefix has no encoding.
        """
        low, high = self.codec.prefix_range(prefix)
        family = self.family.id
        return stored_key(family, low), None if high is None else stored_key(family, high)

    def decode_key(self, stored: bytes) -> Any:
        """The key of a stored key.

        Raises:
            FormatError: The bytes are not such a key.
        """
        return self.codec.decode_key(stored[FAMILY_BYTES:])

    @property
    def columns(self) -> tuple[None, None]:
        """Only the keys and values themselves tell of what they are."""
        return None, None

    def key_row(self, stored: bytes) -> tuple[Any]:
        """The key, as the value of a column.

        Raises:
            FormatError: The bytes are not such a key.
        """
        return (self.decode_key(stored),)

    def value_row(self, value: bytes) -> tuple[Any]:
        """The value, as that of a column.

        Raises:
            FormatError: The bytes are not such a value.
        """
        return (self.decode_value(value),)

    def decode_value(self, value: bytes) -> Any:
        """The value.

        Raises:
            FormatError: The bytes are not such a value.
        """
        return self.codec.decode_value(value)

    def decode_values(self, value: bytes) -> list[Any]:
        """The elements of a list.

        Raises:
            FormatError: The bytes are not such a list.
        """
        return [self.codec.decode_value(element) for element in split_elements(value)]


@lru_cache(maxsize=_FAMILIES_MAX)
def codec_name_of(family: Family) -> str | None:
    """The name of the codec that a store of Python was written with; ``None`` for other states."""
    try:
        schema = json.loads(family.key_schema)
    except ValueError:
        return None
    if not isinstance(schema, dict) or schema.get("type") != _TYPE:
        return None
    return str(schema.get("codec"))


def python_codec(family: Family, name: str, given: Codec | None) -> PythonCodec:
    """The codec of a store that Python keeps.

    Args:
        name: What the store says of itself.
        given: The reader's own codec; ``None`` means the one of that name.

    Raises:
        ConfigError: It is of another name, or none of that name comes with redis-state.
    """
    codec = _OWN.get(name) if given is None else given
    if codec is None or codec.name != name:
        found = f"the store was written with the codec '{name}'"
        if codec is not None:
            found += f", and '{codec.name}' was given"
        raise ConfigError(
            "reading a store of Python",
            found=found,
            advice="Leave the codec out: the state of transform_with_state says itself how it is "
            "written."
            if name == ROW_CODEC
            else "Give the codec that the program writes with: operator(0, codec=…).",
        )
    return PythonCodec(family, codec)
