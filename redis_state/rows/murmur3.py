"""Spark's hash of grouping columns, which decides the partition of a key."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from redis_state.errors import ConfigError
from redis_state.rows.unsafe_row import in_order, lookup_type
from redis_state.types.schema import Atomic, Struct
from redis_state.types.values import to_internal

SEED = 42
_MASK = 0xFFFFFFFF
INT_TYPES = frozenset({"boolean", "byte", "short", "integer", "date", "year-month"})


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def _mix_block(block: int) -> int:
    return _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _mix(state: int, block: int) -> int:
    return (_rotate(state ^ _mix_block(block), 13) * 5 + 0xE6546B64) & _MASK


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def hash_int(value: int, seed: int) -> int:
    """Hashes 4 bytes. Seed and result are unsigned, here and in the functions below."""
    return _finish(_mix(seed, value & _MASK), 4)


def hash_long(value: int, seed: int) -> int:
    """Hashes 8 bytes."""
    return _finish(_mix(_mix(seed, value & _MASK), value >> 32 & _MASK), 8)


def hash_bytes(data: bytes, seed: int) -> int:
    """Hashes bytes: whole words, then each remaining byte as a signed word, as Spark does."""
    whole, left = divmod(len(data), 4)
    state = seed
    for block in struct.unpack(f"<{whole}I{left}b", data):
        # Inlines `_mix` to save a call for each block.
        mixed = (block & _MASK) * 0xCC9E2D51 & _MASK
        state ^= (mixed << 15 | mixed >> 17) * 0x1B873593 & _MASK
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & _MASK
    return _finish(state, len(data))


def hash_key(schema: Struct, values: Mapping[str, Any] | Sequence[Any]) -> int:
    """Returns Spark's `hash(columns…)`, a signed 32-bit number.

    Args:
        schema: The grouping columns.
        values: By name or in the order of the schema; ``None`` is null.

    Raises:
        ConfigError: `unsafe_row.encode` rejects the values.
    """
    state = _hash_struct(schema, values, SEED)
    return state - (1 << 32) if state >> 31 else state


def partition_of(
    schema: Struct, values: Mapping[str, Any] | Sequence[Any], *, partitions: int
) -> int:
    """Returns the shuffle partition, and thus the state partition, of these grouping columns.

    Raises:
        ConfigError: `unsafe_row.encode` rejects the values, or `partitions` is less than 1.
    """
    if partitions < 1:
        raise ConfigError("finding a partition", found=f"{partitions} partitions")
    return hash_key(schema, values) % partitions


def _hash_struct(schema: Struct, values: Mapping[str, Any] | Sequence[Any], seed: int) -> int:
    state = seed
    for field, value in zip(schema.fields, in_order(schema, values), strict=True):
        if value is None:
            continue  # A null does not change the hash.
        if isinstance(field.type, Struct):
            state = _hash_struct(field.type, value, state)
        else:
            atomic = lookup_type(field.name, field.type)
            state = _hash_atomic(atomic, to_internal(atomic, value, name=field.name), state)
    return state


def _hash_atomic(type_: Atomic, raw: Any, seed: int) -> int:
    if isinstance(raw, bytes):
        return hash_bytes(raw, seed)
    if type_.name in INT_TYPES:
        return hash_int(int(raw), seed)
    if type_.name == "float":
        return hash_int(_bits(raw, "<f", "<i", 0x7FC00000), seed)
    if type_.name == "double":
        return hash_long(_bits(raw, "<d", "<q", 0x7FF8000000000000), seed)
    if not type_.width:
        size = (raw if raw >= 0 else ~raw).bit_length() // 8 + 1
        return hash_bytes(int(raw).to_bytes(size, "big", signed=True), seed)
    return hash_long(raw, seed)


def _bits(value: float, real: str, whole: str, nan: int) -> int:
    if math.isnan(value):
        return nan
    # `or` turns -0.0 into 0.0, because Spark gives both the same hash.
    return int(struct.unpack(whole, struct.pack(real, value or 0.0))[0])
