"""Expiry behind a value of a family with a time to live (docs/format.md, section 15)."""

from __future__ import annotations

from redis_state.errors import FormatError
from redis_state.format.entry import TIME_S_MAX

EXPIRY_BYTES = 4
NEVER = 0xFFFFFFFF
"""Expiry of a row that does not expire."""

_MS_A_SECOND = 1000
_STEPS_MIN = 128
"""Least number of steps that a time to live has."""


def stamped(value: bytes, expiry_s: int) -> bytes:
    """Returns a value in the form in which segments store it.

    Args:
        expiry_s: Seconds since 1970, or `NEVER`.
    """
    return value + expiry_s.to_bytes(EXPIRY_BYTES, "big")


def split(stored: bytes) -> tuple[bytes, int]:
    """Splits a stored value into the value and its expiry in seconds since 1970.

    Raises:
        FormatError: The stored value is too short for an expiry.
    """
    _check(stored)
    return stored[:-EXPIRY_BYTES], int.from_bytes(stored[-EXPIRY_BYTES:], "big")


def is_expired(stored: bytes, time_s: int) -> bool:
    """Returns whether a row is expired in a version of this time.

    Raises:
        FormatError: The stored value is too short for an expiry.
    """
    _check(stored)
    return int.from_bytes(stored[-EXPIRY_BYTES:], "big") <= time_s


def expiry_of(time_s: int, ttl_ms: int) -> int:
    """Returns the expiry of a row that a version of this time writes, in whole seconds.

    The expiry is rounded up, by less than a second or a 128th of the time to live. So rows have few
    different ones, and blocks stay small. Times beyond the last one that the format has are cut.
    """
    ttl_s = -(-ttl_ms // _MS_A_SECOND)
    step = 1 << max(0, (ttl_s // _STEPS_MIN).bit_length() - 1)
    return min(-(-(time_s + ttl_s) // step) * step, TIME_S_MAX)


def _check(stored: bytes) -> None:
    if len(stored) < EXPIRY_BYTES:
        raise FormatError("reading the expiry of a row", found=f"its value has {len(stored)} bytes")
