"""Key columns whose bytes sort in the order of their values.

Follows `encodePrefixKeyForRangeScan` of Spark's `RocksDBStateEncoder`. The first byte is 0 for a
negative number, 1 for another number and 2 for null. The number follows, highest byte first. All
bits of a negative real are inverted.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from redis_state.errors import FormatError
from redis_state.rows.unsafe_row import lookup_type
from redis_state.types.schema import UNASKED, Atomic, Field
from redis_state.types.values import to_internal

_NEGATIVE, _POSITIVE, _NULL = 0, 1, 2
_BYTES: Final = {"byte": 1, "short": 2, "integer": 4, "long": 8, "float": 4, "double": 8}
_REALS: Final = {"float": ">f", "double": ">d"}


def check(field: Field, family: str) -> None:
    """Checks that a column can be encoded in the order of its values.

    Raises:
        FormatError: The type of the column has no ordered encoding.
    """
    if not isinstance(field.type, Atomic) or field.type.name not in _BYTES:
        raise FormatError(
            f"reading family '{family}'", found=f"column '{field.name}' cannot be in order"
        )


def encode(field: Field, value: Any) -> bytes:
    """Encodes a value.

    Raises:
        ConfigError: The value does not fit the column.
    """
    type_ = lookup_type(field.name, field.type)
    size = _BYTES[type_.name]
    if value is None:
        return bytes((_NULL,)).ljust(size + 1, b"\0")
    number = to_internal(type_, value, name=field.name)
    if type_.name in _REALS:
        bits = struct.pack(_REALS[type_.name], number)
        if bits[0] >> 7:
            return bytes((_NEGATIVE,)) + bytes(byte ^ 0xFF for byte in bits)
        return bytes((_POSITIVE,)) + bits
    sign = _NEGATIVE if number < 0 else _POSITIVE
    return bytes((sign,)) + int(number).to_bytes(size, "big", signed=True)


def decode(field: Field, data: bytes | None) -> Any:
    """Decodes a value.

    Args:
        data: Encoded value; a damaged key may have ``None``, which no value is encoded as.

    Raises:
        FormatError: The bytes are not a value of this column.
    """
    if field.type is UNASKED:
        return None
    assert isinstance(field.type, Atomic)
    name = field.type.name
    if data is not None and data[:1] == bytes((_NULL,)):
        return None
    if data is None or len(data) != _BYTES[name] + 1 or data[0] > _POSITIVE:
        raise FormatError("decoding a key", found=f"column '{field.name}' is malformed")
    bits = data[1:]
    if name in _REALS:
        if data[0] == _NEGATIVE:
            bits = bytes(byte ^ 0xFF for byte in bits)
        return struct.unpack(_REALS[name], bits)[0]
    return int.from_bytes(bits, "big", signed=True)
