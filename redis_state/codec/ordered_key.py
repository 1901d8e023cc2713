"""Encodes Python keys to bytes that sort like the keys (docs/format.md, section 10.2)."""

from __future__ import annotations

import math
import struct
from typing import Any

from redis_state.errors import FormatError, UsageError

NIL, FALSE, TRUE = 0x01, 0x02, 0x03
ZERO = 0x14
FLOAT, BYTES, TEXT, TUPLE, MAP = 0x21, 0x28, 0x30, 0x38, 0x40
END = b"\0"
_ESCAPED = b"\0\xff"
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_INT_BYTES_MAX = 8
_DEPTH_MAX = 32
_TAGS = {size: bytes([ZERO + size]) for size in range(-_INT_BYTES_MAX, _INT_BYTES_MAX + 1)}
_SMALL_MAX = 255
_SMALL = [bytes([ZERO]), *(bytes([ZERO + 1, value]) for value in range(1, _SMALL_MAX + 1))]
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_DOUBLE = struct.Struct(">d")
_WORD = struct.Struct(">Q")
_NAN = b"\x21\xff\xf8\0\0\0\0\0\0"


def encode_key(key: Any) -> bytes:
    """Encodes a key.

    Raises:
        UsageError: A part of the key has no encoding; the message names its type.
    """
    if type(key) is str:
        return b"\x30" + _utf8(key).replace(END, _ESCAPED) + END
    return _encode(key, 0)


def encode_tuple(items: Any) -> bytes:
    """Encodes a key that is a tuple or list, as `encode_key` does.

    Raises:
        UsageError: A part of the key has no encoding; the message names its type.
    """
    return _encode_items(items, 1)


def decode_key(data: bytes) -> Any:
    """Decodes a key; lists come back as tuples.

    Raises:
        FormatError: The bytes are not a key.
    """
    key, end = _decode(data, 0, 0)
    if end != len(data):
        raise _bad("bytes follow after the end")
    return key


