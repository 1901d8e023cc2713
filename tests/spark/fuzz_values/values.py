"""Hostile values of each type, as Spark has them in memory.

A value is ``None``, a bool, an int (whole numbers, days, microseconds, months, nanoseconds of a
day), a float, a `Decimal`, bytes (of a binary *and* of a string), a text (a variant's JSON, a time
with nanoseconds), a tuple (an array, a struct, a calendar interval), or a tuple of pairs (a map).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from tests.spark.fuzz_values.schemas import Kind

_NULL_CHANCE = 0.15
_ELEMENTS_MAX = 3
_TRIES = 8
_NEVER_NULL = ("calendar", "nanos", "nanos_ntz")
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_LONG = (1 << 63) - 1
_DIGITS = Context(prec=76)
_POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")

TEXTS = (
    b"", b"a", b"A", " ä ".encode(), "\U0001f600".encode(), "e\u0301".encode(), "é".encode(),
    b"\0", b"'\"\\\n\r`", b"x" * 5_000, b"null", b"NaN", "\ufeff\u202e\ud7ff".encode(),
    b"\xff", b"a\x80z", b"\xed\xa0\x80", b"\xc3", b"\xf0\x9f\x98",
)  # fmt: skip
_MOMENTS = (
    0, -1, 1, 999_999,
    # Both moments of one hour, and beside the hour that is not there, in New York and Berlin.
    1_730_611_800 * _SECOND, 1_730_615_400 * _SECOND, 1_710_054_000 * _SECOND - 1,
    1_729_989_000 * _SECOND, 1_729_992_600 * _SECOND, 1_711_846_800 * _SECOND,
    # Zones had seconds in 1880; the calendars differ before 1582.
    -2_840_140_800 * _SECOND, -12_219_292_800 * _SECOND, -12_219_292_800 * _SECOND - 1,
    # The ends of Python's calendar, of pandas' and of Spark's.
    -62_135_596_800 * _SECOND, -62_135_596_800 * _SECOND - 1,
    253_402_300_800 * _SECOND - 1, 253_402_300_800 * _SECOND,
    -62_135_596_800 * _SECOND + 3_600 * _SECOND, 253_402_300_800 * _SECOND - 3_600 * _SECOND,
    9_223_372_036_854_775, 9_223_372_036_854_776, -9_223_372_036_854_775, _LONG, -_LONG - 1,
)  # fmt: skip
_NANOS = (
    "1970-01-01 00:00:00.000000001", "1969-12-31 23:59:59.999999999", "2024-11-03 06:30:00.1234567",
    "0001-01-01 00:00:00.0000001", "9999-12-31 23:59:59.9999999",
)  # fmt: skip
_VARIANTS = (
    "null", "true", "0", "-1", "9223372036854775807", "1.5", "1e300", '""', '"ä\U0001f600"', "[]",
    "{}", '{"a": [1, {"b": null}], "ü": "x"}', "[[[[1]]]]", '"' + "y" * 300 + '"', "0.1",
    "12345678901234567890.123456789",
)  # fmt: skip


def _integer(bits: int) -> tuple[int, ...]:
    top = (1 << bits - 1) - 1
    return 0, 1, -1, top, -top - 1, top - 1


_DOUBLES = (
    0.0, -0.0, 1.0, -1.5, 0.1, float("nan"), float("inf"), float("-inf"), 5e-324, -5e-324,
    1.7976931348623157e308, 2.0**53 + 2, 1e22, 1e-7, 123456789.125,
)  # fmt: skip
_FLOATS = (
    0.0, -0.0, 1.0, -1.5, 0.1, float("nan"), float("inf"), float("-inf"), 1e-45, 3.4028234e38,
    16777217.0, 1e10, 1e-7,
)  # fmt: skip


def single(value: float) -> float:
    """The nearest number of 32 bits."""
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


_OF: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "tinyint": _integer(8),
    "smallint": _integer(16),
    "int": _integer(32),
    "bigint": (*_integer(64), (1 << 53) + 1),
    "double": _DOUBLES,
    "float": tuple(map(single, _FLOATS)),
    "string": TEXTS,
    "collated": TEXTS[:13],
    "binary": (*TEXTS, bytes(range(256))),
    "date": (0, -1, 19_782, 20_030, -719_162, -719_163, 2_932_896, 2_932_897, -141_427, -141_428,
             (1 << 31) - 1, -(1 << 31), 106_752),
    "timestamp": _MOMENTS,
    "timestamp_ntz": _MOMENTS,
    "day-time": (0, 1, -1, _DAY, -_DAY + 1, 3_600 * _SECOND, _LONG, -_LONG - 1),
    "year-month": _integer(32),
    "calendar": ((0, 0, 0), (14, -3, 7_500_000), (-1, 40, -1), ((1 << 31) - 1, -(1 << 31), 1),
                 (0, 0, 86_400 * _SECOND - 1), (0, 1, 0)),
    "variant": _VARIANTS,
    "geometry": (_POINT,),
    "geography": (_POINT,),
    "nanos": _NANOS,
    "nanos_ntz": _NANOS,
}  # fmt: skip


def hostile(kind: Kind, chance: random.Random, *, null: bool = True) -> Any:
    """A value of a type, near the ends of what it can hold.

    Args:
        null: Whether it may be null.
    """
    if kind.name == "void" or (null and chance.random() < _NULL_CHANCE):
        return None
    made = _CONTAINERS.get(kind.name)
    if made is not None:
        return made(kind, chance)
    if kind.name == "decimal":
        return _decimal(kind, chance)
    if kind.name == "time":
        (digits,) = kind.sizes
        step = 10 ** (9 - digits)
        return chance.choice((0, step, 86_400_000_000_000 - step, 45_296_000_000_000))
    if kind.name.startswith("nanos"):
        whole, fraction = chance.choice(_NANOS).split(".")
        return f"{whole}.{fraction[: kind.sizes[0]]}"
    return chance.choice(_OF[kind.name])


def _decimal(kind: Kind, chance: random.Random) -> Decimal:
    digits, scale = kind.sizes
    top = 10**digits - 1
    unscaled = chance.choice((0, 1, -1, top, -top, top // 3, 5 if digits > 1 else 0))
    return Decimal(unscaled).scaleb(-scale, _DIGITS)


def _array(kind: Kind, chance: random.Random) -> Any:
    (part,) = kind.parts
    return tuple(hostile(part, chance) for _ in range(chance.randint(0, _ELEMENTS_MAX)))


def _map(kind: Kind, chance: random.Random) -> Any:
    key, part = kind.parts
    pairs: dict[str, Any] = {}
    for _ in range(chance.randint(0, _ELEMENTS_MAX)):
        one = hostile(key, chance, null=False)
        # Spark takes both zeros, and all NaNs, for one key.
        one = 0.0 if one == 0 and isinstance(one, float) else one
        pairs[repr(one)] = (one, hostile(part, chance))
    return tuple(pairs.values())


def _struct(kind: Kind, chance: random.Random) -> Any:
    return tuple(hostile(part, chance) for part in kind.parts)


_CONTAINERS: dict[str, Callable[[Kind, random.Random], Any]] = {
    "array": _array,
    "map": _map,
    "struct": _struct,
}


def rows_of(kind: Kind, seed: object, count: int) -> list[Any]:
    """Returns values of a type, as different as a few tries make them."""
    chance = random.Random(f"{seed} {kind.ddl}")
    found: dict[str, Any] = {}
    for _ in range(count * _TRIES):
        # Spark 4.3 fails by itself: the check of its rows takes such a column's null for damage.
        one = hostile(kind, chance, null=kind.name not in _NEVER_NULL)
        found.setdefault(repr(one), one)
        if len(found) == count:
            break
    values = [*found.values()]
    return [values[at % len(values)] for at in range(count)]
