"""The deltas of a partition as one table, for readers that look up many keys.

A delta tells what one batch changed. A reader of few keys reads only the blocks of it that can hold
them. One of many keys would ask for a block of it again and again, and look into each delta for
each key. So once that many keys were looked up, the deltas are read whole, and put together: as
long as the partition stays as it is, a key that they know needs no other look, and any other key is
looked for only in what lies below them. The next delta is added to them. The oldest segment, which
mostly has the most rows, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.block import raw_length
from redis_state.format.entry import Segment
from redis_state.format.rows import Appended, Value
from redis_state.format.segment import SegmentContent, read_segment
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import Fields, SegmentGoneError, fetch_each
from redis_state.reader.block_cache import ROW_BYTES, BlockCache, Recent

_ROWS_A_KEY = 256
"""So many rows are read whole in about the time that a key takes without that."""

_BYTES_A_KEY = 32 << 10
"""So many bytes of blocks are read whole for each key; a key takes a few blocks without that."""

_SHARE_AT_FIRST = 2
"""What is read at first takes at most one part in so many of the room: more deltas will come."""

_UNPACKED = 3
"""How many times as large rows are as their blocks, about."""


@dataclass(frozen=True, slots=True)
class _MergePlan:
    """Segments that are worth reading whole.

    Attributes:
        opened: The partition.
        new: Its newest segments, of which nothing is known.
        known: What is known of all that are below them.
        room: Bytes that the rows of the new ones may take.
    """

    opened: Opened
    new: Sequence[Segment]
    known: Recent | None
    room: int


def read_recent(
    client: Client,
    asked: Sequence[tuple[Opened, Sequence[bytes]]],
    cache: BlockCache,
    asks: Callable[[Opened, Sequence[bytes]], bool],
) -> None:
    """Read into the cache what is worth it by now.

    A partition is left as it is where a segment is gone, or damaged: who needs a row of that gets
    to know.

    Args:
        asked: With keys that the cache does not know, as far as it has put rows together.
        asks: Whether these keys would be asked for at Redis in any case.

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
        if plan is not None and asks(opened, keys):
            plans.append(plan)
            room -= sum(map(_bytes_about, plan.new))
    fields = fetch_each(client, [(one.opened.id, segment) for one in plans for segment in one.new])
    for plan in plans:
        try:
            contents = _read(plan, fields)
        except SegmentGoneError:
            cache.add_recent(_nothing(plan.opened))
            return
        cache.add_recent(_made(plan, contents))


def _planned(
    opened: Opened, known: Recent | None, before: int, keys: int, *, room: int
) -> _MergePlan | None:
    """What is worth reading; ``None`` as long as nothing is.

    Args:
        known: What is known of the partition as it was, or of another version of it.
        before: So many keys were looked up since the last time something was read.
        keys: So many are to be looked up now.
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
    # Who comes once is answered sooner by blocks alone: they come at once with those below.
    return (
        _MergePlan(opened, new, None, room) if new and before and _is_worth(new, before) else None
    )


def _read(plan: _MergePlan, fields: Iterator[Fields]) -> list[SegmentContent]:
    """The newest segments, as far as there is room, and none removes ranges or appends to lists.

    Of each the fields are taken, whether it is read or not.
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
    """None of the segments, which is not tried again before others take their place."""
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
    # The same tuple as before, by which what was read of these segments is found at once.
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
