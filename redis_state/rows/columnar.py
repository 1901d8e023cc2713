"""Decodes many of Spark's rows at once, column by column, to Arrow arrays (docs/format.md, 4.2).

Makes the same checks as `unsafe_row`, on all rows together. Rows that fail a check, and columns of
unsupported types, are left to `unsafe_row`, which reads row by row and names the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from redis_state.format.rows import FAMILY_BYTES
from redis_state.rows.arrow_types import arrow_field, arrow_type
from redis_state.rows.codec import FamilyCodec
from redis_state.rows.row_bytes import UnsafeRows
from redis_state.rows.row_matrix import Pieces, split
from redis_state.types.schema import UNASKED, Atomic, Struct, Type

if TYPE_CHECKING:
    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    Flags = npt.NDArray[np.bool_]

_WORD = 8
_WORD_BITS = 64
_VERSION_BYTES = 1
_LENGTH_BYTES = 4
_TIMESTAMP_BYTES = 8
_DECIMAL_BYTES = 16
_TEXT_BYTES_MAX = (1 << 31) - 1
_GATHERED_AT_ONCE = 1 << 20
_NANOS_OF_DAY = 86_400_000_000_000
_TIMESTAMP_BIAS = np.uint64(1 << 63)


class NotColumnarError(Exception):
    """The rows must be read one by one."""


def key_arrays(codec: FamilyCodec, keys: Pieces) -> list[pa.Array]:
    """Decodes the key columns of stored keys, in their order.

    Raises:
        NotColumnarError: This module cannot read the keys.
    """
    if not isinstance(codec.read_keys, UnsafeRows):
        raise NotColumnarError
    fields = codec.read_keys.columns.fields
    first = Struct(tuple(fields[at] for at in codec.first))
    rest = Struct(tuple(fields[at] for at in codec.rest))
    at = FAMILY_BYTES
    match codec.family.kind:
        case "none":
            return _struct(_joined(keys, at), codec.read_keys.columns)
        case "prefix":
            fronts, backs = _halves(keys, at)
            return _struct(_joined(fronts, 0), first) + _struct(_joined(backs, 0), rest)
        case "ts-prefix":
            cut = at + _TIMESTAMP_BYTES
            times, rows = _cut(keys, at, cut), _cut(keys, cut, None)
        case "ts-postfix":
            times, rows = _cut(keys, -_TIMESTAMP_BYTES, None), _cut(keys, at, -_TIMESTAMP_BYTES)
        case _:
            raise NotColumnarError
    return [*_struct(_joined(rows, 0), first), _times(times)]


def value_arrays(codec: FamilyCodec, values: Pieces) -> list[pa.Array]:
    """Decodes the value columns of values, in their order.

    Raises:
        NotColumnarError: This module cannot read the values.
    """
    if not isinstance(codec.read_values, UnsafeRows):
        raise NotColumnarError
    return _struct(_joined(values, 0), codec.read_values.columns)


def repeated(arrays: Sequence[pa.Array], counts: Sequence[int]) -> list[pa.Array]:
    """Repeats each value by its count."""
    places = pa.array(np.repeat(np.arange(len(counts)), counts))
    return [array.take(places) for array in arrays]


@dataclass(frozen=True, slots=True)
class _RowMemory:
    """UnsafeRows at any places in one piece of memory.

    Attributes:
        words: The memory in words of eight bytes.
        starts: Index of the first word of each row.
        sizes: Bytes of each row.
    """

    words: Ints
    starts: Ints
    sizes: Ints


def _cut(pieces: Pieces, start: int, end: int | None) -> Pieces:
    if isinstance(pieces, np.ndarray):
        return pieces[:, start:end]
    return [piece[start:end] for piece in pieces]


def _halves(keys: Pieces, at: int) -> tuple[Pieces, Pieces]:
    """Cuts keys of kind `prefix` in two; the length of the first half stands at a position."""
    begin = at + _LENGTH_BYTES
    if isinstance(keys, np.ndarray):
        lengths = np.ascontiguousarray(keys[:, at:begin]).view("<u4")[:, 0]
        if (lengths != lengths[0]).any():
            return _halves(split(keys), at)
        end = begin + int(lengths[0])
        return keys[:, begin:end], keys[:, end:]
    ends = [begin + int.from_bytes(key[at:begin], "little") for key in keys]
    fronts = [key[begin:end] for key, end in zip(keys, ends, strict=True)]
    return fronts, [key[end:] for key, end in zip(keys, ends, strict=True)]


def _lines(lines: Bytes, skip: int) -> _RowMemory:
    """Returns rows of one width; see `_joined`."""
    head = skip + _VERSION_BYTES
    count, size = len(lines), lines.shape[1] - head
    if not count or size < 0 or size % _WORD or lines[:, skip].any():
        raise NotColumnarError
    words = np.ascontiguousarray(lines[:, head:]).reshape(-1).view("<i8")
    sizes = np.full(count, size, np.int64)
    return _RowMemory(words, np.arange(count, dtype=np.int64) * (size // _WORD), sizes)


def _joined(parts: Pieces, skip: int) -> _RowMemory:
    """Concatenates rows.

    Args:
        parts: Rows, each after its encoding version.
        skip: Bytes in front of the version.
    """
    if isinstance(parts, np.ndarray):
        return _lines(parts, skip)
    head = skip + _VERSION_BYTES
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    sizes = lengths - head
    if not len(parts) or (sizes < 0).any() or (sizes % _WORD).any():
        raise NotColumnarError
    data = np.frombuffer(b"".join(parts), np.uint8)
    if (lengths == lengths[0]).all():
        return _lines(data.reshape(len(parts), -1), skip)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    if data[starts + skip].any():
        raise NotColumnarError
    kept = np.ones(len(data), np.bool_)
    for at in range(head):
        kept[starts + at] = False
    words = data[kept].view("<i8")
    return _RowMemory(words, (np.cumsum(sizes) - sizes) // _WORD, sizes)


def _struct(rows: _RowMemory, struct: Struct) -> list[pa.Array]:
    count = len(struct.fields)
    bits = -(-count // _WORD_BITS)
    fixed = (bits + count) * _WORD
    if (rows.sizes < fixed).any():
        raise NotColumnarError
    nulls = [rows.words[rows.starts + at].view(np.uint64) for at in range(bits)]
    if count % _WORD_BITS and (nulls[-1] >> np.uint64(count % _WORD_BITS)).any():
        raise NotColumnarError
    # As in `unsafe_row._Region`: the variable-length parts together may not exceed their region.
    left = rows.sizes - fixed
    arrays = []
    for at, field in enumerate(struct.fields):
        if field.type is UNASKED:
            arrays.append(pa.nulls(len(rows.starts)))
            continue
        slots = rows.words[rows.starts + (bits + at)]
        null = (nulls[at // _WORD_BITS] >> np.uint64(at % _WORD_BITS) & np.uint64(1)) != 0
        type_ = field.type
        if isinstance(type_, Atomic) and type_.opaque and null.all():
            arrays.append(pa.nulls(len(null), arrow_type(type_)))
            continue
        if isinstance(type_, Atomic) and type_.name == "void" and null.all():
            arrays.append(pa.nulls(len(null)))
            continue
        if isinstance(type_, Atomic) and type_.width:
            if slots[null].any():
                raise NotColumnarError
            arrays.append(_fixed(type_, slots, null))
            continue
        offsets = (slots.view(np.uint64) >> np.uint64(32)).view(np.int64)
        sizes = np.where(null, 0, slots & 0xFFFFFFFF)
        left = left - sizes
        if (~null & ((offsets < fixed) | (offsets + sizes > rows.sizes))).any():
            raise NotColumnarError
        if (left < 0).any():
            raise NotColumnarError
        arrays.append(_variable(type_, rows, offsets, sizes, null))
    return arrays


def _fixed(type_: Atomic, slots: Ints, null: Flags) -> pa.Array:
    bits = type_.width * 8
    if bits < _WORD_BITS and (slots.view(np.uint64) >> np.uint64(bits)).any():
        raise NotColumnarError
    match type_.name:
        case "boolean":
            if (slots > 1).any():
                raise NotColumnarError
            return _array(type_, np.packbits(slots != 0, bitorder="little"), null)
        case "decimal":
            return _decimal(type_, np.stack([slots, slots >> 63], axis=1), null)
        case "time" if ((slots < 0) | (slots >= _NANOS_OF_DAY)).any():
            raise NotColumnarError
    if bits == _WORD_BITS:
        return _array(type_, slots, null)
    return _array(type_, slots.astype(f"<i{type_.width}"), null)


def _variable(type_: Type, rows: _RowMemory, offsets: Ints, sizes: Ints, null: Flags) -> pa.Array:
    if isinstance(type_, Struct):
        return _nested(type_, rows, offsets, sizes, null)
    if not isinstance(type_, Atomic) or type_.name not in ("string", "binary", "decimal"):
        raise NotColumnarError
    data = rows.words.view(np.uint8)
    begins = np.where(null, 0, rows.starts * _WORD + offsets)
    if type_.name == "decimal":
        return _large_decimal(type_, data, begins, sizes, null)
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    if total > _TEXT_BYTES_MAX:
        raise NotColumnarError
    places = np.zeros(len(sizes) + 1, np.int32)
    places[1:] = ends
    gathered = _gathered(data, begins, sizes, ends)
    buffers = [_validity(null), pa.py_buffer(places), pa.py_buffer(gathered)]
    return _checked(pa.Array.from_buffers(arrow_type(type_), len(sizes), buffers))


def _gathered(data: Bytes, begins: Ints, sizes: Ints, ends: Ints) -> Bytes:
    """Concatenates pieces of memory; `ends` are the ends of the pieces in the result.

    Works on about 1 MiB at a time, because copying a byte takes three temporary 8-byte numbers.
    """
    gathered = np.empty(int(ends[-1]), np.uint8)
    shifts = begins - (ends - sizes)
    first, start = 0, 0
    while first < len(ends):
        last = int(np.searchsorted(ends, start + _GATHERED_AT_ONCE, side="right"))
        if last <= first:
            last = first + 1
            end, begin = int(ends[first]), int(begins[first])
            gathered[start:end] = data[begin : begin + end - start]
        else:
            end = int(ends[last - 1])
            moved = np.repeat(shifts[first:last], sizes[first:last])
            gathered[start:end] = data[np.arange(start, end) + moved]
        first, start = last, end
    return gathered


def _nested(struct: Struct, rows: _RowMemory, offsets: Ints, sizes: Ints, null: Flags) -> pa.Array:
    there = np.flatnonzero(~null)
    if (offsets[there] % _WORD).any() or (sizes[there] % _WORD).any() or not struct.fields:
        raise NotColumnarError
    inner = _RowMemory(rows.words, rows.starts[there] + offsets[there] // _WORD, sizes[there])
    children = (
        _struct(inner, struct)
        if len(there)
        else [pa.array([], arrow_type(field.type)) for field in struct.fields]
    )
    if len(there) < len(null):
        places = np.zeros(len(null), np.int64)
        places[there] = np.arange(len(there))
        taken = pa.array(places, mask=null)
        children = [child.take(taken) for child in children]
    fields = [arrow_field(field) for field in struct.fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array(null))


def _large_decimal(type_: Atomic, data: Bytes, begins: Ints, sizes: Ints, null: Flags) -> pa.Array:
    if (~null & ((sizes < 1) | (sizes > _DECIMAL_BYTES))).any():
        raise NotColumnarError
    last = begins + np.maximum(sizes, 1) - 1
    sign = np.where(~null & (data[begins] > 0x7F), 0xFF, 0).astype(np.uint8)
    digits = np.empty((len(sizes), _DECIMAL_BYTES), np.uint8)
    for at in range(_DECIMAL_BYTES):
        digits[:, at] = np.where(at < sizes, data[np.maximum(last - at, 0)], sign)
    return _decimal(type_, digits, null)


def _decimal(type_: Atomic, unscaled: npt.NDArray[Any], null: Flags) -> pa.Array:
    """Builds an array from unscaled numbers of 16 bytes each, lowest byte first."""
    return _checked(_array(type_, np.ascontiguousarray(unscaled), null))


def _times(times: Pieces) -> pa.Array:
    joined = times.tobytes() if isinstance(times, np.ndarray) else b"".join(times)
    if len(joined) != len(times) * _TIMESTAMP_BYTES:
        raise NotColumnarError
    biased = np.frombuffer(joined, ">u8").astype(np.uint64)
    return pa.array((biased ^ _TIMESTAMP_BIAS).view(np.int64))


def _array(type_: Atomic, data: npt.NDArray[Any], null: Flags) -> pa.Array:
    return pa.Array.from_buffers(
        arrow_type(type_), len(null), [_validity(null), pa.py_buffer(data)]
    )


def _validity(null: Flags) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None


def _checked(array: pa.Array) -> pa.Array:
    """Checks that text is UTF-8, and that decimals have no more digits than their type."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise NotColumnarError from None
    return array
