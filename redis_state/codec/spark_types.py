"""Columns of Spark's types as what MessagePack and keys can hold, and back; no pyspark."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from redis_state.errors import UsageError

Kind = str | dict[str, Any]
"""A type as Spark's JSON has it."""

INTEGERS = {
    "byte": (-(1 << 7), (1 << 7) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "integer": (-(1 << 31), (1 << 31) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
}
"""Types of whole numbers, and their bounds."""

_WIDER = {
    "byte": {"short", "integer", "long"},
    "short": {"integer", "long"},
    "integer": {"long"},
    "float": {"double"},
}
_PLAIN: dict[str, type] = {"boolean": bool, "string": str, "double": float, "binary": bytes}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_NAIVE = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_FLOAT = struct.Struct("<f")

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A column: how its values are written and read; ``None`` means as they are."""

    name: str
    kind: Kind
    nullable: bool
    write: Convert
    read: Convert | None


def exact_type(kind: Kind) -> type:
    """The one type whose values are kept as they are; `object` where there is none."""
    if isinstance(kind, str):
        return int if kind in INTEGERS else _PLAIN.get(kind, object)
    return object


def fields_of(schema: str, zone: tzinfo | None, what: str) -> list[Field]:
    """The columns of a schema.

    Args:
        what: What errors call the row.

    Raises:
        UsageError: A column has a type that cannot be stored.
    """
    made = []
    for field in json.loads(schema)["fields"]:
        kind = field["type"]
        write, read = _converters(kind, zone, f"{what}, column '{field['name']}'")
        made.append(Field(field["name"], kind, field["nullable"], write, read))
    return made


def fits(older: Kind, now: Kind) -> bool:
    """Whether what was written as one type is read as another: the same, or wider numbers."""
    if isinstance(older, str) and isinstance(now, str):
        return older == now or now in _WIDER.get(older, ())
    return older == now


def shown(kind: Kind) -> str:
    """The type as an error names it."""
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _item(value: Any) -> Any:
    """A NumPy scalar as a plain value; anything else as it is."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    return value


def _converters(kind: Kind, zone: tzinfo | None, what: str) -> tuple[Convert, Convert | None]:
    """How values of a type are written, and read where that takes something."""
    if isinstance(kind, dict):
        return _nested(kind, zone, what)
    if kind in INTEGERS:
        return _integer(*INTEGERS[kind]), None
    if kind in _PLAIN:
        return _of_type(_PLAIN[kind]), None
    if kind == "float":
        return _single, None
    if kind == "date":
        return _write_date, lambda days: date.fromordinal(days + _EPOCH_DAY)
    if kind == "timestamp":
        return _write_time, _time_reader(zone)
    if kind == "timestamp_ntz":
        return _write_naive, lambda micros: _EPOCH_NAIVE + micros * _MICROSECOND
    if kind.startswith("decimal("):
        precision, scale = map(int, kind[len("decimal(") : -1].split(","))
        return _decimal(precision, scale), Decimal
    raise UsageError(
        f"declaring {what}",
        found=f"its type is {kind}, which cannot be stored",
        advice="Take one of: numbers, boolean, string, binary, date, timestamp, timestamp_ntz, "
        "decimal, array, map, struct.",
    )


def _nested(kind: dict[str, Any], zone: tzinfo | None, what: str) -> tuple[Convert, Convert]:
    if kind["type"] == "array":
        write, read = _converters(kind["elementType"], zone, what)
        return (
            lambda value: [None if one is None else write(one) for one in _listed(value)],
            lambda plain: [None if one is None else read(one) if read else one for one in plain],
        )
    if kind["type"] == "map":
        write_key, read_key = _converters(kind["keyType"], zone, what)
        write, read = _converters(kind["valueType"], zone, what)
        return (
            lambda value: [
                (write_key(key), None if one is None else write(one)) for key, one in value.items()
            ],
            lambda plain: {
                (read_key(key) if read_key else key): (
                    None if one is None else read(one) if read else one
                )
                for key, one in plain
            },
        )
    fields = fields_of(json.dumps({"type": "struct", "fields": kind["fields"]}), zone, what)

    def write_struct(value: Any) -> list[Any]:
        if isinstance(value, dict):
            value = [value.get(field.name) for field in fields]
        if isinstance(value, (str, bytes)) or len(value) != len(fields):
            raise ValueError
        return [
            None if one is None else field.write(one)
            for field, one in zip(fields, value, strict=True)
        ]

    return write_struct, lambda plain: tuple(
        one if one is None or field.read is None else field.read(one)
        for field, one in zip(fields, plain, strict=True)
    )


def _listed(value: Any) -> Any:
    if isinstance(value, (str, bytes, dict)):
        raise TypeError
    return value


def _integer(low: int, high: int) -> Convert:
    def write(value: Any) -> int:
        plain = _item(value)
        if type(plain) is not int or not low <= plain <= high:
            raise ValueError
        return plain

    return write


def _of_type(wanted: type) -> Convert:
    def write(value: Any) -> Any:
        plain = _item(value)
        if wanted is float and type(plain) is int:
            return float(plain)
        if wanted is bytes and isinstance(plain, (bytearray, memoryview)):
            return bytes(plain)
        if type(plain) is not wanted:
            raise TypeError
        return plain

    return write


def _single(value: Any) -> float:
    plain = _item(value)
    if type(plain) not in (float, int):
        raise TypeError
    if math.isnan(plain) or math.isinf(plain):
        return float(plain)
    found: float = _FLOAT.unpack(_FLOAT.pack(plain))[0]
    return found


def _write_date(value: Any) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value.toordinal() - _EPOCH_DAY


def _write_time(value: Any) -> int:
    value = _datetime(value)
    aware = value if value.tzinfo is not None else value.astimezone()
    micros: int = (aware - _EPOCH) // _MICROSECOND
    return micros


def _datetime(value: Any) -> datetime:
    """A time as one of Python's; pandas has times of its own."""
    plain = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    # pandas' NaT is a datetime to Python, and no moment; it is not even equal to itself.
    if not isinstance(plain, datetime) or plain != plain:
        raise TypeError
    return plain


def _write_naive(value: Any) -> int:
    value = _datetime(value)
    if value.tzinfo is not None:
        raise TypeError
    micros: int = (value - _EPOCH_NAIVE) // _MICROSECOND
    return micros


def _time_reader(zone: tzinfo | None) -> Convert:
    def read(micros: int) -> datetime:
        at = _EPOCH + micros * _MICROSECOND
        return at.astimezone().replace(tzinfo=None) if zone is None else at.astimezone(zone)

    return read


_DIGITS = Context(prec=2 * 38, rounding=ROUND_HALF_EVEN)
"""Room for every decimal of Spark, whatever the program has set for its own sums."""


def _decimal(precision: int, scale: int) -> Convert:
    step = Decimal(1).scaleb(-scale)
    limit = Decimal(10) ** (precision - scale)

    def write(value: Any) -> str:
        plain = Decimal(value) if isinstance(value, (Decimal, int)) else None
        if plain is None or not plain.is_finite():
            raise TypeError
        rounded = plain.quantize(step, context=_DIGITS)
        if not -limit < rounded < limit:
            raise ValueError
        return str(rounded)

    return write
