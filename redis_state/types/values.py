"""Converts Python objects to Spark's internal values and back exactly, for types without parts.

An *internal* value is the value that Spark stores: an int for whole numbers, dates, times and the
unscaled decimal, a float, bytes for strings and binary, `CalendarInterval`. `single_values` instead
takes more objects, and rounds as Spark's operator does.
"""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

from redis_state.errors import ConfigError, FormatError, UnreadableError
from redis_state.types.calendar import (
    EPOCH,
    EPOCH_DAY,
    EPOCH_NAIVE,
    MICROSECOND,
    date_of,
    date_text,
    naive_of,
    time_text,
    timestamp_text,
    utc_of,
)
from redis_state.types.schema import INTEGERS, Atomic

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

_NANOS_OF_DAY = 86_400_000_000_000
_MOMENTS = {"date": date_of, "timestamp": utc_of, "timestamp_ntz": naive_of}
_ENCODERS = {"surrogateescape": "surrogateescape"}
_DECIMAL = Context(prec=76)
_EXACT = Context(prec=76, traps=[Inexact, InvalidOperation])


def _malformed(type_: Atomic, found: str) -> FormatError:
    return FormatError(f"decoding a value of type {type_.name}", found=found)


class Internal(int):
    """A date or time as Spark stores it, for values outside the range of Python's types.

    A date or timestamp outside the years 1 to 9999 is days or microseconds since 1970. A time with
    a fraction of a microsecond is nanoseconds since midnight.

    Attributes:
        type: ``date``, ``timestamp``, ``timestamp_ntz`` or ``time``; empty means any.
    """

    type: str

    def __new__(cls, raw: int, type_: str = "") -> Self:
        """Creates the value from its stored number."""
        found = super().__new__(cls, raw)
        found.type = type_
        return found

    def isoformat(self) -> str:
        """Formats the value as ISO 8601. A year of more than four digits has a sign."""
        match self.type:
            case "date":
                return date_text(self)
            case "time":
                return time_text(self)
            case "timestamp":
                return f"{timestamp_text(self)}+00:00"
            case _:
                return timestamp_text(self)


class TextBytes(bytes):
    """A text of a key that is not UTF-8, by its bytes: Spark casts any bytes to a text."""


def to_python(type_: Atomic, raw: Any) -> Any:
    """Converts a stored value to the object that a user sees.

    A timestamp is aware, in UTC. A timestamp without time zone is naive. A year-month interval is a
    number of months, a day-time interval a `timedelta`. A date or time outside Python's range is an
    `Internal`.

    Raises:
        FormatError: The type has no value that is stored like this.
        UnreadableError: A text is not UTF-8.
    """
    match type_.name:
        case "string":
            try:
                return str(raw, "utf-8", type_.errors)
            except UnicodeDecodeError as error:
                raise UnreadableError.of(
                    type_.name,
                    f"a text is not UTF-8 at byte {error.start}",
                    advice="Nothing is damaged: Spark casts any bytes to a text. Read it by "
                    "text='replace' or text='surrogates' (--text replace), or leave the column "
                    "out (columns=…).",
                ) from None
        case "decimal":
            if abs(raw) >= 10**type_.precision:
                raise _malformed(type_, f"more than {type_.precision} digits")
            return Decimal(raw).scaleb(-type_.scale, _DECIMAL)
        case "date" | "timestamp" | "timestamp_ntz":
            try:
                return _MOMENTS[type_.name](raw)
            except (OverflowError, ValueError):
                return Internal(raw, type_.name)
        case "time":
            if not 0 <= raw < _NANOS_OF_DAY:
                raise _malformed(type_, "not a time of a day")
            if raw % 1000:
                return Internal(raw, type_.name)
            return naive_of(raw // 1000).time()
        case "day-time":
            return timedelta(microseconds=raw)
        case _:
            return raw


def _unfit(type_: Atomic, name: str, found: str) -> ConfigError:
    return ConfigError(
        f"key column '{name}' of type {type_.name}", found=found, advice="Give a value that fits."
    )


def to_internal(type_: Atomic, value: Any, *, name: str) -> Any:
    """Converts an object to the value that Spark stores. `name` is the column's, for messages.

    Raises:
        ConfigError: The object does not fit the type exactly.
    """
    made = _to_internal(type_, value, name)
    if made is None:
        expected = "an aware datetime" if type_.name == "timestamp" else "another type"
        raise _unfit(type_, name, f"a {type(value).__name__} was given where {expected} is needed")
    return made


def _to_internal(type_: Atomic, value: Any, name: str) -> Any:
    """Returns the stored value, or ``None`` if the object has a wrong class."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    match type_.name:
        case "boolean":
            return value if isinstance(value, bool) else None
        case "byte" | "short" | "integer" | "long" if whole:
            return _whole(type_, value, type_.name, name)
        case "float" | "double" if whole or isinstance(value, float):
            return _real(type_, value, name)
        case "string" if isinstance(value, str):
            try:
                return value.encode("utf-8", _ENCODERS.get(type_.errors, "strict"))
            except UnicodeEncodeError:
                raise _unfit(type_, name, "the text has a lone surrogate") from None
        case "string" if type(value) is TextBytes:
            return bytes(value)
        case "binary" if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        case "decimal" if whole or isinstance(value, Decimal):
            return _unscaled(type_, value, name)
        case _:
            return _time_to_internal(type_, value, name)


def _time_to_internal(type_: Atomic, value: Any, name: str) -> int | None:
    if type(value) is Internal:
        fits = type_.name in (*_MOMENTS, "time") and value.type in ("", type_.name)
        return int(value) if fits else None
    aware = isinstance(value, datetime) and value.utcoffset() is not None
    match type_.name:
        case "date" if isinstance(value, date) and not isinstance(value, datetime):
            return value.toordinal() - EPOCH_DAY
        case "timestamp" if aware:
            return int((value - EPOCH) // MICROSECOND)
        case "timestamp_ntz" if isinstance(value, datetime) and not aware:
            return int((value - EPOCH_NAIVE) // MICROSECOND)
        case "time" if isinstance(value, time) and value.tzinfo is None:
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return (seconds * 1_000_000 + value.microsecond) * 1000
        case "day-time" if isinstance(value, timedelta):
            return _whole(type_, value // MICROSECOND, "long", name, "interval")
        case "year-month" if isinstance(value, int) and not isinstance(value, bool):
            return _whole(type_, value, "integer", name)
        case _:
            return None


def _whole(type_: Atomic, value: int, stored_as: str, name: str, what: str = "number") -> int:
    low, high = INTEGERS[stored_as]
    if not low <= value <= high:
        raise _unfit(type_, name, f"the {what} is out of range")
    return value


def _real(type_: Atomic, value: float, name: str) -> float:
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    largest = (2 - 2**-23) * 2.0**127
    if math.isinf(real) and not (isinstance(value, float) and math.isinf(value)):
        raise _unfit(type_, name, "the number is out of range")
    if type_.name == "float" and math.isfinite(real) and abs(real) > largest:
        raise _unfit(type_, name, "the number is out of range")
    return real


def _unscaled(type_: Atomic, value: int | Decimal, name: str) -> int:
    try:
        scaled = Decimal(value).scaleb(type_.scale, _EXACT)
        unscaled = int(scaled.to_integral_exact(context=_EXACT))
    except (Inexact, InvalidOperation, OverflowError, ValueError):
        raise _unfit(type_, name, f"not a number with {type_.scale} decimals") from None
    if abs(unscaled) >= 10**type_.precision:
        raise _unfit(type_, name, f"the number has more than {type_.precision} digits")
    return unscaled
