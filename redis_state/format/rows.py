"""Rows of a bucket part or an ordered block (docs/format.md, section 4.2)."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import lt
from typing import NamedTuple

from redis_state.errors import FormatError, LimitError
from redis_state.format.expiry import EXPIRY_BYTES
from redis_state.format.packing import (
    EXT_APPENDED,
    ByteReader,
    Extension,
    Writer,
    array_head,
    scalars,
)

FAMILY_BYTES = 2
KEY_BYTES_MAX = 1 << 20
VALUE_BYTES_MAX = 64 << 20
_WHAT = "rows"
_PLAIN = {bytes, type(None)}
_ALIKE_MAX = 512
"""Most rows that `find` unpacks at once. A bucket has about 128."""

_BY_HALVES_MAX = 3
"""Most keys that `find` searches by bisection. For more keys, unpacking all keys is faster."""

_LAYOUTS_MAX = 512
"""Number of cached layouts; a family has many, because its blocks differ in row counts."""

_HEAD_BYTES_MAX = 3
"""Longest head of bytes up to 64 KiB."""

_LONG_ARRAY = 0xDC
"""Tag of an array of 16 to 65,535 elements; shorter arrays have lower tags, longer ones higher."""

_BINARY_SIZES = {0xC4: 1, 0xC5: 2}
"""Size of the length of bytes up to 64 KiB, by tag."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Elements that a delta appends to the list of a multi-value family."""

    data: bytes


Value = bytes | Appended | None
"""Change of a key: put, appended, or ``None`` for removed."""

KeyedValue = tuple[bytes, Value]


def stored_key(family: int, encoded: bytes) -> bytes:
    """Returns a key in the form in which rows store it."""
    return family.to_bytes(FAMILY_BYTES, "big") + encoded


def family_of(key: bytes) -> int:
    """Returns the family id at the start of a stored key."""
    return int.from_bytes(key[:FAMILY_BYTES], "big")