def decode_first(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Decodes the key that starts at `at`, and returns its end too. Keys may be concatenated.

    Raises:
        FormatError: The bytes are not a key.
    """
    return _decode(data, at, 0)


def prefix_range(prefix: Any) -> tuple[bytes, bytes | None]:
    """Returns the range of keys that begin with the elements of a tuple, a text or bytes.

    Raises:
        UsageError: The prefix has another type, or has no encoding.
    """
    if not isinstance(prefix, (tuple, list, str, bytes)):
        raise UsageError(
            "scanning keys by a prefix",
            found=f"the prefix is of type {type(prefix).__name__}",
            advice="Give the first elements as a tuple, or the beginning of a text or of bytes.",
        )
    start = encode_key(prefix)[:-1]
    if isinstance(prefix, (tuple, list)):
        # 0xFF is not a tag, so it sorts after every further element. A longer last element is
        # outside the range, too: 0x00 inside an element is followed by 0xFF.
        return start, start + b"\xff"
    kept = start.rstrip(b"\xff")
    return start, kept[:-1] + bytes([kept[-1] + 1])


def _encode(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind is str:
        return b"\x30" + _utf8(value).replace(END, _ESCAPED) + END
    if kind is int:
        return _encode_int(value)
    if kind is tuple or kind is list:
        return _encode_items(value, depth + 1)
    if kind is bytes:
        escaped: bytes = value.replace(END, _ESCAPED)
        return b"\x28" + escaped + END
    if value is None:
        return b"\x01"
    if kind is bool:
        return b"\x03" if value else b"\x02"
    if kind is float:
        return _encode_float(value)
    if kind is dict:
        if depth == _DEPTH_MAX:
            raise _too_deep(value)
        items: list[tuple[bytes, bytes]] = [
            (_encode(k, depth + 1), _encode(v, depth + 1)) for k, v in value.items()
        ]
        return b"\x40" + b"".join([k + v for k, v in sorted(items)]) + END
    raise _unencodable(value)


def _encode_items(items: Any, depth: int) -> bytes:
    """Encodes a tuple or list. Strings and ints are inlined, because most items are such."""
    if depth > _DEPTH_MAX:
        raise _too_deep(items)
    parts = [b"\x38"]
    for item in items:
        if type(item) is str:
            parts.append(b"\x30" + _utf8(item).replace(END, _ESCAPED) + END)
        else:
            parts.append(_encode_int(item) if type(item) is int else _encode(item, depth))
    parts.append(END)
    return b"".join(parts)


def _encode_int(value: int) -> bytes:
    if 0 <= value <= _SMALL_MAX:
        return _SMALL[value]
    if not _INT_MIN <= value <= _INT_MAX:
        raise _unencodable(value, "it is a whole number of more than 64 bits")
    size = (value.bit_length() + 7) >> 3
    if value >= 0:
        return _TAGS[size] + value.to_bytes(size, "big")
    return _TAGS[-size] + (value + (1 << 8 * size) - 1).to_bytes(size, "big")


def _encode_float(value: float) -> bytes:
    if math.isnan(value):
        return _NAN
    (word,) = _WORD.unpack(_DOUBLE.pack(value + 0.0))
    return b"\x21" + _WORD.pack(word ^ _ALL if word & _SIGN else word | _SIGN)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _unencodable(text, "it is a str with half of a surrogate pair") from None


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(data) or depth > _DEPTH_MAX:
        raise _bad("it ends early, or is nested too deep")
    tag = data[at]
    at += 1
    if tag == TEXT:
        raw, at = _escaped(data, at)
        try:
            return raw.decode(), at
        except UnicodeDecodeError as error:
            raise _bad("a text is not UTF-8") from error
    if ZERO - _INT_BYTES_MAX <= tag <= ZERO + _INT_BYTES_MAX:
        return _decode_int(data, at, tag - ZERO)
    if tag == BYTES:
        return _escaped(data, at)
    if tag in (TUPLE, MAP):
        return _decode_items(data, at, depth, tag)
    if tag == FLOAT:
        word = int.from_bytes(data[at : at + 8], "big")
        if at + 8 > len(data):
            raise _bad("it ends early")
        raw = _WORD.pack(word ^ _SIGN if word & _SIGN else word ^ _ALL)
        return _DOUBLE.unpack(raw)[0], at + 8
    if tag in (NIL, FALSE, TRUE):
        return (None, False, True)[tag - NIL], at
    raise _bad("a tag is unknown")


def _decode_items(data: bytes, at: int, depth: int, tag: int) -> tuple[Any, int]:
    items: list[Any] = []
    size = len(data)
    while True:
        if at >= size:
            raise _bad("it ends early, or is nested too deep")
        if not data[at]:
            break
        item, at = _decode(data, at, depth + 1)
        items.append(item)
    if tag == TUPLE:
        return tuple(items), at + 1
    if len(items) % 2:
        raise _bad("a map has a key without a value")
    try:
        return dict(zip(items[::2], items[1::2], strict=True)), at + 1
    except TypeError:
        raise _bad("a map has a key that is a map") from None


def _decode_int(data: bytes, at: int, size: int) -> tuple[int, int]:
    end = at + abs(size)
    if end > len(data):
        raise _bad("it ends early")
    number = int.from_bytes(data[at:end], "big")
    return (number if size >= 0 else number - (1 << 8 * -size) + 1), end


def _escaped(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(END, at)
    if end >= 0 and data[end + 1 : end + 2] != b"\xff":
        return data[at:end], end + 1
    while end >= 0 and data[end + 1 : end + 2] == b"\xff":
        end = data.find(END, end + 2)
    if end < 0:
        raise _bad("it ends early")
    return data[at:end].replace(_ESCAPED, END), end + 1


def _too_deep(value: object) -> UsageError:
    return _unencodable(value, f"it is nested more than {_DEPTH_MAX} levels deep")


def _unencodable(value: object, found: str = "") -> UsageError:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return UsageError(
        "encoding a key",
        found=found or f"its type is {name}, which has no encoding as a key",
        advice="Nothing was written. docs/python-store.md lists the types; a codec adds others.",
    )


def _bad(found: str) -> FormatError:
    return FormatError("decoding a key", found=found)
