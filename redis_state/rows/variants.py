"""Values of Spark's VARIANT: two binaries, and their JSON text (Parquet's variant encoding).

The text equals that of Spark's `to_json` in UTC: binary is Base64, dates and times are text.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import uuid
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from redis_state.errors import FormatError, UnreadableError
from redis_state.types.calendar import date_text, timestamp_text

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_VERSION = 1
_VERSION_MASK = 0x0F
_DEPTH_MAX = 200
_SIZE_BYTES = 4
_INTEGERS = {3: 1, 4: 2, 5: 4, 6: 8}
_DECIMALS = {8: (4, 9), 9: (8, 18), 10: (16, 38)}
_CONSTANTS = {0: "null", 1: "true", 2: "false"}
_DOUBLE, _DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _FLOAT, _BINARY, _TEXT, _UUID = (
    7, 11, 12, 13, 14, 15, 16, 20,
)  # fmt: skip
_UUID_BYTES = 16


class Variant(NamedTuple):
    """The binaries of a VARIANT, as for `pyspark.sql.types.VariantVal`."""

    value: bytes
    metadata: bytes


def parse_variant(part: memoryview) -> Variant:
    """Splits the bytes in a row into the two binaries.

    Raises:
        FormatError: The bytes are not a variant.
    """
    if len(part) < _SIZE_BYTES:
        raise _malformed("it has no size")
    end = _SIZE_BYTES + int.from_bytes(part[:_SIZE_BYTES], "little")
    if end > len(part):
        raise _malformed("its value lies outside")
    return Variant(bytes(part[_SIZE_BYTES:end]), bytes(part[end:]))


def json_of(variant: Variant, errors: str = "strict") -> str:
    """Returns the JSON text of a variant.

    Args:
        errors: The `errors` argument of `str`, for text that is not UTF-8.

    Raises:
        FormatError: The binaries are not a variant.
        UnreadableError: The variant has a value without a JSON form in this release.
    """
    return _VariantReader(variant, errors).text(0, len(variant.value), _DEPTH_MAX)


def _malformed(found: str) -> FormatError:
    return FormatError("decoding a VARIANT", found=found)


def _unreadable(found: str) -> UnreadableError:
    return UnreadableError.of(
        "variant",
        found,
        advice="Nothing is damaged. Read its binaries, by variant='binary', or leave the column "
        "out (columns=…).",
    )


class _VariantReader:
    """Reads one variant with every offset checked."""

    def __init__(self, variant: Variant, errors: str) -> None:
        self._value = variant.value
        self._errors = errors
        # Each value takes at least one byte, so more values than bytes mean hostile offsets that
        # overlap.
        self._left = len(variant.value)
        self._names = list(self._dictionary(variant.metadata))

    def _dictionary(self, data: bytes) -> Iterator[bytes]:
        if not data or data[0] & _VERSION_MASK != _VERSION:
            raise _malformed("its metadata has another version")
        width = (data[0] >> 6) + 1
        count = int.from_bytes(data[1 : 1 + width], "little")
        first = 1 + (count + 2) * width
        if first > len(data):
            raise _malformed("its names lie outside")
        ends = [
            int.from_bytes(data[at : at + width], "little") for at in range(1 + width, first, width)
        ]
        for start, end in pairwise(ends):
            if start > end or first + end > len(data):
                raise _malformed("a name lies outside")
            yield data[first + start : first + end]

    def text(self, at: int, end: int, depth: int) -> str:
        """Returns the JSON text of the value at a position that ends before `end`."""
        if at >= end:
            raise _malformed("a value is missing")
        if depth == 0:
            raise _unreadable(f"it is nested more than {_DEPTH_MAX} deep")
        self._left -= 1
        if self._left < 0:
            raise _malformed("values overlap")
        head = self._value[at]
        basic, info = head & 3, head >> 2
        if basic == _SHORT_TEXT:
            return self._quoted(self._part(at + 1, info, end))
        if basic == _OBJECT:
            return self._object(info, at + 1, end, depth)
        if basic == _ARRAY:
            return self._array(info, at + 1, end, depth)
        return self._primitive(info, at + 1, end)

    def _part(self, at: int, size: int, end: int) -> bytes:
        if at + size > end:
            raise _malformed("a value lies outside")
        return self._value[at : at + size]

    def _number(self, at: int, size: int, end: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._part(at, size, end), "little", signed=signed)

    def _primitive(self, info: int, at: int, end: int) -> str:
        if info in _CONSTANTS:
            return _CONSTANTS[info]
        if info in _INTEGERS:
            return str(self._number(at, _INTEGERS[info], end, signed=True))
        if info in _DECIMALS:
            size, digits = _DECIMALS[info]
            scale = self._number(at, 1, end)
            unscaled = self._number(at + 1, size, end, signed=True)
            if scale > digits or abs(unscaled) >= 10**digits:
                raise _malformed("a decimal has too many digits")
            return _decimal_text(unscaled, scale)
        match info:
            case 7 | 14:
                size, form = (8, "<d") if info == _DOUBLE else (4, "<f")
                return _real_text(struct.unpack(form, self._part(at, size, end))[0])
            case 11:
                return f'"{date_text(self._number(at, 4, end, signed=True))}"'
            case 12 | 13:
                zone = "+00:00" if info == _TIMESTAMP else ""
                micros = self._number(at, 8, end, signed=True)
                return f'"{timestamp_text(micros, separator=" ")}{zone}"'
            case 15 | 16:
                size = self._number(at, _SIZE_BYTES, end)
                part = self._part(at + _SIZE_BYTES, size, end)
                if info == _TEXT:
                    return self._quoted(part)
                return f'"{base64.b64encode(part).decode("ascii")}"'
            case 20:
                return f'"{uuid.UUID(bytes=self._part(at, _UUID_BYTES, end))}"'
        raise _unreadable(f"it has a value of kind {info}, which this release does not know")

    def _object(self, info: int, at: int, end: int, depth: int) -> str:
        count, at = self._count(info >> 4 & 1, at, end)
        id_bytes, offset_bytes = (info >> 2 & 3) + 1, (info & 3) + 1
        ids = self._numbers(at, count, id_bytes, end)
        at += count * id_bytes
        offsets = self._numbers(at, count + 1, offset_bytes, end)
        at += (count + 1) * offset_bytes
        last = self._last(at, offsets, end)
        fields = []
        for id_, offset in zip(ids, offsets[:-1], strict=True):
            if id_ >= len(self._names):
                raise _malformed("a field has no name")
            # The values of fields may be in any order, so only the value itself marks its end.
            value = self.text(at + offset, last, depth - 1)
            fields.append(f"{self._quoted(self._names[id_])}:{value}")
        return "{" + ",".join(fields) + "}"

    def _array(self, info: int, at: int, end: int, depth: int) -> str:
        count, at = self._count(info >> 2 & 1, at, end)
        width = (info & 3) + 1
        offsets = self._numbers(at, count + 1, width, end)
        at += (count + 1) * width
        last = self._last(at, offsets, end)
        return "[" + ",".join(self.text(at + one, last, depth - 1) for one in offsets[:-1]) + "]"

    def _count(self, large: int, at: int, end: int) -> tuple[int, int]:
        width = _SIZE_BYTES if large else 1
        return self._number(at, width, end), at + width

    def _numbers(self, at: int, count: int, width: int, end: int) -> list[int]:
        data = self._part(at, count * width, end)
        return [
            int.from_bytes(data[one : one + width], "little")
            for one in range(0, count * width, width)
        ]

    def _last(self, at: int, offsets: list[int], end: int) -> int:
        last = at + offsets[-1]
        if last > end or max(offsets) > offsets[-1]:
            raise _malformed("a value lies outside")
        return last

    def _quoted(self, data: bytes) -> str:
        try:
            return json.dumps(str(data, "utf-8", self._errors), ensure_ascii=False)
        except UnicodeDecodeError as error:
            raise UnreadableError.of(
                "variant",
                f"a text in it is not UTF-8 at byte {error.start}",
                advice="Nothing is damaged. Read it by text='replace', or its binaries by "
                "variant='binary', or leave the column out (columns=…).",
            ) from None


def _decimal_text(unscaled: int, scale: int) -> str:
    number = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    text = f"{number:f}"
    # Spark drops trailing zeros of the fraction.
    return text.rstrip("0").rstrip(".") if "." in text else text


def _real_text(value: float) -> str:
    # JSON has no infinity and no NaN; Spark writes them as text.
    return repr(value) if math.isfinite(value) else f'"{_INFINITE.get(value, "NaN")}"'


_INFINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
