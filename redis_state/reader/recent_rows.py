"""The deltas of a partition as one table, for who looks up many keys.

A delta tells what one batch changed. A reader of few keys reads only the blocks of it that can hold
them. One of many keys would ask for a block of it again and again, and look into each delta for
each key. So once that many keys were looked up, the deltas are read whole, and put together: as
long as the partition stays as it is, a key that they know needs no other look, and any other key
one look less for each of them. The next delta is added to them. The oldest segment, which mostly
has the most rows, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.entry import Segment
from redis_state.format.rows import Appended, Value
from redis_state.format.segment import SegmentContent, read_segment
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import SegmentGoneError, fetch_each
from redis_state.reader.block_cache import ROW_BYTES, BlockCache, Recent

_ROWS_A_KEY = 256
"""So many rows are read whole in about the time that a key takes without that."""

_SHARE_AT_FIRST = 2
"""What is read at first takes that part of the room at most: further deltas will come."""

_UNPACKED = 3
"""Bytes of rows by those of their blocks, about."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Segments that are worth reading whole.

    Attributes:
        new: The newest ones, of which nothing is known.
        known: What is known of all that are below them.
    """

    opened: Opened
    new: Sequence[Segment]
    known: Recent | None


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
        if known is not None and known.opened.segments is opened.segments:
            continue
        own = 0 if known is None else known.bytes
        plan = _planned(opened, known, before, len(keys), room=room + own)
        if plan is not None and asks(opened, keys):
            plans.append(plan)
            room += own - sum(map(_bytes_about, plan.new))
            room -= 0 if plan.known is None else own
    wanted = [(one.opened.id, segment) for one in plans for segment in one.new]
    fields = fetch_each(client, wanted)
    for plan in plans:
        try:
            contents = [read_segment(segment, next(fields)) for segment in plan.new]
        except (SegmentGoneError, FormatError):
            cache.add_recent(_nothing(plan.opened))
            break
        cache.add_recent(_made(plan, contents))


def _planned(
    opened: Opened, known: Recent | None, before: int, keys: int, *, room: int
) -> _Plan | None:
    """What is worth reading; ``None`` as long as nothing is.

    Args:
        known: Of another version of the partition.
        before: So many keys were looked up since the last time something was read.
        keys: So many are to be looked up now.
        room: Bytes that the rows may take.
    """
    segments = opened.segments
    if known is not None:
        count = len(segments) - len(known.opened.segments)
        if count > 0 and segments[count:] == known.opened.segments:
            new = segments[:count]
            if not known.count:
                return None
            if known.bytes + sum(map(_bytes_about, new)) <= room:
                return _Plan(opened, new, known) if _is_worth(new, before + keys) else None
    size = count = 0
    for segment in segments[:-1]:
        size += _bytes_about(segment)
        if size > room // _SHARE_AT_FIRST:
            break
        count += 1
    new = segments[:count]
    # Who comes once is answered sooner by blocks alone: they come at once with those below.
    return _Plan(opened, new, None) if new and before and _is_worth(new, before) else None


def _nothing(opened: Opened) -> Recent:
    """None of the segments, which is not tried again before others take their place."""
    return Recent(opened, {}, None, opened, 0)


def _made(plan: _Plan, contents: Sequence[SegmentContent]) -> Recent:
    """The newest segments together, as far as none removes ranges or appends to lists."""
    count = next(
        (at for at, content in enumerate(contents) if not _is_plain(content)), len(contents)
    )
    if not count:
        return _nothing(plan.opened)
    known = plan.known if count == len(contents) else None
    rows: dict[bytes, Value] = {} if known is None else dict(known.rows)
    size = 0 if known is None else known.bytes
    for content in reversed(contents[:count]):
        rows |= content.rows
        size += _bytes_of(content.rows)
    families = next((one.families for one in contents[:count] if one.families is not None), None)
    if families is None and known is not None:
        families = known.families
    # The same tuple as before, by which is known what was read of these segments.
    rest = plan.opened.segments[count:] if known is None else known.below.segments
    return Recent(plan.opened, rows, families, replace(plan.opened, segments=rest), size)


def _is_plain(content: SegmentContent) -> bool:
    return not content.tombstones and not any(
        isinstance(value, Appended) for value in content.rows.values()
    )


def _is_worth(segments: Sequence[Segment], keys: int) -> bool:
    return keys * _ROWS_A_KEY >= sum(segment.entry.rows for segment in segments)


def _bytes_about(segment: Segment) -> int:
    return ROW_BYTES * segment.entry.rows + _UNPACKED * segment.entry.bytes


def _bytes_of(rows: Mapping[bytes, Value]) -> int:
    values = sum(len(value) for value in rows.values() if isinstance(value, bytes))
    return ROW_BYTES * len(rows) + sum(map(len, rows)) + values
