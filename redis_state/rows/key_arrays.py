"""Encodes many keys at once, and computes their partitions, with numpy.

The results equal those of `FamilyCodec.encode_key` and `FamilyCodec.likely_partition` for each key.
Only keys of kind ``none`` are supported whose columns are numbers, times, text and bytes. Other
keys raise `OneByOneError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from redis_state.format.rows import stored_key
from redis_state.rows.codec import FamilyCodec
from redis_state.rows.murmur3 import INT_TYPES, SEED
from redis_state.rows.row_bytes import UnsafeRows
from redis_state.rows.unsafe_row import NAN, lookup_type
from redis_state.types.schema import Atomic, Struct
from redis_state.types.values import to_internal

Words = npt.NDArray[np.uint64]
Hashes = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

_WORD = 8
_WORD_BITS = 64
_TEXT_BYTES_MAX = 1 << 10
_PLAIN = {"string": str, "binary": bytes, "long": int}
_KINDS = frozenset({"string", "binary", "float", "double"})


class OneByOneError(Exception):
    """The keys must be encoded one by one."""


@dataclass(frozen=True, slots=True)
class _UnsafeColumn:
    """Values of one column in the form of UnsafeRow.

    Attributes:
        slots: The word of each value, for a type of fixed width.
        parts: The bytes of each value, for a type of variable length; empty for null.
    """

    type: Atomic
    null: Flags
    slots: Words
    parts: list[bytes] | None


class KeyArrays:
    """Keys of one family, column by column.

    Args:
        columns: The values of each key column, as for `FamilyCodec.encode_key`.

    Raises:
        OneByOneError: This module does not support the keys, or a value does not fit.
    """

    def __init__(self, codec: FamilyCodec, columns: Sequence[Sequence[Any]]) -> None:
        known = codec.family.kind == "none" and isinstance(codec.keys, UnsafeRows)
        if not known or not columns or not columns[0]:
            raise OneByOneError
        self._family = codec.family.id
        self._columns = [
            _column(field.name, field.type, values)
            for field, values in zip(codec.key.fields, columns, strict=True)
        ]

    def stored(self) -> list[bytes]:
        """Encodes the stored keys."""
        columns = self._columns
        bits = -(-len(columns) // _WORD_BITS)
        first = bits + len(columns)
        count = len(columns[0].null)
        sizes = {
            at: np.fromiter(map(len, column.parts), np.int64, count)
            for at, column in enumerate(columns)
            if column.parts is not None
        }
        words = np.full(count, first, np.int64)
        for size in sizes.values():
            words += -(-size // _WORD)
        ends = np.cumsum(words)
        starts = ends - words
        rows = np.zeros(int(ends[-1]), np.uint64)
        for at, column in enumerate(columns):
            place = np.uint64(at % _WORD_BITS)
            rows[starts + at // _WORD_BITS] |= column.null.astype(np.uint64) << place
            if column.parts is None:
                rows[starts + (bits + at)] = column.slots
        offset = np.full(count, first * _WORD, np.int64)
        behind = starts + first
        raw = rows.view(np.uint8)
        for at, size in sizes.items():
            pointer = (offset << 32 | size).astype(np.uint64)
            rows[starts + (bits + at)] = np.where(columns[at].null, np.uint64(0), pointer)
            _scatter(raw, behind * _WORD, size, b"".join(columns[at].parts or ()))
            room = -(-size // _WORD)
            offset += room * _WORD
            behind = behind + room
        data, head = raw.tobytes(), stored_key(self._family, b"\0")
        cuts = (ends * _WORD).tolist()
        return [head + data[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]

    def partitions(self, count: int) -> list[int]:
        """Returns the partition that Spark's shuffle gives each key, of `count` partitions.

        Raises:
            OneByOneError: A text is too long for this module.
        """
        found: list[int] = (self.hashes() % count).tolist()
        return found

    def hashes(self) -> npt.NDArray[np.int64]:
        """Returns Spark's `hash(columns…)` of each key, a signed 32-bit number.

        Raises:
            OneByOneError: A text is too long for this module.
        """
        return _hashes(self._columns)


def hashes_of(key: Struct, columns: Sequence[Sequence[Any]]) -> npt.NDArray[np.int64]:
    """Returns Spark's `hash(columns…)` of each of many keys, a signed 32-bit number.

    Args:
        columns: The values of each key column, at least one.

    Raises:
        OneByOneError: This module does not support the types, or a text is too long.
        ConfigError: A value does not fit its type exactly.
    """
    pairs = zip(key.fields, columns, strict=True)
    return _hashes([_column(field.name, field.type, values) for field, values in pairs])


def _hashes(columns: Sequence[_UnsafeColumn]) -> npt.NDArray[np.int64]:
    state = np.full(len(columns[0].null), SEED, np.uint32)
    for column in columns:
        state = np.where(column.null, state, _hashed(column, state))
    return state.view(np.int32).astype(np.int64)


def _column(name: str, type_: Any, values: Sequence[Any]) -> _UnsafeColumn:
    if not isinstance(type_, Atomic) or not (type_.width or type_.name in _KINDS):
        raise OneByOneError
    atomic = lookup_type(name, type_)
    types = set(map(type, values))
    null = np.zeros(len(values), np.bool_)
    if type(None) in types:
        null = np.fromiter((value is None for value in values), np.bool_, len(values))
    none = np.zeros(0, np.uint64)
    plain = _PLAIN.get(atomic.name)
    if plain is str and types == {str}:
        try:
            return _UnsafeColumn(atomic, null, none, [value.encode() for value in values])
        except UnicodeEncodeError:
            raise OneByOneError from None
    if plain is None or types != {plain}:
        empty: Any = b"" if not atomic.width else 0
        values = [
            empty if value is None else to_internal(atomic, value, name=name) for value in values
        ]
    if not atomic.width:
        return _UnsafeColumn(atomic, null, none, list(values))
    return _UnsafeColumn(atomic, null, _slots(atomic, values), None)


def _slots(type_: Atomic, values: Sequence[Any]) -> Words:
    if type_.name in NAN:
        kind, bits = ("<f4", "<u4") if type_.name == "float" else ("<f8", "<u8")
        with np.errstate(over="ignore"):
            reals = np.array(values, kind)
        reals += 0  # -0.0 becomes 0.0
        found = reals.view(bits).astype(np.uint64)
        found[np.isnan(reals)] = int.from_bytes(NAN[type_.name], "little")
        return found
    try:
        whole = np.array(values, np.int64)
    except OverflowError:
        raise OneByOneError from None
    mask = (1 << 8 * type_.width) - 1
    words: Words = whole.view(np.uint64) & np.uint64(mask)
    return words


def _scatter(raw: npt.NDArray[np.uint8], starts: Any, sizes: Any, data: bytes) -> None:
    """Copies consecutive pieces of `data` to their places in `raw`."""
    if data:
        ends = np.cumsum(sizes)
        moved = np.repeat(starts - (ends - sizes), sizes)
        raw[np.arange(len(data)) + moved] = np.frombuffer(data, np.uint8)


def _hashed(column: _UnsafeColumn, state: Hashes) -> Hashes:
    if column.parts is not None:
        return _hashed_bytes(column.parts, state)
    low = column.slots.astype(np.uint32)
    if column.type.name in INT_TYPES or column.type.name == "float":
        if column.type.width < 4:  # restore the sign, which the stored bytes do not have
            bits = np.uint32(32 - 8 * column.type.width)
            low = ((low << bits).view(np.int32) >> bits.astype(np.int32)).view(np.uint32)
        return _finished(_mixed(state, low), np.uint32(4))
    high = (column.slots >> np.uint64(32)).astype(np.uint32)
    return _finished(_mixed(_mixed(state, low), high), np.uint32(8))


def _hashed_bytes(parts: Sequence[bytes], state: Hashes) -> Hashes:
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    longest = int(sizes.max(initial=0))
    if longest > _TEXT_BYTES_MAX:
        raise OneByOneError
    width = max(-(-longest // 4), 1) * 4
    # Zeros fill up shorter values; the masks below keep them out of the hash.
    padded = np.array(parts, f"S{width}").view(np.uint8).reshape(len(parts), width)
    words = padded.view("<u4")
    whole = sizes // 4
    for at in range(longest // 4):
        state = np.where(at < whole, _mixed(state, words[:, at]), state)
    rows = np.arange(len(parts))
    for behind in range(3):  # each remaining byte as a signed word, as Spark does
        place = whole * 4 + behind
        there = place < sizes
        if there.any():
            byte = padded[rows, np.where(there, place, 0)].view(np.int8).astype(np.int32)
            state = np.where(there, _mixed(state, byte.view(np.uint32)), state)
    return _finished(state, sizes.astype(np.uint32))


def _rotated(value: Hashes, bits: int) -> Hashes:
    found: Hashes = value << np.uint32(bits) | value >> np.uint32(32 - bits)
    return found


def _mixed(state: Hashes, block: Hashes) -> Hashes:
    mixed = _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    found: Hashes = _rotated(state ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    return found


def _finished(state: Hashes, length: Any) -> Hashes:
    state = state ^ length
    state = (state ^ state >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    state = (state ^ state >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    found: Hashes = state ^ state >> np.uint32(16)
    return found