def encode(rows: Sequence[KeyedValue]) -> bytes:
    """Encodes rows that are in ascending order of their keys.

    Raises:
        FormatError: The rows are not in order, or a key has no family.
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
            check_limits(key, value, stored=True)
    return payload


def decode(payload: bytes) -> list[KeyedValue]:
    """Decodes rows.

    Raises:
        FormatError: The bytes violate the format.
    """
    return list(zip(*columns(payload), strict=True))


def columns(payload: bytes) -> tuple[list[bytes], list[Value]]:
    """Decodes rows to a list of keys and a list of their changes.

    Raises:
        FormatError: The bytes violate the format.
    """
    pieces = scalars(payload, _WHAT)
    keys, values = pieces[::2], pieces[1::2]
    if len(keys) != len(values):
        raise _bad("a key has no value")
    if not set(map(type, keys)) <= {bytes}:
        raise _bad("bytes were expected")
    _check_keys(keys)
    if not set(map(type, values)) <= _PLAIN:
        values = list(map(_value, values))
    return keys, values


def find(payload: bytes, wanted: Collection[bytes]) -> dict[bytes, bytes] | None:
    """Finds the rows of some keys without decoding all rows, if all rows are puts of one layout.

    Rows of one layout start at multiples of their length, so only the wanted values are extracted.
    A few keys are searched by bisection. If one is not found, the order of all keys is verified,
    because bisection would miss keys in a wrong order.

    Args:
        wanted: Stored keys.

    Returns:
        ``None`` if the rows have no common layout, or violate the format. The caller then uses
        `columns`, which decodes them or raises.
    """
    alike = _alike(payload)
    if alike is None:
        return None
    start, layout = alike
    first, count, length = start.first, start.rows, layout.length
    for at, head in ((first, start.key_head), (start.value_at, layout.value_head)):
        for place, byte in enumerate(head, at):
            if payload[place::length].count(byte) != count:
                return None
    if len(wanted) <= _BY_HALVES_MAX:
        few = _by_halves(payload, wanted, start, layout)
        if few is not None:
            return few
    keys = layout.keys.unpack(payload)
    if not all(map(lt, keys, islice(keys, 1, None))):
        return None
    found: dict[bytes, bytes] = {}
    rest, end = start.value_at + len(layout.value_head), first + length
    for key in wanted:
        row = bisect_left(keys, key)
        if row < count and keys[row] == key:
            found[key] = payload[rest + row * length : end + row * length]
    return found


class Heads(NamedTuple):
    """MessagePack heads of the keys and of the values in a payload whose rows have one layout."""

    key: bytes
    value: bytes

    @property
    def key_bytes(self) -> int:
        """Bytes of each key."""
        return _size_in(self.key)

    @property
    def value_bytes(self) -> int:
        """Bytes of each value."""
        return _size_in(self.value)


def cut_alike(payload: bytes) -> tuple[Heads, bytes] | None:
    """Cuts the array's head off a payload whose rows have one layout, judged by the first row.

    Returns:
        The heads of the first row, and the bytes of all rows; the caller has to check the heads of
        the other rows, and the order of the keys. ``None`` if the rows have different lengths.
    """
    alike = _alike(payload)
    if alike is None:
        return None
    start, layout = alike
    return Heads(start.key_head, layout.value_head), payload[start.first :]


def _alike(payload: bytes) -> tuple[_Start, _Layout] | None:
    start = _start_of(payload[: _begins_with(payload)])
    if start is None:
        return None
    layout = _layout_of(start, payload[start.value_at : start.value_at + _HEAD_BYTES_MAX])
    if layout is None or start.first + start.rows * layout.length != len(payload):
        return None
    return start, layout


def _by_halves(
    payload: bytes, wanted: Iterable[bytes], start: _Start, layout: _Layout
) -> dict[bytes, bytes] | None:
    """Bisects for the keys; returns ``None`` if one is missing or occurs twice."""
    length = layout.length
    key_at, value_at = start.first + len(start.key_head), start.value_at
    key_bytes, rest, end = (
        value_at - key_at,
        value_at + len(layout.value_head),
        start.first + length,
    )
    found: dict[bytes, bytes] = {}
    for key in wanted:
        low, high = 0, start.rows
        while low < high:
            middle = (low + high) >> 1
            at = key_at + middle * length
            if payload[at : at + key_bytes] < key:
                low = middle + 1
            else:
                high = middle
        at = low * length
        if payload[key_at + at : value_at + at] != key:
            return None
        found[key] = payload[rest + at : end + at]
        at += length
        if payload[key_at + at : value_at + at] == key:
            return None
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """Beginning of a payload whose rows have one layout. Equal beginnings are one cached object.

    Attributes:
        first: Position of the first row.
        rows: Number of rows.
        key_head: MessagePack head of each key.
        value_at: Position of the head of the first value.
    """

    first: int
    rows: int
    key_head: bytes
    value_at: int


class _Layout(NamedTuple):
    """Layout that all rows of a payload share.

    Attributes:
        length: Bytes of each row.
        value_head: MessagePack head of each value.
        keys: Unpacks the keys of all rows.
    """

    length: int
    value_head: bytes
    keys: struct.Struct


def _begins_with(payload: bytes) -> int:
    """Returns the size of the array's head and the first key's head, and at most one byte more."""
    tag = payload[0] if payload else 0
    return _HEAD_BYTES_MAX + (1 if tag < _LONG_ARRAY else 3 if tag == _LONG_ARRAY else 5)


@lru_cache(maxsize=_LAYOUTS_MAX)
def _start_of(begins: bytes) -> _Start | None:
    first, size = array_head(begins)
    key_head = _binary_head(begins[first:])
    if not key_head or size % 2 or size // 2 > _ALIKE_MAX or _size_in(key_head) < FAMILY_BYTES:
        return None
    return _Start(first, size // 2, key_head, first + len(key_head) + _size_in(key_head))


@lru_cache(maxsize=_LAYOUTS_MAX)
def _layout_of(start: _Start, value_begins: bytes) -> _Layout | None:
    value_head = _binary_head(value_begins)
    if not value_head:
        return None
    head, size = len(start.key_head), _size_in(start.key_head)
    rest = len(value_head) + _size_in(value_head)
    keys = struct.Struct(f"{start.first}x" + f"{head}x{size}s{rest}x" * start.rows)
    return _Layout(head + size + rest, value_head, keys)


def _binary_head(begins: bytes) -> bytes:
    """Returns the head of the bytes object at the start; empty for other types and above 64 KiB."""
    size = _BINARY_SIZES.get(begins[0], 0) if begins else 0
    return begins[: 1 + size] if size and 1 + size <= len(begins) else b""


def _size_in(head: bytes) -> int:
    return int.from_bytes(head[1:], "big")


def _check_keys(keys: Sequence[bytes]) -> None:
    if keys and min(map(len, keys)) < FAMILY_BYTES:
        raise _bad("a key has no family")
    if sorted(keys) != keys or len(set(keys)) != len(keys):
        raise _bad("the keys are not in ascending order")


def _value(value: object) -> Value:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, Extension) and value.code == EXT_APPENDED:
        return Appended(value.data)
    raise _bad("a value is neither bytes, nil nor appended elements")


def _bad(found: str) -> FormatError:
    return FormatError(f"reading {_WHAT}", found=found)


def check_limits(key: bytes, value: Value, *, stored: bool = False) -> None:
    """Checks the size of a key and of a value.

    Args:
        stored: True if an expiry may follow the value, which does not count.

    Raises:
        LimitError: The key or value is larger than the format allows.
    """
    if len(key) - FAMILY_BYTES > KEY_BYTES_MAX:
        raise LimitError("writing a row", found=f"its key has {len(key) - FAMILY_BYTES} bytes")
    size = len(value.data) if isinstance(value, Appended) else len(value or b"")
    if size > VALUE_BYTES_MAX + (EXPIRY_BYTES if stored else 0):
        raise LimitError("writing a row", found=f"its value has {size} bytes")


def raw_bytes(row: KeyedValue) -> int:
    """Estimates the bytes that a row takes in a payload."""
    key, value = row
    size = len(value.data) if isinstance(value, Appended) else len(value or b"")
    return len(key) + size + 10


def sorted_rows(rows: Mapping[bytes, Value]) -> list[KeyedValue]:
    """Returns rows in the order of a payload."""
    return sorted(rows.items(), key=lambda row: row[0])


def join_elements(elements: Iterable[bytes]) -> bytes:
    """Encodes elements as the value of a multi-value family."""
    out = Writer()
    for element in elements:
        out.piece(element)
    return out.result()


def split_elements(value: bytes) -> list[bytes]:
    """Decodes the elements of a value of a multi-value family.

    Raises:
        FormatError: The bytes are not a list of elements.
    """
    reader = ByteReader(value, "a list of values")
    elements: list[bytes] = []
    while not reader.ended:
        elements.append(reader.binary())
    return elements
