"""Counts the files of a partition by their state, from the rows of `P:f`."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.backend.replies import OTHER_TYPE, OtherType
from redis_state.protocol.texts import number_or_zero
from redis_state.status.query_status import FileTally

_WORDS = 4


def tally(rows: Mapping[bytes, bytes] | OtherType) -> FileTally:
    """Returns the files of a partition by their state; damaged rows are left out."""
    counts, sizes = {b"n": 0, b"u": 0, b"d": 0}, {b"n": 0, b"u": 0, b"d": 0}
    for row in () if rows is OTHER_TYPE else rows.values():
        words = row.split(b" ")
        if len(words) == _WORDS and words[0] in counts:
            counts[words[0]] += 1
            sizes[words[0]] += number_or_zero(words[3])
    return FileTally(counts[b"n"], counts[b"u"], counts[b"d"], sizes[b"u"], sizes[b"d"])
