"""Counts the files of a partition by their state, and its share of Redis by the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from redis_state.backend.replies import OTHER_TYPE, OtherType
from redis_state.places.room import cost
from redis_state.protocol.texts import number_or_zero
from redis_state.status.query_status import FileTally

_WORDS = 4
_BLOCKS_WORD, _BYTES_WORD = 3, 4


def tally(rows: Mapping[bytes, bytes] | OtherType) -> FileTally:
    """Returns the files of a partition by their state; damaged rows are left out."""
    counts, sizes = {b"n": 0, b"u": 0, b"d": 0}, {b"n": 0, b"u": 0, b"d": 0}
    for row in () if rows is OTHER_TYPE else rows.values():
        words = row.split(b" ")
        if len(words) == _WORDS and words[0] in counts:
            counts[words[0]] += 1
            sizes[words[0]] += number_or_zero(words[3])
    return FileTally(counts[b"n"], counts[b"u"], counts[b"d"], sizes[b"u"], sizes[b"d"])


def largest_change(deltas: Iterable[bytes]) -> int:
    """Returns the most room in Redis that one of these deltas takes, wherever its blocks are.

    Args:
        deltas: Entries of the manifest.
    """
    rooms = []
    for entry in deltas:
        words = entry.split(b" ", _BYTES_WORD + 1)
        rooms.append(cost(int(words[_BLOCKS_WORD]), int(words[_BYTES_WORD])))
    return max(rooms, default=0)
