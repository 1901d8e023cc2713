"""Differences between two batches, from the deltas between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state.errors import UnavailableError
from redis_state.format.entry import Segment
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import SegmentGoneError
from redis_state.reader.feed.changed_rows import changed_rows, fold
from redis_state.reader.feed.deltas import confirmed, read_contents, read_timelines
from redis_state.reader.feed.family_location import FamilyLocation, check_reach, version_of
from redis_state.reader.lookup.points import Points

_PARTITIONS_AT_ONCE = 32
_WHAT = "comparing two batches of the state"
_ADVICE = (
    "Compare with batch {0}, which is version {1}, or a newer one. To keep more from now on, raise "
    "versionsToRetain."
)


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value differs between two batches.

    Attributes:
        before: ``None`` if the key was absent, so it was inserted.
        after: ``None`` if the key is absent, so it was removed.
    """

    key: Any
    before: Any
    after: Any


def diff(place: FamilyLocation, a: int, b: int | None) -> Iterator[Change]:
    """Yields the changes from the state after batch `a` to that after batch `b`, in no order.

    Raises:
        RedisStateError: See `OperatorState.diff`.
    """
    ahead = place.ahead
    first = version_of(a, ahead, what=_WHAT)
    last = None if b is None else version_of(b, ahead, what=_WHAT)
    low = first if last is None else min(first, last)
    high = None if last is None else max(first, last)
    timelines = read_timelines(place.client, place.ids, low=low, high=high)
    if last is None:
        last = confirmed([one.head for one in timelines])
        low, high = sorted((first, last))
    top = max(first, last)
    check_reach(timelines, ahead=ahead, low=low, high=top, what=_WHAT, advice=_ADVICE)
    if low == top:
        return
    place.check(lambda: place.open(timelines, top))
    for start in range(0, len(timelines), _PARTITIONS_AT_ONCE):
        group = timelines[start : start + _PARTITIONS_AT_ONCE]
        for timeline, opened in zip(group, place.open(group, low), strict=True):
            segments = [timeline.deltas[version] for version in range(low + 1, top + 1)]
            for change in _of_partition(place, opened, segments):
                backwards = first > last
                yield Change(change.key, change.after, change.before) if backwards else change


def _of_partition(
    place: FamilyLocation, opened: Opened, segments: Sequence[Segment]
) -> Iterator[Change]:
    points = Points(place.client, opened)
    contents = read_contents(place.client, [(opened.id, segment) for segment in segments])
    try:
        deltas = zip(segments, contents, strict=True)
        folded, _ = fold(place.name, points.families(), deltas)
    except SegmentGoneError:
        raise UnavailableError(
            _WHAT,
            found="a version was dropped while it was read",
            advice="Start again, and keep more versions (versionsToRetain).",
            where=str(opened.id),
        ) from None
    for row in changed_rows(folded, lambda: points, with_before=True):
        key = place.key(row.family, row.key)
        before = place.value(folded.before, row.before)
        yield Change(key, before, place.value(folded.after, row.after))
