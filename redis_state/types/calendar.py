"""Spark's dates and times, which are days and microseconds since 1970, as Python's and as text.

The text is ISO 8601, including years outside Python's range 1 to 9999.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
EPOCH_NAIVE = EPOCH.replace(tzinfo=None)
EPOCH_DAY = EPOCH.toordinal()
MICROSECOND = timedelta(microseconds=1)
_DAYS_OF_ERA = 146_097
_DAYS_OF_YEAR = 365
_EPOCH_IN_ERA = 719_468
_MICROS_OF_DAY = 86_400_000_000
_YEAR_MAX = 9999


def date_of(days: int) -> date:
    """Converts days since 1970 to a date."""
    return date.fromordinal(EPOCH_DAY + days)


def utc_of(micros: int) -> datetime:
    """Converts microseconds since 1970 to a time in UTC."""
    return EPOCH + timedelta(microseconds=micros)


def naive_of(micros: int) -> datetime:
    """Converts microseconds since 1970 to a time without a zone."""
    return EPOCH_NAIVE + timedelta(microseconds=micros)


def date_text(days: int) -> str:
    """Formats days since 1970-01-01 as a date. A year of more than four digits has a sign."""
    year, month, day = _civil(days)
    signed = f"{year:+05}" if year < 0 or year > _YEAR_MAX else f"{year:04}"
    return f"{signed}-{month:02}-{day:02}"


def timestamp_text(micros: int, *, separator: str = "T") -> str:
    """Formats microseconds since 1970-01-01T00:00 as a timestamp."""
    days, rest = divmod(micros, _MICROS_OF_DAY)
    return f"{date_text(days)}{separator}{_time_text(*divmod(rest, 1_000_000), digits=6)}"


def time_text(nanos: int) -> str:
    """Formats nanoseconds since midnight as a time."""
    return _time_text(*divmod(nanos, 1_000_000_000), digits=9)


def _time_text(seconds: int, fraction: int, *, digits: int) -> str:
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{fraction:0{digits}}".rstrip("0") if fraction else "")


def _civil(days: int) -> tuple[int, int, int]:
    """Returns year, month and day of the proleptic Gregorian calendar.

    The arithmetic starts each year in March, so that the leap day is the last day of its year
    (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    """
    era, day = divmod(days + _EPOCH_IN_ERA, _DAYS_OF_ERA)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // _DAYS_OF_YEAR
    of_year = day - (_DAYS_OF_YEAR * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    found = month + 3 if month < 10 else month - 9
    return year + era * 400 + (found <= 2), found, of_year - (153 * month + 2) // 5 + 1
