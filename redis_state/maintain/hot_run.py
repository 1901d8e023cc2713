"""Hot runs: the changes since a base, merged, in Redis (docs/format.md, section 18).

While the base of a bounded partition lies in a file, a hot run keeps recently changed rows in
Redis. Readers take it in the place of the deltas that it merges, and the base need not be written
anew as soon as these deltas pile up.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state.errors import ConfigError, FormatError, RedisStateError, UnavailableError
from redis_state.format.changes import Changes
from redis_state.format.entry import Entry, Segment
from redis_state.format.header import highest_after
from redis_state.format.rows import Value, raw_bytes
from redis_state.format.segment import (
    SegmentContent,
    SegmentWriter,
    check_ttl_kept,
    read_header,
)
from redis_state.ids import Pin
from redis_state.places.room import Bound, bound_of, cost_of, drop_hot_runs, make_room
from redis_state.protocol import Opened, PartitionClient, SegmentGoneError, hot_runs, snapshots
from redis_state.protocol.hot_runs import leave_out
from redis_state.protocol.room import RoomError
from redis_state.protocol.version_rows import raw_header, read_whole

HOT_RUN_PART = 3
"""A hot run takes at most the share divided by this."""

_RATIO = 4
"""Blocks are a fourth of their rows, or more."""

_LOG = logging.getLogger("redis_state.maintain")


@dataclass(frozen=True, slots=True)
class _Listing:
    """A version as `open` lists it: a base, a hot run over it if there is one, and newer deltas."""

    opened: Opened

    @property
    def base(self) -> Segment | None:
        segments = self.opened.segments
        return segments[-1] if segments and segments[-1].stands else None

    @property
    def run(self) -> Segment | None:
        return next((one for one in self.opened.segments if one.over is not None), None)

    @property
    def deltas(self) -> Sequence[Segment]:
        return [one for one in self.opened.segments[:-1] if one.over is None]

    def is_due(self) -> bool:
        size = sum(one.entry.bytes for one in self.deltas)
        return snapshots.is_hot_run_due(
            len(self.deltas), size, self.run.entry.bytes if self.run else 0
        )


@dataclass(slots=True)
class Refused:
    """A hot run that was too large; it is tried again twice as far above its base.

    Attributes:
        base: The version of the base.
        until: The version from which it is tried again.
    """

    base: int = 0
    until: int = 0


def keep_hot_run(partition: PartitionClient, refused: Refused) -> bool | None:
    """Adds a hot run of the newest confirmed version if one is due.

    Args:
        refused: What the calls before found; this call may change it.

    Returns:
        Whether a new base is due by what the hot run and newer deltas weigh; ``None`` without a
        hot run.

    Raises:
        RedisStateError: The server refuses, or does not answer; or a segment is damaged.
    """
    bound = bound_of(partition.client, partition.id)
    if bound is None:
        return None
    listing = _Listing(partition.open("", None, hot_runs=True))
    base, changed = listing.base, sum(one.entry.bytes for one in listing.deltas)
    if base is None or base.place is None:
        return None
    entry, version = listing.run.entry if listing.run else None, listing.opened.pin.version
    waits = refused.base == base.version and version < refused.until
    if listing.is_due() and not waits:
        added = add_hot_run(partition, listing.opened, bound)
        if added is None:
            refused.base, refused.until = base.version, 2 * version - base.version
        else:
            entry, changed = added, 0
    if entry is None:
        return None
    return snapshots.is_due(version - base.version, entry.bytes + changed, base.entry.bytes)


def add_hot_run(partition: PartitionClient, opened: Opened, bound: Bound) -> Entry | None:
    """Adds a hot run of an opened version over the base that its listing ends with.

    Older segments leave Redis where the run lacks room.

    Returns:
        The entry; ``None`` if the run would be too large, or nobody wants it any more.

    Raises:
        FormatError: A segment is damaged.
    """
    writer = uuid.uuid4().hex
    pin, base, bytes_max = opened.pin, opened.segments[-1], bound.share // HOT_RUN_PART
    try:
        merged = _merged(partition, opened, writer, bytes_max)
    except SegmentGoneError as error:
        again = _without_run(partition, opened, error.segment)
        return add_hot_run(partition, again, bound) if again else None
    if merged is None:
        return None
    fields, entry = merged
    if not entry.blocks or cost_of(entry) > bytes_max:
        return None
    run = Segment(False, pin.version, pin.uid, entry, over=Pin(base.version, base.uid))
    lacking = bound.bytes + cost_of(entry) - bound.share
    if lacking > 0 and not _made_room(partition, lacking):
        return None
    try:
        partition.stage_snapshot(run.ident, fields, is_bounded=True)
        added = hot_runs.enter(partition.client, partition.id, run)
    except RoomError:
        # The former run gives way, so that the next maintenance finds room.
        partition.abort_snapshot(run.ident)
        drop_hot_runs(partition.client, partition.id)
        return None
    except RedisStateError:
        partition.abort_snapshot(run.ident)
        raise
    return entry if added else None


def _made_room(partition: PartitionClient, lacking: int) -> bool:
    """Moves older segments out of Redis; returns false if the folder takes nothing.

    The caller tries again far above: each try may announce a file, which has a row for a day.
    """
    try:
        make_room(partition.client, partition.id, lacking)
    except (ConfigError, UnavailableError) as error:
        _LOG.warning("%s: no room for a hot run: %s", partition.id, error)
        return False
    return True


def _without_run(partition: PartitionClient, opened: Opened, gone: Segment) -> Opened | None:
    """Returns the deltas of a version in the place of its hot run, which could not be read.

    Returns:
        ``None`` if another segment is gone, or another attempt has replaced the version.
    """
    if leave_out([gone], "it is not whole", where=partition.id):
        again = partition.open("", opened.pin.version)
        if again.pin == opened.pin:
            return again
    _LOG.info("%s: no hot run now: %s was replaced", partition.id, gone.ident)
    return None


def _merged(
    partition: PartitionClient, opened: Opened, writer: str, bytes_max: int
) -> tuple[dict[str, bytes], Entry] | None:
    """Returns the blocks and the entry of a hot run: all that was written since the base.

    The deltas may be many times as large as the memory of a process, so the merge ends as soon as
    its rows exceed `bytes_max` as blocks; then ``None``.
    """
    newest, base = opened.segments[0], opened.segments[-1]
    head = read_header(base, raw_header(partition.fetch, base))
    families = head.families or ()
    highest = highest_after(0, families, head.highest_id)
    changes, size, rows_max = Changes(), 0, _RATIO * bytes_max
    for segment in reversed(opened.segments[:-1]):
        content = _content(partition, segment)
        if content.families is not None:
            check_ttl_kept(segment, families, content.families)
            families = content.families
        changes.add(content)
        size += _bytes_of(content.rows)
        if size > rows_max:
            # Rows that were changed again counted more than once.
            size = _bytes_of(changes.rows)
            if size > rows_max:
                return None
        highest = highest_after(highest, content.families, content.highest_id)
    written = SegmentWriter(f"r:{opened.pin.version}:{writer}", families)
    written.add(changes.rows)
    entry = written.finish(
        ref=writer,
        live=newest.entry.live,
        with_families=True,
        tombstones=changes.tombstones,
        internal=newest.entry.internal,
        highest_id=highest,
        time=newest.entry.time,
    )
    return written.fields, entry


def _content(partition: PartitionClient, segment: Segment) -> SegmentContent:
    try:
        return read_whole(partition.fetch, segment)
    except FormatError as error:
        if leave_out([segment], error, where=partition.id) is None:
            raise
        raise SegmentGoneError(segment) from error


def _bytes_of(rows: Mapping[bytes, Value]) -> int:
    return sum(map(raw_bytes, rows.items()))
