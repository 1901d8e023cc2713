"""Values as the Python objects that a program keeps in state."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

from tests.spark.fuzz_values.schemas import Kind

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY = date(1970, 1, 1).toordinal()


class NoObjectError(Exception):
    """Python has no object for a value, so no program can give it."""


def python(kind: Kind, value: Any) -> Any:
    """The object of a value: a tuple for a struct, a list, a dict.

    Bytes that are not UTF-8 become a text with surrogates, which no state can take.

    Raises:
        NoObjectError: A time lies outside of Python's calendar.
    """
    if value is None:
        return None
    match kind.name:
        case "array":
            return [python(kind.parts[0], one) for one in value]
        case "map":
            key, part = kind.parts
            return {python(key, one): python(part, other) for one, other in value}
        case "struct":
            return tuple(map(python, kind.parts, value))
        case "string":
            return value.decode("utf-8", "surrogateescape")
        case "date" | "timestamp" | "timestamp_ntz":
            return _moment(kind.name, value)
        case _:
            return value


def _moment(name: str, value: int) -> date:
    try:
        if name == "date":
            return date.fromordinal(_DAY + value)
        found = _EPOCH + timedelta(microseconds=value)
    except (OverflowError, ValueError):
        raise NoObjectError from None
    return found if name == "timestamp" else found.replace(tzinfo=None)


def objects_of(kind: Kind, values: list[Any]) -> list[tuple[Any, Any]]:
    """The values that Python has objects for, each with its object."""
    found = []
    for value in values:
        try:
            found.append((value, python(kind, value)))
        except NoObjectError:
            continue
    return found


def is_writable(value: Any) -> bool:
    """Returns whether UTF-8 can encode all texts of an object."""
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return all(is_writable(one) for pair in value.items() for one in pair)
    return not isinstance(value, (list, tuple)) or all(map(is_writable, value))
