"""Merges the deltas of a partition into one table, for readers that look up many keys.

A delta has the changes of one batch. A reader of few keys reads only those of its blocks that can
hold the keys. A reader of many keys would read blocks again and again, and search each delta for
each key. So after that many look-ups the deltas are read whole and merged. While the partition
stays unchanged, the table answers for its keys, and other keys are looked up only in the segments
below. A new delta is added to the table. The oldest segment, which mostly has the most rows, is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.block import raw_length
from redis_state.format.chunks import Fields
from redis_state.format.entry import Segment
from redis_state.format.header import ORDERED_KINDS
from redis_state.format.rows import Appended, Value
from redis_state.format.segment import SegmentContent, read_segment
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import SegmentGoneError, fetch_each
from redis_state.reader.block_cache import ROW_BYTES, BlockCache, Recent
from redis_state.reader.lookup.segment_part import planned_parts

_ROWS_A_KEY = 256
"""Rows that can be read whole in about the time of one look-up by blocks."""

_BYTES_A_KEY = 32 << 10
"""Block bytes to read whole for each key; a look-up by blocks reads a few blocks."""

_SHARE_AT_FIRST = 2
"""The first read takes at most this fraction of the room, since more deltas will come."""

_UNPACKED = 3
"""Approximate ratio of rows in memory to their blocks."""


@dataclass(frozen=True, slots=True)
class _MergePlan:
    """Segments that are worth reading whole.

    Attributes:
        opened: The partition.
        new: Its newest segments, not merged yet.
        known: The merged table of all segments below them.
        room: Bytes that the rows of the new segments may take.
    """

    opened: Opened
    new: Sequence[Segment]
    known: Recent | None
    room: int


def read_recent(
    client: Client,
    asked: Sequence[tuple[Opened, Sequence[bytes]]],
    kind: str,
    cache: BlockCache,
) -> None:
    """Merges deltas into the cache where that pays off by now, and a look-up needs Redis anyway.

    A partition with a missing or damaged segment is skipped: a look-up that needs the segment
    raises the error.

    Args:
        asked: With keys that the merged tables do not have.
        kind: Spark's encoding of the keys; see `Family.kind`.

    Raises:
        UnavailableError: Redis gave no answer before the deadline.
    """
    plans = []
    room = cache.recent_room()
    for opened, keys in asked:
        before = cache.count_keys(opened.id, len(keys))
        known = cache.recent(opened.id)
        if known is not None and known.opened.segments == opened.segments:
            continue
        plan = _planned(opened, known, before, len(keys), room=room)
        if plan is not None and _needs_redis(opened, keys, kind, cache):
            plans.append(plan)
            room -= sum(map(_bytes_about, plan.new))
    if not plans:
        return
    fields = fetch_each(client, [(one.opened.id, segment) for one in plans for segment in one.new])
    for plan in plans:
        try:
            contents = _read(plan, fields)
        except SegmentGoneError:
            cache.add_recent(_nothing(plan.opened))
            return
        cache.add_recent(_made(plan, contents))


def _needs_redis(opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache) -> bool:
    if kind in ORDERED_KINDS:
        # Only headers name the ordered blocks, and the cached ones were searched already.
        return True
    return any(part.wanted for part in planned_parts(opened, keys, kind, cache, keep=True))


def _planned(
    opened: Opened, known: Recent | None, before: int, keys: int, *, room: int
) -> _MergePlan | None:
    """Returns the segments worth reading; ``None`` while there are none.

    Args:
        known: The merged table of the partition as it was, or of another version of it.
        before: Number of keys looked up since the last merge.
        keys: Number of keys to look up now.
        room: Bytes that more rows may take.
    """
    segments = opened.segments
    if known is not None:
        count = len(segments) - len(known.opened.segments)
        if count > 0 and segments[count:] == known.opened.segments:
            new = segments[:count]
            if not known.count:
                return None
            if sum(map(_bytes_about, new)) <= room:
                return (
                    _MergePlan(opened, new, known, room) if _is_worth(new, before + keys) else None
                )
        room += known.bytes
    room //= _SHARE_AT_FIRST
    size = count = 0
    for segment in segments[:-1]:
        size += _bytes_about(segment)
        if size > room:
            break
        count += 1
    new = segments[:count]
    # A single call is answered sooner by blocks, which come in one round trip with those below.
    return (
        _MergePlan(opened, new, None, room) if new and before and _is_worth(new, before) else None
    )


def _read(plan: _MergePlan, fields: Iterator[Fields]) -> list[SegmentContent]:
    """Reads the newest segments while there is room, up to one with removed ranges or appends.

    Takes the fields of each segment, read or not, to keep the iterator in step.
    """
    contents: list[SegmentContent] = []
    left, ended = plan.room, False
    for segment in plan.new:
        blocks = next(fields)
        if ended:
            continue
        try:
            left -= ROW_BYTES * segment.entry.rows + sum(map(raw_length, blocks.values()))
            if left >= 0:
                content = read_segment(segment, blocks)
                ended = not _is_plain(content)
        except FormatError:
            ended = True
        ended |= left < 0
        if not ended:
            contents.append(content)
    return contents


def _nothing(opened: Opened) -> Recent:
    """Returns an empty table, which is not retried before other segments replace these."""
    return Recent(opened, {}, None, opened, 0)


def _made(plan: _MergePlan, contents: Sequence[SegmentContent]) -> Recent:
    if not contents:
        return _nothing(plan.opened)
    count = len(contents)
    known = plan.known if count == len(plan.new) else None
    rows: dict[bytes, Value] = {} if known is None else dict(known.rows)
    size = 0 if known is None else known.bytes
    for content in reversed(contents):
        size -= _bytes_of({key: rows[key] for key in rows.keys() & content.rows.keys()})
        rows |= content.rows
        size += _bytes_of(content.rows)
    families = next((one.families for one in contents if one.families is not None), None)
    if families is None and known is not None:
        families = known.families
    # The same tuple as before: caches find what was read of these segments by it.
    rest = plan.opened.segments[count:] if known is None else known.below.segments
    return Recent(plan.opened, rows, families, replace(plan.opened, segments=rest), size)


def _is_plain(content: SegmentContent) -> bool:
    return not content.tombstones and not any(
        isinstance(value, Appended) for value in content.rows.values()
    )


def _is_worth(segments: Sequence[Segment], keys: int) -> bool:
    rows = sum(segment.entry.rows for segment in segments)
    size = sum(segment.entry.bytes for segment in segments)
    return rows <= keys * _ROWS_A_KEY and size <= keys * _BYTES_A_KEY


def _bytes_about(segment: Segment) -> int:
    return ROW_BYTES * segment.entry.rows + _UNPACKED * segment.entry.bytes


def _bytes_of(rows: Mapping[bytes, Value]) -> int:
    values = sum(len(value) for value in rows.values() if isinstance(value, bytes))
    return ROW_BYTES * len(rows) + sum(map(len, rows)) + values
