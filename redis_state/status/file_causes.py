"""Causes of growing state in files and in bounded memory, and what is wrong with the bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redis_state.status.growth import Cause, CauseKind
from redis_state.status.query_status import PartitionStatus, QueryStatus, StoreStatus

_WAITING_BYTES_MIN = 8 << 20
_WAITING_SHARE = 0.5
_FULL = 0.95
_LARGE = 0.5
_CONDEMNED_MIN = 100
_FULL_ADVICE = (
    "Commits wait until segments have left for a file. If the log of the executors or of the "
    "Python process has 'in Redis', the folder cannot be reached or written, or is full. "
    "Otherwise raise redisMemory."
)
_SMALL_ADVICE = (
    "A batch above the share fails with NO_ROOM. Raise redisMemory, make batches smaller "
    "(maxOffsetsPerTrigger and the like), or use more partitions."
)


def file_causes(query: QueryStatus) -> Iterator[Cause]:
    """Reports all causes that files and shares show."""
    yield from waiting_history(query)
    yield from share_causes(query)
    yield from staying_files(query)


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
        "shrink, look for 'in Redis' in the log of the executors or of the Python process: "
        "the folder cannot be reached or written, or is full.",
    )


def share_causes(query: QueryStatus) -> Iterator[Cause]:
    """Reports shares that are full, or too small for the batches of their partition."""
    for store in query.stores:
        bounded = [one for one in store.partitions if one.share]
        full = [one for one in bounded if one.share_bytes >= _FULL * one.share]
        if full:
            worst = max(full, key=lambda one: one.share_bytes / one.share)
            found = (
                f"Partition {worst.partition} has {worst.share_bytes:,} of the {worst.share:,} "
                "bytes of its share, of which maintenance keeps a sixth free."
            )
            yield _of_partitions(CauseKind.FULL_SHARE, found, _FULL_ADVICE, store, full)
        small = [one for one in bounded if one.largest_change >= _LARGE * one.share]
        if small:
            worst = max(small, key=lambda one: one.largest_change / one.share)
            found = (
                f"A batch of partition {worst.partition} took {worst.largest_change:,} of the "
                f"{worst.share:,} bytes of its share."
            )
            yield _of_partitions(CauseKind.SMALL_SHARE, found, _SMALL_ADVICE, store, small)


def _of_partitions(
    kind: CauseKind,
    found: str,
    advice: str,
    store: StoreStatus,
    partitions: Iterable[PartitionStatus],
) -> Cause:
    numbers = tuple(one.partition for one in partitions)
    return Cause(kind, found, advice, store.operator, store.store, numbers)


def staying_files(query: QueryStatus) -> Iterator[Cause]:
    """Reports files that nothing needs and that nobody deletes: each has a row in Redis."""
    condemned = sum(one.files.condemned for one in query.partitions if one.files is not None)
    # With a bound every new base makes an old file superfluous.
    least = 1 if query.share_ratio is not None else _CONDEMNED_MIN
    if query.deletes_files or condemned < least:
        return
    yield Cause(
        CauseKind.FILES_STAY,
        f"Nothing needs {condemned:,} files with {query.condemned_bytes:,} bytes, and nothing "
        "deletes them. Each has a row of about 200 bytes in Redis, which no bound counts.",
        "Start the query with placesDelete=true. `redis-state places QUERY --sweep` lists them.",
    )
