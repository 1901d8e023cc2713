"""Numbers, times and texts in the form of tables for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from redis_state.rows.json_values import to_json

NOTHING = "-"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSANDS = ("", "k", "M", "G", "T")
_NAMES_MAX, _NAME_MAX = 20, 80
_TIMES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def count(number: int | None) -> str:
    """Formats a number with separated thousands."""
    return NOTHING if number is None else f"{number:,}"


def size(number: int) -> str:
    """Formats bytes in units of 1000, with three digits."""
    return _scaled(number, _UNITS)


def amount(number: int) -> str:
    """Formats a number in units of 1000, with three digits."""
    return _scaled(number, _THOUSANDS)


def _scaled(number: int, units: Sequence[str]) -> str:
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{number} {units[0]}".rstrip()
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {units[unit]}"


def span(ms: int) -> str:
    """Formats a duration in its largest whole unit."""
    seconds = max(0, ms) // 1000
    for unit, name in _TIMES:
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return "0 s"


def ago(at_ms: int, now_ms: int) -> str:
    """Formats the time since a moment; 0 means that the moment is not known."""
    return f"{span(now_ms - at_ms)} ago" if at_ms else NOTHING


def moment(at_ms: int) -> str:
    """Formats a time in UTC, such as ``2026-11-21 18:00``; a dash if the calendar lacks it."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, timezone.utc):%Y-%m-%d %H:%M}"
    except (OverflowError, OSError, ValueError):
        return NOTHING


def some_of(names: Sequence[str]) -> str:
    """Lists names in a message: the first ones, each shortened if it is very long."""
    shown = [name if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]}…" for name in names]
    more = [f"{len(shown) - _NAMES_MAX:,} more"] if len(shown) > _NAMES_MAX else []
    return ", ".join([*shown[:_NAMES_MAX], *more])


def plain(text: str) -> str:
    """Escapes control characters of a text, which could change the terminal."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def cell(value: Any) -> str:
    """Formats a value of a state row in one line."""
    shown = to_json(value)
    if shown is None:
        return "null"
    return plain(shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False))
