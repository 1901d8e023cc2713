"""Rows of a bucket part or an ordered block (docs/format.md, section 4.2)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis_state.errors import FormatError, LimitError
from redis_state.format.packing import EXT_APPENDED, Extension, Reader, Writer

FAMILY_BYTES = 2
KEY_BYTES_MAX = 1 << 20
VALUE_BYTES_MAX = 64 << 20
_WHAT = "rows"
_PLAIN = {bytes, type(None)}


@dataclass(frozen=True, slots=True)
class Appended:
    """Elements that a delta appends to the list of a multi-value family."""

    data: bytes


Value = bytes | Appended | None
"""What a row says of its key: put, appended, or ``None`` for removed."""

Row = tuple[bytes, Value]


def stored_key(family: int, encoded: bytes) -> bytes:
    """A key as rows hold it."""
    return family.to_bytes(FAMILY_BYTES, "big") + encoded


def family_of(key: bytes) -> int:
    """The family id at the head of a stored key."""
    return int.from_bytes(key[:FAMILY_BYTES], "big")


def encode(rows: Sequence[Row]) -> bytes:
    """Write rows, which are in ascending order of their keys.

    Raises:
        FormatError: They are not in order, or a key has no family.
        LimitError: A key or value is larger than the format allows.
    """
    keys = [key for key, _ in rows]
    _check_keys(keys)
    flat: list[bytes | Extension | None] = [None] * (2 * len(rows))
    flat[::2] = keys
    flat[1::2] = [
        Extension(EXT_APPENDED, value.data) if isinstance(value, Appended) else value
        for _, value in rows
    ]
    out = Writer()
    out.scalars(flat)
    payload = out.result()
    if len(payload) > KEY_BYTES_MAX:
        for key, value in rows:
            check_limits(key, value)
    return payload


def decode(payload: bytes) -> list[Row]:
    """Read rows.

    Raises:
        FormatError: The bytes are not what the format says.
    """
    reader = Reader(payload, _WHAT)
    size = reader.array_size()
    if size % 2:
        raise reader.bad("a key has no value")
    pieces = reader.pieces(size)
    reader.end()
    keys, values = pieces[::2], pieces[1::2]
    if not set(map(type, keys)) <= {bytes}:
        raise reader.bad("bytes were expected")
    _check_keys(keys)
    if not set(map(type, values)) <= _PLAIN:
        values = [_value(reader, value) for value in values]
    return list(zip(keys, values, strict=True))


def _check_keys(keys: Sequence[bytes]) -> None:
    if keys and min(map(len, keys)) < FAMILY_BYTES:
        raise FormatError(f"reading {_WHAT}", found="a key has no family")
    if not all(map(operator.lt, keys, keys[1:])):
        raise FormatError(f"reading {_WHAT}", found="the keys are not in ascending order")


def _value(reader: Reader, value: object) -> Value:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, Extension) and value.code == EXT_APPENDED:
        return Appended(value.data)
    raise reader.bad("a value is neither bytes, nil nor appended elements")


def check_limits(key: bytes, value: Value) -> None:
    """Refuse what is too large.

    Raises:
        LimitError: A key or value is larger than the format allows.
    """
    if len(key) - FAMILY_BYTES > KEY_BYTES_MAX:
        raise LimitError("writing a row", found=f"its key has {len(key) - FAMILY_BYTES} bytes")
    size = len(value.data) if isinstance(value, Appended) else len(value or b"")
    if size > VALUE_BYTES_MAX:
        raise LimitError("writing a row", found=f"its value has {size} bytes")


def raw_bytes(row: Row) -> int:
    """About how many bytes a row takes in a payload."""
    key, value = row
    size = len(value.data) if isinstance(value, Appended) else len(value or b"")
    return len(key) + size + 10


def sorted_rows(rows: Mapping[bytes, Value]) -> list[Row]:
    """Rows in the order of a payload."""
    return sorted(rows.items(), key=lambda row: row[0])


def join_elements(elements: Iterable[bytes]) -> bytes:
    """The value of a multi-value family with these elements."""
    out = Writer()
    for element in elements:
        out.piece(element)
    return out.result()


def split_elements(value: bytes) -> list[bytes]:
    """The elements of a value of a multi-value family.

    Raises:
        FormatError: The bytes are not such a value.
    """
    reader = Reader(value, "a list of values")
    elements: list[bytes] = []
    while not reader.ended:
        elements.append(reader.binary())
    return elements
