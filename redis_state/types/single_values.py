"""Converts single values of Spark's types to values that MessagePack and keys can hold; no pyspark.

Takes the objects of NumPy and pandas, too; `values` converts exactly instead, for look-ups.
A written value comes back equal, or rounded as Spark's operator rounds: decimals half up, numbers
of a float column to 32 bits. Any other value raises `Misfit`, and nothing is written.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import date, datetime, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from redis_state.types.calendar import (
    EPOCH,
    EPOCH_DAY,
    EPOCH_NAIVE,
    MICROSECOND,
    date_of,
    naive_of,
    utc_of,
)
from redis_state.types.schema import INTEGERS, Atomic

_CLASSES_MAX = 1024
_SECOND = 1_000_000
_EDGE = 2 * 86_400 * _SECOND  # a time zone, and the day that Python searches for a fold
_FIRST = (datetime.min - EPOCH_NAIVE) // MICROSECOND
_LAST = (datetime.max - EPOCH_NAIVE) // MICROSECOND
_DAYS = ("Y", "M", "W", "D", "")  # units of NumPy for days or longer; "" has no unit
_FLOAT = struct.Struct("<f")
_OUTSIDE = "is outside the years 1 to 9999"
_TOO_FINE = "is finer than a microsecond"

_NUMPY = (
    ("datetime64", "M"), ("timedelta64", "m"),  # first, because NumPy derives it from integers
    ("bool", "b"), ("bool_", "b"), ("integer", "i"), ("floating", "f"), ("str_", "U"),
    ("bytes_", "S"),
)  # fmt: skip

Convert = Callable[[Any], Any]


class Misfit(ValueError):  # noqa: N818  # no error of a user before it has a place and an advice
    """A value that cannot be stored as its declared type.

    Attributes:
        path: Path to the part that does not fit, such as ``.pages[].url``; empty for the whole
            value.
        found: Description of the mismatch.
        wanted: The declared type of the part, if the path is not empty.
    """

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found
        self.path = ""
        self.wanted = ""

    def below(self, part: str, wanted: str) -> Misfit:
        """Prepends a part to the path. `wanted` becomes the declared type unless one is set."""
        self.path = part + self.path
        self.wanted = self.wanted or wanted
        return self

    def of_column(self, name: str, kind: str) -> str:
        """Describes the mismatch as one in a column."""
        inner = f"{name}{self.path} is {self.wanted}: " if self.path else ""
        return f"column '{name}' is {kind}, and {inner}{self.found}"


def class_name(value: object) -> str:
    """Returns the name of a value's class for errors."""
    kind = type(value)
    known = kind.__module__ in ("builtins", "datetime", "decimal")
    return kind.__name__ if known else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


@lru_cache(maxsize=_CLASSES_MAX)
def _numpy_kind(kind: type) -> str:
    """Returns NumPy's kind of a scalar class, as ``i`` for whole numbers; empty for others."""
    names = {one.__name__ for one in kind.__mro__ if one.__module__ == "numpy"}
    if "generic" not in names:
        return ""
    return next((found for name, found in _NUMPY if name in names), "other")


def _kind_of(value: object) -> str:
    return _numpy_kind(type(value))  # type: ignore[arg-type]  # classes are hashable


def plain_scalar(value: Any) -> Any:
    """Converts a scalar of NumPy to Python's; returns other values unchanged, also times."""
    kind = _kind_of(value)
    if kind in ("b", "i", "f"):
        return value.item()
    if kind == "U":
        # `item` and `str` would drop zero characters at the end.
        return str.__str__(value)
    return bytes(value) if kind == "S" else value


def is_numpy_time(value: Any) -> bool:
    """Returns whether a value is a `datetime64` or `timedelta64`; `item` may be a bare number."""
    return _kind_of(value) in ("M", "m")


def single_converters(type_: Atomic, zone: tzinfo | None) -> tuple[Convert, Convert | None] | None:
    """Returns the functions that write and read a type without parts.

    Returns:
        ``None`` for types that cannot be stored. A reader of ``None`` changes nothing.
    """
    kind = type_.name
    if type_.text.partition("(")[0] != kind:
        return None  # char and varchar, whose lengths are not checked
    if kind in INTEGERS:
        return _integer(*INTEGERS[kind]), None
    if kind in _PLAIN:
        return _PLAIN[kind], None
    if kind == "date":
        return _write_date, date_of
    if kind == "timestamp":
        read = time_reader(zone)
        return _time_writer(read), read
    if kind == "timestamp_ntz":
        return _write_naive, naive_of
    return (_decimal(type_), Decimal) if kind == "decimal" else None


def _wrong(value: object) -> Misfit:
    return Misfit(f"the value of type {class_name(value)} does not fit")


def _integer(low: int, high: int) -> Convert:
    def write(value: Any) -> int:
        plain = value if type(value) is int else plain_scalar(value)
        if type(plain) is not int:
            raise _wrong(value)
        if not low <= plain <= high:
            raise Misfit("the number is out of its range, and does not fit")
        return plain

    return write


def _write_boolean(value: Any) -> bool:
    plain = plain_scalar(value)
    if type(plain) is not bool:
        raise _wrong(value)
    return plain


def _write_string(value: Any) -> str:
    plain = value if type(value) is str else plain_scalar(value)
    if type(plain) is not str:
        raise _wrong(value)
    return plain


def _write_binary(value: Any) -> bytes:
    plain = plain_scalar(value)
    if isinstance(plain, (bytearray, memoryview)):
        return bytes(plain)
    if type(plain) is not bytes:
        raise _wrong(value)
    return plain


