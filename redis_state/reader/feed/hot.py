"""Counts the keys that the last batches changed most, from their deltas.

Writers keep no counts: the deltas hold all keys of each commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from redis_state.errors import ConfigError, UnavailableError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.visible import visible, visible_values
from redis_state.protocol.segments import SegmentGoneError
from redis_state.reader.feed.changed_rows import named
from redis_state.reader.feed.deltas import (
    Timeline,
    confirmed,
    read_contents,
    read_heads,
    read_timelines,
)
from redis_state.reader.feed.family_location import FamilyLocation, batch_of
from redis_state.reader.feed.heavy_hitters import Frequent
from redis_state.reader.lookup.points import Points

By = Literal["updates", "bytes"]
"""Order of keys: by the number of batches that changed them, or by the bytes written."""

BATCHES = 10
LIMIT = 20
_TRIES_MAX = 3
_WHAT = "counting the changes of keys"


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that changed often, or with many bytes.

    Attributes:
        key: In the form that the reader returns.
        updates: Number of batches that changed the key; removals count, too.
        bytes: Bytes of the key and the values that these batches wrote, uncompressed.
        share: Fraction of the whole count, in updates or bytes.
    """

    key: Any
    updates: int
    bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class HotKeys:
    """Hot keys of the last confirmed batches.

    Attributes:
        first: The first batch counted; `last` is the last one. Both are -1 without batches.
        updates: Of all keys: a key counts once for each batch that changed it.
        bytes: Of all keys.
        error: Greatest error in updates or bytes; 0 means that all is exact. A key may have this
            much more than its figure. A key not in `keys` may have this much more than the last.
        keys: The hottest first.
    """

    first: int
    last: int
    updates: int
    bytes: int
    error: int
    keys: tuple[HotKey, ...]

    @property
    def batches(self) -> int:
        """Number of batches counted."""
        return self.last - self.first + 1 if self.last >= 0 else 0


def hot(place: FamilyLocation, *, batches: int, limit: int, by: By) -> HotKeys:
    """Returns the keys that the last batches changed most, from their deltas alone.

    Raises:
        RedisStateError: See `OperatorState.hot`.
    """
    _check(batches, limit, by)
    for _ in range(_TRIES_MAX):
        try:
            return _hot(place, batches, limit, by)
        except SegmentGoneError:
            continue
    raise UnavailableError(
        _WHAT,
        found="versions were dropped while they were read",
        advice="Ask for fewer batches, or have the query keep more versions (versionsToRetain).",
    )


def _check(batches: object, limit: object, by: object) -> None:
    for name, value in (("batches", batches), ("limit", limit)):
        if type(value) is not int or value < 1:
            raise ConfigError(
                _WHAT, found=f"{name} is not a whole number of 1 or more", advice="Give one."
            )
    if by not in get_args(By):
        raise ConfigError(
            _WHAT, found="by is not an order", advice=f"Give one of {', '.join(get_args(By))}."
        )


def _hot(place: FamilyLocation, batches: int, limit: int, by: By) -> HotKeys:
    heads = read_heads(place.client, place.ids)
    last = confirmed(heads)
    low = max(0, last - batches)
    timelines = read_timelines(place.client, place.ids, low=low, high=last, heads=heads)
    low = max([low, *(one.oldest for one in timelines)])
    counted: Frequent[tuple[int, bytes]] = Frequent()
    families: dict[int, Family] = {}
    updates = size = 0
    place.check(lambda: place.open(timelines, last) if last else [])
    for timeline in timelines if last > low else ():
        (opened,) = place.open([timeline], last)
        family = named(Points(place.client, opened).families(), place.name)
        if family is None:
            continue
        families[timeline.id.partition] = family
        for stored, value in _rows(place, timeline, range(low + 1, last + 1), family):
            written = len(stored) - FAMILY_BYTES + _size(value)
            updates += 1
            size += written
            item = timeline.id.partition, stored
            counted.add(item, written if by == "bytes" else 1, written)
    whole = size if by == "bytes" else updates
    keys = tuple(
        HotKey(place.key(families[partition], stored), one.times, one.bytes, one.weight / whole)
        for (partition, stored), one in counted.top(limit)
    )
    if last <= low:
        return HotKeys(-1, -1, 0, 0, 0, ())
    first = batch_of(low + 1, place.ahead)
    return HotKeys(first, batch_of(last, place.ahead), updates, size, counted.error, keys)


def _rows(
    place: FamilyLocation, timeline: Timeline, versions: Sequence[int], family: Family
) -> Iterator[tuple[bytes, Value]]:
    deltas = [(timeline.id, timeline.deltas[version]) for version in versions]
    contents = read_contents(place.client, deltas)
    for version, (_, segment), content in zip(versions, deltas, contents, strict=True):
        rows = {key: word for key, word in content.rows.items() if family_of(key) == family.id}
        if segment.entry.complete and version > 1:
            # A complete delta has every row of its version, also unchanged ones of a copy.
            rows = _changed(place, timeline, version, family, rows)
        yield from rows.items()


def _changed(
    place: FamilyLocation,
    timeline: Timeline,
    version: int,
    family: Family,
    rows: dict[bytes, Value],
) -> dict[bytes, Value]:
    """Returns the rows of a complete delta that differ from the version below."""
    (opened,) = place.open([timeline], version - 1)
    points = Points(place.client, opened)
    before = named(points.families(), place.name)
    if before is None or before.id != family.id:
        return rows
    known = points.values(list(rows), before)
    if before.ttl:
        known = visible_values(known, points.time_s)
    time_s = timeline.deltas[version].entry.time
    return {
        key: word
        for key, word in rows.items()
        if (visible(_whole(word), time_s) if family.ttl else _whole(word)) != known.get(key)
    }


def _whole(word: Value) -> bytes | None:
    """Returns the value of a key in a complete delta, where an append begins a list."""
    return word.data if isinstance(word, Appended) else word


def _size(value: Value) -> int:
    return len(_whole(value) or b"")
