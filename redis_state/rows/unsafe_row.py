"""Decodes Spark's UnsafeRow with every offset and size checked, and encodes key values.

A row is a bit set of nulls in whole 8-byte words, one 8-byte slot per field, then the values of
variable length. A slot points to such a value by (offset << 32 | size), counted from the start of
the row. All numbers are little-endian except the digits of a large decimal.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from redis_state.errors import ConfigError, FormatError, UnreadableError
from redis_state.rows.variants import json_of, parse_variant
from redis_state.types.schema import (
    UNASKED,
    Array,
    Atomic,
    CalendarInterval,
    Map,
    Row,
    Struct,
    Type,
    hashable,
    kind_of,
)
from redis_state.types.values import to_internal, to_python

_WORD = 8
_DECIMAL_BYTES_MAX = 16
_INTEGERS = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
_REALS = {"float": "<f", "double": "<d"}
_POINTER = struct.Struct("<II")
_INTERVAL = struct.Struct("<iiq")
NAN = {"float": bytes.fromhex("0000c07f"), "double": bytes.fromhex("000000000000f87f")}


def _malformed(found: str) -> FormatError:
    return FormatError("decoding an UnsafeRow", found=found)


def _bits_bytes(count: int) -> int:
    return (count + 63) // 64 * _WORD


def _is_null(bits: memoryview, index: int) -> bool:
    return bool(bits[index >> 3] >> (index & 7) & 1)


def decode(schema: Struct, data: bytes | bytearray | memoryview) -> Row:
    """Decodes a row.

    Raises:
        FormatError: The bytes are not a row of this schema.
        UnreadableError: A value has no form outside Spark, or cannot take the chosen form.
    """
    view = memoryview(data)
    if len(view) % _WORD:
        raise _malformed(f"its {len(view)} bytes are not whole words")
    return _decode_struct(schema, view)


class _Region:
    """Checked access to the variable-length parts of one row or array.

    The parts together may not be larger than the region. A hostile row therefore cannot have one
    part read many times at each level of nesting.
    """

    def __init__(self, view: memoryview, start: int) -> None:
        self._view = view
        self._start = start
        self._left = len(view) - start

    def part(self, slot: memoryview) -> memoryview:
        size, offset = _POINTER.unpack(slot)
        if offset < self._start or offset + size > len(self._view):
            raise _malformed(f"a value of {size} bytes at {offset} lies outside")
        self._left -= size
        if self._left < 0:
            raise _malformed("values overlap")
        return self._view[offset : offset + size]


def _decode_struct(schema: Struct, view: memoryview) -> Row:
    count = len(schema.fields)
    first = _bits_bytes(count)
    fixed = first + count * _WORD
    if len(view) < fixed:
        raise _malformed(f"it has {len(view)} bytes, {count} fields need {fixed}")
    if int.from_bytes(view[:first], "little") >> count:
        raise _malformed("null bits are set after the last field")
    region = _Region(view, fixed)
    values: list[Any] = []
    for index, field in enumerate(schema.fields):
        if field.type is UNASKED:
            values.append(None)
            continue
        slot = view[first + index * _WORD : first + (index + 1) * _WORD]
        if _is_null(view, index):
            if isinstance(field.type, Atomic) and field.type.width and any(slot):
                raise _malformed("a null field has a value")
            values.append(None)
        else:
            try:
                values.append(_decode_slot(field.type, slot, region))
            except UnreadableError as error:
                raise error.within(field.name) from None
    return Row(schema.names, tuple(values))


def _decode_slot(type_: Type, slot: memoryview, region: _Region) -> Any:
    if isinstance(type_, Atomic):
        if type_.opaque:
            raise opaque(type_)
        if type_.width:
            if any(slot[type_.width :]):
                raise _malformed(f"the value is too large for type {type_.name}")
            return _decode_fixed(type_, slot[: type_.width])
        if type_.name == "void":
            raise _malformed("a field of type void has a value")
        return _decode_variable(type_, region.part(slot))
    part = region.part(slot)
    if isinstance(type_, Struct):
        return _decode_struct(type_, part)
    return _decode_array(type_, part) if isinstance(type_, Array) else _decode_map(type_, part)


def _decode_fixed(type_: Atomic, raw: memoryview) -> Any:
    if type_.name in _REALS:
        return struct.unpack(_REALS[type_.name], raw)[0]
    if type_.name == "boolean":
        if raw[0] > 1:
            raise _malformed("a boolean is neither 0 nor 1")
        return raw[0] == 1
    return to_python(type_, struct.unpack(_INTEGERS[type_.width], raw)[0])


def _decode_variable(type_: Atomic, part: memoryview) -> Any:
    if type_.name == "binary":
        return bytes(part)
    if type_.name == "variant":
        variant = parse_variant(part)
        return variant if type_.binary else json_of(variant, type_.errors)
    if type_.name == "decimal":
        if not 1 <= len(part) <= _DECIMAL_BYTES_MAX:
            raise _malformed(f"a decimal has {len(part)} bytes")
        return to_python(type_, int.from_bytes(part, "big", signed=True))
    if type_.name == "calendar":
        if len(part) != _INTERVAL.size:
            raise _malformed(f"an interval has {len(part)} bytes")
        return CalendarInterval(*_INTERVAL.unpack(part))
    return to_python(type_, part)


def _decode_array(type_: Array, view: memoryview) -> list[Any]:
    if len(view) < _WORD:
        raise _malformed("an array has no element count")
    count = int.from_bytes(view[:_WORD], "little")
    element = type_.element
    if isinstance(element, Atomic) and element.opaque:
        return _all_null(element, view, count)
    width = (element.width if isinstance(element, Atomic) else 0) or _WORD
    # The first comparison bounds `count` before the sums. An element has at least one byte.
    if count > len(view) or _WORD + _bits_bytes(count) + count * width > len(view):
        raise _malformed(f"an array of {len(view)} bytes claims too many elements")
    first = _WORD + _bits_bytes(count)
    bits = view[_WORD:first]
    fixed = first + (count * width + _WORD - 1) // _WORD * _WORD
    region = _Region(view, min(fixed, len(view)))
    values: list[Any] = []
    for index in range(count):
        slot = view[first + index * width : first + (index + 1) * width]
        if _is_null(bits, index):
            values.append(None)
        elif isinstance(element, Atomic) and element.width:
            values.append(_decode_fixed(element, slot))
        else:
            values.append(_decode_slot(element, slot, region))
    return values


def _all_null(element: Atomic, view: memoryview, count: int) -> list[None]:
    """Returns nulls for elements of an unknown type, whose width is unknown too."""
    if count > len(view) * 8 or _WORD + _bits_bytes(count) > len(view):
        raise _malformed(f"an array of {len(view)} bytes claims too many elements")
    bits = view[_WORD : _WORD + _bits_bytes(count)]
    if not all(_is_null(bits, index) for index in range(count)):
        raise opaque(element)
    return [None] * count


def opaque(type_: Atomic) -> UnreadableError:
    """Returns the error for a value whose type this release cannot represent outside Spark."""
    return UnreadableError.of(type_.name, "this release cannot return values of this type")


def _decode_map(type_: Map, view: memoryview) -> dict[Any, Any]:
    if len(view) < _WORD:
        raise _malformed("a map has no size of its keys")
    size = int.from_bytes(view[:_WORD], "little")
    if size > len(view) - _WORD:
        raise _malformed("the keys of a map lie outside")
    keys = _decode_array(Array(type_.key), view[_WORD : _WORD + size])
    values = _decode_array(Array(type_.value), view[_WORD + size :])
    if len(keys) != len(values):
        raise _malformed("a map does not have as many values as keys")
    result = {hashable(key): value for key, value in zip(keys, values, strict=True)}
    if len(result) < len(keys) and _merges(type_.key):
        raise UnreadableError.of(
            "map",
            "keys that are not UTF-8 become the same text",
            advice="Nothing is damaged. Read it by text='surrogates', or leave the column out "
            "(columns=…).",
        )
    if len(result) != len(keys) or None in result:
        raise _malformed("a map has a key twice or a null key")
    return result


def _merges(type_: Type) -> bool:
    """Returns whether replacing text that is not UTF-8 may make different values equal."""
    if isinstance(type_, Struct):
        return any(_merges(field.type) for field in type_.fields)
    if isinstance(type_, Array):
        return _merges(type_.element)
    return isinstance(type_, Atomic) and type_.errors == "replace"


def encode(
    schema: Struct, values: Mapping[str, Any] | Sequence[Any], *, normalize_zero: bool = False
) -> bytes:
    """Encodes key values as the row that Spark writes, byte for byte.

    Args:
        schema: The key columns.
        values: By name or in the order of the schema; ``None`` is null.
        normalize_zero: Writes -0.0 as 0.0, as Spark does for the keys of an aggregation.

    Raises:
        ConfigError: A column is missing or unknown, a value does not fit its type exactly, or the
            type cannot be looked up by value (arrays, maps, collated strings, calendar intervals).
    """
    items = in_order(schema, values)
    fixed = _bits_bytes(len(items)) + len(items) * _WORD
    slots = bytearray(fixed)
    tail = bytearray()
    for index, (field, value) in enumerate(zip(schema.fields, items, strict=True)):
        position = _bits_bytes(len(items)) + index * _WORD
        type_ = field.type
        reserved = isinstance(type_, Atomic) and type_.name == "decimal" and not type_.width
        if value is None:
            slots[index >> 3] |= 1 << (index & 7)
            if reserved:
                # Spark reserves the bytes of a large decimal that is null, and points to them.
                _POINTER.pack_into(slots, position, 0, fixed + len(tail))
                tail += bytes(_DECIMAL_BYTES_MAX)
        elif isinstance(type_, Struct):
            part = encode(type_, value, normalize_zero=normalize_zero)
            _POINTER.pack_into(slots, position, len(part), fixed + len(tail))
            tail += part
        else:
            atomic = lookup_type(field.name, type_)
            internal = to_internal(atomic, value, name=field.name)
            raw = _encode_atomic(atomic, internal, normalize_zero=normalize_zero)
            if atomic.width:
                slots[position : position + len(raw)] = raw
            else:
                _POINTER.pack_into(slots, position, len(raw), fixed + len(tail))
                room = _DECIMAL_BYTES_MAX if reserved else -(-len(raw) // _WORD) * _WORD
                tail += raw.ljust(room, b"\0")
    return bytes(slots + tail)


def _encode_atomic(type_: Atomic, raw: Any, *, normalize_zero: bool) -> bytes:
    if isinstance(raw, bytes):
        return raw
    if type_.name in _REALS:
        if math.isnan(raw):
            return NAN[type_.name]
        return struct.pack(_REALS[type_.name], 0.0 if normalize_zero and raw == 0 else raw)
    if not type_.width:
        # Like Java's BigInteger.toByteArray: the fewest bytes that hold the number and its sign.
        bits = (raw if raw >= 0 else ~raw).bit_length()
        return int(raw).to_bytes(bits // 8 + 1, "big", signed=True)
    return struct.pack(_INTEGERS[type_.width], raw)


def in_order(schema: Struct, values: Mapping[str, Any] | Sequence[Any]) -> Sequence[Any]:
    """Returns the values in the order of the schema's fields.

    Raises:
        ConfigError: A column is missing or unknown, or the number of values is wrong.
    """
    names = schema.labels
    if type(values) is list and len(values) == len(names):
        return values
    if isinstance(values, dict) and len(values) == len(names):
        try:
            return [values[name] for name in names]
        except KeyError:
            pass  # The checks below name the wrong column.
    columns = f"Key columns: {', '.join(names) or 'none'}."
    if isinstance(values, Mapping):
        unknown = [str(name) for name in values if name not in names]
        missing = [name for name in names if name not in values]
        if unknown or missing:
            found = [f"'{name}' is unknown" for name in unknown]
            found += [f"'{name}' is missing" for name in missing]
            raise _unfit(", ".join(found), columns)
        return [values[name] for name in names]
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Sequence):
        raise _unfit(f"a {type(values).__name__} was given", f"Give a dict or tuple. {columns}")
    if len(values) != len(names):
        raise _unfit(f"{len(values)} values were given for {len(names)} columns", columns)
    return values


def lookup_type(name: str, type_: Type) -> Atomic:
    """Returns the type if rows can be looked up by its values.

    Raises:
        ConfigError: Equal values may have different bytes, or look-ups by the type are not
            implemented.
    """
    if (
        isinstance(type_, Atomic)
        and type_.name not in ("calendar", "void", "variant")
        and not type_.collation
        and not type_.opaque
    ):
        return type_
    kind = type_.name if isinstance(type_, Atomic) else kind_of(type_)
    if isinstance(type_, Atomic) and type_.collation:
        kind = "string with a collation"
    raise ConfigError(
        f"key column '{name}'",
        found=f"rows cannot be looked up by a {kind}",
        advice="Scan the state instead.",
    )


def check_lookup(schema: Struct) -> None:
    """Checks that rows can be looked up by these columns.

    Raises:
        ConfigError: `lookup_type` rejects a column.
    """
    for field in schema.fields:
        if isinstance(field.type, Struct):
            check_lookup(field.type)
        else:
            lookup_type(field.name, field.type)


def _unfit(found: str, advice: str) -> ConfigError:
    return ConfigError("reading key columns", found=found, advice=advice)
