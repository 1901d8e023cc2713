"""Rows that a version shows of families with a time to live (docs/format.md, section 15).

Segments keep the expiry of a row behind its value, and so do cached blocks, which versions of
different times share. So a reader hides rows of the version that it reads, after the read. Families
without a time to live never come here.

The time to live of a variable of `transformWithState` is another one: its codec shows the expiry as
a column, and its rows are there until a batch removes them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from redis_state.format.entry import Segment
from redis_state.format.expiry import EXPIRY_BYTES, is_expired, split
from redis_state.format.rows import family_of


def time_of(segments: Sequence[Segment]) -> int:
    """Returns the time of a version in seconds since 1970; 0 if no family has a time to live.

    Args:
        segments: Segments of the version, the newest first.
    """
    return segments[0].entry.time if segments else 0


def visible(stored: bytes | None, time_s: int) -> bytes | None:
    """Returns a value without its expiry; ``None`` if the row is expired or absent.

    Args:
        stored: The value in the form of segments, or ``None``.
        time_s: Time of the version.

    Raises:
        FormatError: The value has no expiry.
    """
    return None if stored is None or is_expired(stored, time_s) else split(stored)[0]


def visible_values(stored: Mapping[bytes, bytes], time_s: int) -> dict[bytes, bytes]:
    """Returns the values of the rows that are not expired, without their expiries.

    Raises:
        FormatError: A value has no expiry.
    """
    return unexpired(stored, time_s, bare=True)


def unexpired(
    stored: Mapping[bytes, bytes],
    time_s: int,
    *,
    bare: bool,
    families: Container[int] | None = None,
) -> dict[bytes, bytes]:
    """Returns the rows that are not expired.

    Args:
        time_s: Time of the version.
        bare: Whether values are returned without their expiries.
        families: Ids of the families with a time to live, if there are rows of others, too.

    Raises:
        FormatError: A value has no expiry.
    """
    if families is not None:
        stamped = {key: value for key, value in stored.items() if family_of(key) in families}
        others = {key: value for key, value in stored.items() if key not in stamped}
        return others | unexpired(stamped, time_s, bare=bare)
    end = -EXPIRY_BYTES if bare else None
    # Expiries compare as their bytes do.
    last = _last_expired(stored.values(), time_s)
    return {key: value[:end] for key, value in stored.items() if value[-EXPIRY_BYTES:] > last}


def _last_expired(stored: Iterable[bytes], time_s: int) -> bytes:
    """Returns the greatest expiry of an expired row, in bytes.

    Raises:
        FormatError: A value has no expiry.
    """
    shortest = min(stored, key=len, default=None)
    if shortest is not None:
        split(shortest)  # raises if it is too short
    return time_s.to_bytes(EXPIRY_BYTES, "big")
