"""Rows that a version shows of families with a time to live (docs/format.md, section 15).

Segments keep the expiry of a row behind its value, and so do cached blocks, which versions of
different times share. So a reader hides rows of the version that it reads, after the read. Families
without a time to live never come here.

The time to live of a variable of `transformWithState` is another one: its codec shows the expiry as
a column, and its rows are there until a batch removes them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from redis_state.errors import FormatError
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
        FormatError: The value has no expiry, or the version has no time.
    """
    if stored is None:
        return None
    check_known(time_s)
    return None if is_expired(stored, time_s) else split(stored)[0]


def check_known(time_s: int) -> None:
    """Checks that a version with a family that has a time to live has a time itself.

    Raises:
        FormatError: It has none, so nobody knows which of its rows are expired.
    """
    if not time_s:
        raise FormatError(
            "reading rows with a time to live", found="the entry of the version has no time"
        )


def visible_values(stored: Mapping[bytes, bytes], time_s: int) -> dict[bytes, bytes]:
    """Returns the values of the rows that are not expired, without their expiries.

    Raises:
        FormatError: A value has no expiry, or the version has no time.
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
        FormatError: A value has no expiry, or the version has no time.
    """
    if not stored:
        return {}
    check_known(time_s)
    if families is not None:
        stamped = {key: value for key, value in stored.items() if family_of(key) in families}
        others = {key: value for key, value in stored.items() if key not in stamped}
        return others | unexpired(stamped, time_s, bare=bare)
    if min(map(len, stored.values())) < EXPIRY_BYTES:
        split(min(stored.values(), key=len))  # raises
    # Expiries compare as their bytes do.
    last = time_s.to_bytes(EXPIRY_BYTES, "big")
    if not bare:
        return {key: value for key, value in stored.items() if value[-EXPIRY_BYTES:] > last}
    return {
        key: value[:-EXPIRY_BYTES] for key, value in stored.items() if value[-EXPIRY_BYTES:] > last
    }
