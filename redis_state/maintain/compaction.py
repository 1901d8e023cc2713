"""Snapshots of a version from its segments in Redis, without a process that has loaded it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from redis_state.errors import InternalError
from redis_state.format.entry import Entry, Segment
from redis_state.format.rows import KeyedValue
from redis_state.format.segment import SegmentWriter
from redis_state.maintain.placing import place_snapshot
from redis_state.places.room import cost_of
from redis_state.progress import Progress, silent
from redis_state.protocol import Opened, PartitionClient, SegmentGoneError, snapshots
from redis_state.protocol.version_rows import VersionRows

BLOCKS_AT_ONCE = 256
_LOG = logging.getLogger("redis_state.maintain")


def deltas_of(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Returns the deltas above the snapshot among the segments that `open` lists, newest first."""
    return segments[:-1] if segments and segments[-1].snapshot else segments


def versions_above(segments: Sequence[Segment]) -> int:
    """Returns the number of versions above the snapshot that `open` lists, or of all deltas."""
    deltas = deltas_of(segments)
    if len(deltas) == len(segments):
        return len(deltas)
    return segments[0].version - segments[-1].version


def is_due(segments: Sequence[Segment], *, patience: int = 1) -> bool:
    """Returns whether a version needs a snapshot.

    Args:
        segments: Segments as `open` lists them, newest first.
        patience: See `redis_state.protocol.snapshots.is_due`.
    """
    deltas = deltas_of(segments)
    base_bytes = segments[-1].entry.bytes if len(deltas) < len(segments) else 0
    weight = sum(delta.entry.bytes for delta in deltas)
    return snapshots.is_due(versions_above(segments), weight, base_bytes, patience=patience)


def add_snapshot(
    partition: PartitionClient, opened: Opened, *, progress: Progress = silent
) -> Entry | None:
    """Adds a snapshot of an opened version.

    Returns:
        The manifest entry; ``None`` if another snapshot was faster or a segment was replaced.

    Raises:
        FormatError: A segment is damaged.
    """
    try:
        entry = place_snapshot(
            partition,
            opened.pin,
            lambda: sum(cost_of(one.entry) for one in opened.segments),
            lambda: _VersionBlocks(partition, opened, progress),
        )
    except SegmentGoneError as error:
        _LOG.info("%s: no snapshot now: %s was replaced", partition.id, error.segment.ident)
        return None
    if entry is not None:
        _LOG.info(
            "%s: added a snapshot of version %d: %d rows, %d bytes",
            partition.id,
            opened.pin.version,
            entry.rows,
            entry.bytes,
        )
    return entry


class _VersionBlocks:
    """All rows of a version, which pass through a few blocks at a time."""

    def __init__(self, partition: PartitionClient, opened: Opened, progress: Progress) -> None:
        self._partition, self._opened, self._progress = partition, opened, progress
        self._entry: Entry | None = None

    def entry(self) -> Entry:
        """Implements `SnapshotSource.entry`."""
        if self._entry is None:
            raise InternalError("adding a snapshot", found="its blocks were not taken")
        return self._entry

    def blocks(self, writer: str) -> Iterator[dict[str, bytes]]:
        """Implements `SnapshotSource.blocks`."""
        version = VersionRows(self._partition.fetch, self._opened.segments)
        buckets = version.fitting_buckets()
        ident = f"s:{self._opened.pin.version}:{writer}"
        segment = SegmentWriter(ident, version.families, buckets)
        count = 0
        for group in version.hashed(buckets):
            segment.add(group)
            count += len(group)
            yield from self._full(segment, count)
        for family in version.ordered_families():
            rows = _CountingRows(version.ordered(family))
            for _ in segment.add_ordered(family, rows):
                yield from self._full(segment, count + rows.count)
            count += rows.count
        version.check(count)
        newest = self._opened.segments[0].entry
        self._entry = segment.finish(
            ref=writer,
            live=count,
            with_families=True,
            internal=newest.internal,
            highest_id=version.highest_id,
            time=newest.time,
        )
        yield segment.drain()

    def _full(self, segment: SegmentWriter, rows: int) -> Iterator[dict[str, bytes]]:
        if len(segment.fields) >= BLOCKS_AT_ONCE:
            yield segment.drain()
            self._progress("adding a snapshot: rows", rows, 0)


class _CountingRows:
    def __init__(self, rows: Iterator[KeyedValue]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[KeyedValue]:
        for row in self._rows:
            self.count += 1
            yield row
