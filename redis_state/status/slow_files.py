"""Causes of slow batches in files and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

from redis_state.status.slow_calls import SHARE, Servers, cause_of, ms_text
from redis_state.status.slow_figures import StoreFigures
from redis_state.status.slowness import SlowCause, SlowCauseKind

_SLOW_READ_US = 60_000
_READS_MIN = 10
_WAITS_MIN = 3
_WAITING_SHARE = 0.1


def waits_for_room(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    """Checks for commits that waited until segments had left for a file."""
    waits, spent = of.number("roomWaits"), of.number("roomWaitUs")
    if waits < _WAITS_MIN or spent < _WAITING_SHARE * of.total_us:
        return
    yield cause_of(
        of,
        SlowCauseKind.WAITING_FOR_ROOM,
        f"{waits:,} times in {of.commits:,} commits a partition's share of redisMemory was full, "
        f"and the commit waited {ms_text(spent / waits)} for a file: "
        f"{spent / max(1, of.total_us):.0%} of the time.",
        "Raise redisMemory, or run maintenance more often "
        "(spark.sql.streaming.stateStore.maintenanceInterval): it keeps a sixth of each share "
        "free, which should hold the batches in between.",
    )


def reads_of_files(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    """Checks for batches that wait for files."""
    reads, spent = of.number("fileReads"), of.number("fileUs")
    if not reads or spent < SHARE * of.total_us:
        return
    seen = (
        f"{reads:,} reads from files took {ms_text(spent / reads)} each, together "
        f"{spent / max(1, of.total_us):.0%} of the time of all batches"
    )
    if reads >= _READS_MIN and spent / reads >= _SLOW_READ_US:
        yield cause_of(
            of,
            SlowCauseKind.SLOW_FOLDER,
            f"{seen}. An object store nearby answers in about 20 ms.",
            "The folder is far away, throttled or busy: see its own figures. With localDisk "
            "executors read from copies on a disk of their own; or give another placesFolder.",
        )
    elif any(one.share for one in of.status.partitions):
        yield cause_of(
            of,
            SlowCauseKind.READING_FILES,
            f"{seen}: with redisMemory, rows that no executor has in memory are read from there.",
            "Set localDisk, so that executors read from a disk of their own. Or raise "
            "localMemory, so that they hold the rows of each batch, or redisMemory.",
        )
    else:
        yield cause_of(
            of,
            SlowCauseKind.READING_FILES,
            f"{seen}: the query, or a fork, began at a version whose history is in files.",
            "This ends with the next snapshot. If it goes on, look why snapshots fail, or bring "
            "the history back: `redis-state places QUERY --bring-back`.",
        )
