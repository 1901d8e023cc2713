"""Durations in Spark's notation."""

from __future__ import annotations

import re
from datetime import timedelta

from redis_state.errors import UsageError

_UNITS_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_MILLISECOND = timedelta(milliseconds=1)


def duration_ms(given: str | timedelta | int) -> int:
    """Returns the milliseconds of ``10 seconds``, of a `timedelta`, or of a number of them.

    Raises:
        UsageError: The value is none of these.
    """
    if isinstance(given, timedelta):
        return given // _MILLISECOND
    if type(given) is int:
        return given
    found = re.fullmatch(r"\s*(\d+)\s+([a-z]+?)s?\s*", given) if isinstance(given, str) else None
    if found is None or found[2] not in _UNITS_MS:
        raise UsageError(
            "reading a duration",
            found=f"it is {given!r}",
            advice="Give it as '10 seconds', as a timedelta, or as milliseconds.",
        )
    return int(found[1]) * _UNITS_MS[found[2]]
