"""Formats of numbers and times for pages, besides those of the commands."""

from __future__ import annotations

from datetime import datetime, timezone

from redis_state.status.figures import NOTHING

_SECOND_MS = 1000
_THOUSANDS = ("", "k", "M", "G", "T")


def rate(number: float | None) -> str:
    """Formats a rate, such as ``6.0``."""
    return NOTHING if number is None else f"{number:,.1f}"


def took(ms: float | None) -> str:
    """Formats a duration."""
    if ms is None:
        return NOTHING
    return f"{ms:.1f} ms" if ms < _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"


def short(number: float) -> str:
    """Formats a number below 10^15 in at most four characters: ``12``, ``1.2k``, ``340M``."""
    at = 0
    while number >= 999.5 and at + 1 < len(_THOUSANDS):
        number, at = number / 1000, at + 1
    return f"{number:.{1 if at and number < 9.95 else 0}f}{_THOUSANDS[at]}"


def moment(at_ms: float, zone: str = " UTC") -> str:
    """Formats a time, such as ``2026-11-21 18:00:00 UTC``; a dash for 0, an unknown time."""
    if at_ms <= 0:
        return NOTHING
    try:
        at = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return NOTHING
    return at.strftime("%Y-%m-%d %H:%M:%S") + zone
