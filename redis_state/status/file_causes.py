"""Cause of growing state: history that waits for a file (docs/history-in-files.md)."""

from __future__ import annotations

from collections.abc import Iterator

from redis_state.status.growth import Cause, CauseKind
from redis_state.status.query_status import QueryStatus

_WAITING_BYTES_MIN = 8 << 20
_WAITING_SHARE = 0.5


def waiting_history(query: QueryStatus) -> Iterator[Cause]:
    """Reports history that should be in files, and is in Redis."""
    waiting = query.history_bytes
    if not query.moves_history or waiting < max(_WAITING_BYTES_MIN, _WAITING_SHARE * query.bytes):
        return
    tallies = [one.files for one in query.partitions if one.files is not None]
    failed = sum(one.announced for one in tallies)
    yield Cause(
        CauseKind.WAITING_HISTORY,
        f"{waiting:,} of {query.bytes:,} bytes in Redis are history that waits for a file; "
        f"{failed:,} files were begun and got no segment.",
        "A pass of maintenance moves 64 MiB of a partition at most, once a minute. If it does not "
        "shrink, look for 'stays in Redis' in the log of the executors or of the Python process: "
        "the folder cannot be reached or written, or is full.",
    )