def _write_double(value: Any) -> float:
    plain = value if type(value) is float else plain_scalar(value)
    if type(plain) is float:
        return plain
    if type(plain) is not int:
        raise _wrong(value)
    return _exactly(plain, float)


def _write_float(value: Any) -> float:
    plain = value if type(value) is float else plain_scalar(value)
    if type(plain) is int:
        return _exactly(plain, _single)
    if type(plain) is not float:
        raise _wrong(value)
    return _single(plain)


def _exactly(whole: int, convert: Callable[[int], float]) -> float:
    try:
        found = convert(whole)
    except OverflowError:
        found = math.inf
    if found != whole:
        raise Misfit("the whole number has more digits than the type, and does not fit")
    return found


def _single(plain: float) -> float:
    if math.isnan(plain) or math.isinf(plain):
        return float(plain)
    try:
        found: float = _FLOAT.unpack(_FLOAT.pack(plain))[0]
    except OverflowError:
        raise Misfit("the number is too large, and does not fit") from None
    return found


_PLAIN: dict[str, Convert] = {
    "boolean": _write_boolean,
    "string": _write_string,
    "binary": _write_binary,
    "double": _write_double,
    "float": _write_float,
}


def _write_date(value: Any) -> int:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - EPOCH_DAY
    if _kind_of(value) == "M":
        found = value.item()  # a date if the unit is a day or longer, as Spark requires
        if isinstance(found, date) and not isinstance(found, datetime):
            return found.toordinal() - EPOCH_DAY
    raise _wrong(value)


def python_time(value: Any) -> datetime:
    """Converts a time of Python, pandas or NumPy to an equal `datetime`.

    Raises:
        Misfit: The value is not a time, is outside the calendar, or is finer than a microsecond.
    """
    if type(value) is datetime:
        return value
    if _kind_of(value) == "M":
        return _of_datetime64(value)
    # pandas' NaT is an instance of datetime but not a moment; it differs even from itself.
    if not isinstance(value, datetime) or value != value:
        raise _wrong(value)
    if not hasattr(value, "to_pydatetime"):
        return value
    if getattr(value, "nanosecond", 0):
        raise Misfit(f"the time {_TOO_FINE}: round it, as floor('us') does; it does not fit")
    found: datetime = value.to_pydatetime()
    return found


def _of_datetime64(value: Any) -> datetime:
    unit = value.dtype.str.partition("[")[2].strip("0123456789]")
    if unit in _DAYS or value != value:
        raise _wrong(value)
    try:
        micros = value.astype("datetime64[us]")
        exact = micros.astype(value.dtype) == value
        found = micros.item()
    except OverflowError:
        exact = False
    if not exact or not isinstance(found, datetime):
        raise Misfit(f"the time {_TOO_FINE}, or {_OUTSIDE}, and does not fit")
    return found


def _time_writer(read: Convert) -> Convert:
    """Returns the function that writes timestamps which `read` can return."""

    def write(value: Any) -> int:
        value = python_time(value)
        try:
            aware = value if value.tzinfo is not None else value.astimezone()
            micros: int = (aware - EPOCH) // MICROSECOND
            inside = _FIRST <= micros <= _LAST
            if inside and not _FIRST + _EDGE <= micros <= _LAST - _EDGE:
                # Near the ends of the calendar the zone of the reader may have no such date. A
                # value that was read
                # must also convert to UTC again, to be written back.
                read(micros).astimezone(timezone.utc)
        except (OverflowError, ValueError, OSError):
            inside = False
        if not inside:
            raise Misfit(f"the time {_OUTSIDE} in UTC or in the time zone of this worker")
        return micros

    return write


def _write_naive(value: Any) -> int:
    value = python_time(value)
    if value.tzinfo is not None:
        raise Misfit("the time has a time zone, and does not fit")
    micros: int = (value - EPOCH_NAIVE) // MICROSECOND
    return micros


def time_reader(zone: tzinfo | None) -> Convert:
    """Returns the function that reads timestamps: in a zone, or naive in the zone of this machine.

    `fold` distinguishes the two passes of an hour that occurs twice.
    """

    def local(micros: int) -> datetime:
        seconds, rest = divmod(micros, _SECOND)
        try:
            return datetime.fromtimestamp(seconds).replace(microsecond=rest)
        except (OverflowError, ValueError, OSError):
            # Near the ends of the calendar, `fromtimestamp` searches for a fold outside the
            # calendar.
            return utc_of(micros).astimezone().replace(tzinfo=None)

    if zone is timezone.utc:
        return utc_of
    return local if zone is None else lambda micros: utc_of(micros).astimezone(zone)


_DIGITS = Context(prec=2 * 38, rounding=ROUND_HALF_UP)
"""Context that holds every decimal of Spark, independent of the program's own context."""


def _decimal(type_: Atomic) -> Convert:
    step = Decimal((0, (1,), -type_.scale))
    limit = Decimal((0, (1,), type_.precision - type_.scale))
    zero = str(Decimal((0, (0,), -type_.scale)))

    def write(value: Any) -> str:
        plain = value if isinstance(value, Decimal) else plain_scalar(value)
        if type(plain) is int:
            plain = Decimal(plain)
        if not isinstance(plain, Decimal) or not plain.is_finite():
            raise _wrong(value)
        try:
            rounded = plain.quantize(step, context=_DIGITS)
        except InvalidOperation:
            rounded = limit
        if not -limit < rounded < limit:
            raise Misfit("the number has more digits than the type, and does not fit")
        # Spark's zero has no sign.
        return str(rounded) if rounded else zero

    return write
