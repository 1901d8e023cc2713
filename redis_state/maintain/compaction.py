"""Snapshots of a version from its segments in Redis, without a process that has loaded it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence

from redis_state.errors import RedisStateError
from redis_state.format.entry import Entry, Segment
from redis_state.format.rows import KeyedValue
from redis_state.format.segment import SegmentWriter
from redis_state.progress import Progress, silent
from redis_state.protocol import Opened, PartitionClient, SegmentGoneError, snapshots
from redis_state.protocol.version_rows import VersionRows

BLOCKS_AT_ONCE = 256
_LOG = logging.getLogger("redis_state.maintain")


def deltas_of(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Returns the deltas above the snapshot among the segments that `open` lists, newest first."""
    return segments[:-1] if segments and segments[-1].snapshot else segments


def is_due(segments: Sequence[Segment], *, patience: int = 1) -> bool:
    """Returns whether a version needs a snapshot.

    Args:
        segments: Segments as `open` lists them, newest first.
        patience: See `redis_state.protocol.snapshots.is_due`.
    """
    deltas = deltas_of(segments)
    base_bytes = segments[-1].entry.bytes if len(deltas) < len(segments) else 0
    weight = sum(delta.entry.bytes for delta in deltas)
    return snapshots.is_due(len(deltas), weight, base_bytes, patience=patience)


def add_snapshot(
    partition: PartitionClient, opened: Opened, *, progress: Progress = silent
) -> Entry | None:
    """Adds a snapshot of an opened version.

    Returns:
        The manifest entry; ``None`` if another snapshot was faster or a segment was replaced.

    Raises:
        FormatError: A segment is damaged.
    """
    pin, writer = opened.pin, uuid.uuid4().hex
    ident = f"s:{pin.version}:{writer}"
    try:
        segment, live, highest_id = _write(partition, opened, ident, progress)
    except SegmentGoneError as error:
        _LOG.info("%s: no snapshot now: %s was replaced", partition.id, error.segment.ident)
        partition.abort_snapshot(ident)
        return None
    except RedisStateError:
        partition.abort_snapshot(ident)
        raise
    newest = opened.segments[0].entry
    entry = segment.finish(
        ref=writer,
        live=live,
        with_families=True,
        internal=newest.internal,
        highest_id=highest_id,
        time=newest.time,
    )
    if not partition.add_snapshot(pin, writer, entry, segment.fields):
        return None
    _LOG.info(
        "%s: added a snapshot of version %d: %d rows, %d bytes",
        partition.id,
        pin.version,
        entry.rows,
        entry.bytes,
    )
    return entry


def _write(
    partition: PartitionClient, opened: Opened, ident: str, progress: Progress
) -> tuple[SegmentWriter, int, int]:
    """Stages all rows of a version except the last few blocks, which the writer still holds.

    Returns:
        The writer, the number of rows, which are those that are not expired, and the highest id
        that a family of the lineage ever had.
    """
    version = VersionRows(partition.fetch, opened.segments)
    buckets = version.fitting_buckets()
    segment = SegmentWriter(ident, version.families, buckets)
    count = 0
    for group in version.hashed(buckets):
        segment.add(group)
        count += len(group)
        _stage(partition, segment, count, progress)
    for family in version.ordered_families():
        rows = _CountingRows(version.ordered(family))
        for _ in segment.add_ordered(family, rows):
            _stage(partition, segment, count + rows.count, progress)
        count += rows.count
    version.check(count)
    return segment, count, version.highest_id


def _stage(
    partition: PartitionClient, segment: SegmentWriter, rows: int, progress: Progress
) -> None:
    if len(segment.fields) >= BLOCKS_AT_ONCE:
        partition.stage_snapshot(segment.ident, segment.drain())
        progress("adding a snapshot: rows", rows, 0)


class _CountingRows:
    def __init__(self, rows: Iterator[KeyedValue]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[KeyedValue]:
        for row in self._rows:
            self.count += 1
            yield row
