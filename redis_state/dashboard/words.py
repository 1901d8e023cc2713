"""Numbers and times as people read them, beside those of the commands."""

from __future__ import annotations

from datetime import datetime, timezone

from redis_state.status.figures import NOTHING

_SECOND_MS = 1000
_THOUSANDS = ("", "k", "M", "G", "T")


def rate(number: float | None) -> str:
    """``6.0``."""
    return NOTHING if number is None else f"{number:,.1f}"


def took(ms: float | None) -> str:
    """A time."""
    if ms is None:
        return NOTHING
    return f"{ms:.1f} ms" if ms < _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"


def short(number: float) -> str:
    """At most four characters up to a thousand million millions: ``12``, ``1.2k``, ``340M``."""
    at = 0
    while number >= 999.5 and at + 1 < len(_THOUSANDS):
        number, at = number / 1000, at + 1
    return f"{number:.{1 if at and number < 9.95 else 0}f}{_THOUSANDS[at]}"


def moment(at_ms: float, zone: str = " UTC") -> str:
    """``2026-11-21 18:00:00 UTC``; a dash for 0, which means that it is not known."""
    if at_ms <= 0:
        return NOTHING
    try:
        at = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return NOTHING
    return at.strftime("%Y-%m-%d %H:%M:%S") + zone
