"""Past values of one key, from the buckets or blocks of the kept deltas that can hold the key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis_state.errors import ConfigError
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Header
from redis_state.format.rows import Appended, Value
from redis_state.format.visible import visible
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import SegmentGoneError
from redis_state.reader.feed.changed_rows import named
from redis_state.reader.feed.deltas import Timeline, read_timelines
from redis_state.reader.feed.family_location import FamilyLocation, batch_of
from redis_state.reader.lookup.points import Points, changes_of, headers_of, is_covered
from redis_state.reader.reopening import REOPENS_MAX, replaced_again_and_again

DELTAS_AT_ONCE = 32
_WHAT = "reading the history of a key"


@dataclass(frozen=True, slots=True)
class Revision:
    """The value that a key had from one batch on.

    Attributes:
        batch: Batch that wrote the value; of a store alone, its version minus one.
        value: ``None`` if the batch removed the key, or the key had expired by then.
        earlier: Retention has dropped older deltas: the key had this value after the batch, and the
            batch or an older one wrote it.
    """

    batch: int
    value: Any
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class _Word:
    """Change of the key in one delta.

    Attributes:
        family: The family in the version; ``None`` without a family of the name.
        said: Whether the delta has a row of the key.
        gone: Whether earlier values do not apply.
        time_s: Time of the version; see `format.visible.time_of`.
    """

    version: int
    time_s: int
    family: Family | None
    said: bool
    gone: bool
    value: Value = None

    @property
    def alone(self) -> bool:
        """True if the value after the delta follows from the delta alone."""
        return self.gone or (self.said and not isinstance(self.value, Appended))

    def over(self, before: bytes | None) -> bytes | None:
        base = None if self.gone else before
        if not self.said:
            return base
        return (base or b"") + self.value.data if isinstance(self.value, Appended) else self.value

    def shown(self, stored: bytes | None) -> bytes | None:
        """Returns a stored value as the version shows it; ``None`` if its row is expired."""
        expires = self.family is not None and self.family.ttl
        return visible(stored, self.time_s) if expires else stored


def history(place: FamilyLocation, key: Any, *, likely: int, limit: int | None) -> list[Revision]:
    """Returns the values of a key, the newest first, as far back as its partition's deltas reach.

    Args:
        likely: The partition to search first; the others follow only if it does not have the key.

    Raises:
        RedisStateError: See `OperatorState.history`.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigError(
            _WHAT,
            found="the limit is not a whole number of 1 or more",
            advice="Give the number of values, or None for all kept ones.",
        )
    seen: list[Opened] = []
    for id_ in sorted(place.ids, key=lambda one: one.partition != likely):
        opened, found = _of_partition(place, id_, key, limit)
        if found:
            return found
        seen.append(opened)
    place.check(lambda: seen)
    return []


def _of_partition(
    place: FamilyLocation, id_: PartitionId, key: Any, limit: int | None
) -> tuple[Opened, list[Revision]]:
    for _ in range(REOPENS_MAX):
        try:
            (timeline,) = read_timelines(place.client, [id_], low=0)
            (opened,) = place.open([timeline], timeline.head.opened.version)
            family = named(Points(place.client, opened).families(), place.name)
            return opened, _KeyHistory(place, timeline, family, key).revisions(limit)
        except SegmentGoneError:
            continue
    raise replaced_again_and_again(_WHAT, id_)


_HistoryStep = tuple[int, Family | None, bytes | None]
"""A version that changed the value, its family, and the value."""


class _KeyHistory:
    """One key in one partition, from the newest version down.

    Args:
        family: The family in the newest version.
    """

    def __init__(
        self, place: FamilyLocation, timeline: Timeline, family: Family | None, key: Any
    ) -> None:
        self._place = place
        self._timeline = timeline
        self._family = family
        self._key = key

    def revisions(self, limit: int | None) -> list[Revision]:
        """Returns the revisions, the newest first."""
        words: list[_Word] = []
        oldest = self._timeline.oldest
        versions = range(self._timeline.head.opened.version, oldest, -1)
        for start in range(0, len(versions), DELTAS_AT_ONCE):
            group = versions[start : start + DELTAS_AT_ONCE]
            words += self._words([self._timeline.deltas[version] for version in group])
            if limit is not None:
                found = _steps(words)
                if len(found) >= limit:
                    return [self._shown(step) for step in found[:limit]]
        base = self._base()
        found = _steps([*words, base])
        shown = [self._shown(step) for step in found[:limit]]
        value = base.shown(base.over(None))
        if value is not None and (limit is None or len(shown) < limit):
            shown.append(self._shown((oldest, self._family, value), earlier=True))
        return shown

    def _base(self) -> _Word:
        """Returns the value in the oldest version, as if that version had written it."""
        oldest = self._timeline.oldest
        if oldest == 0 or self._family is None:
            return _Word(oldest, 0, self._family, True, True)
        key, points = self._stored(self._family), self._below(oldest)
        value = points.values([key], self._family).get(key)
        return _Word(oldest, points.time_s, self._family, True, True, value)

    def _words(self, segments: Sequence[Segment]) -> list[_Word]:
        """Returns the changes of the key in the next deltas, the newest first."""
        heads = headers_of(self._place.client, self._timeline.id, segments)
        found: list[_Word] = []
        run: list[tuple[Segment, Header]] = []
        for segment, head in zip(segments, heads, strict=True):
            run.append((segment, head))
            if head.families is None or segment.version - 1 <= 0:
                continue
            # Only here can the family differ from the one in the version below.
            lower = named(self._below(segment.version - 1).families(), self._place.name)
            found += self._words_of(run)
            run = []
            if (lower and lower.id) != (self._family and self._family.id):
                found[-1] = replace(found[-1], gone=True)
            self._family = lower
        return found + self._words_of(run)

    def _words_of(self, run: Sequence[tuple[Segment, Header]]) -> list[_Word]:
        """Returns the changes of the key in deltas whose versions share one family."""
        family = self._family
        if family is None:
            return [_Word(one.version, one.entry.time, None, False, True) for one, _ in run]
        key = self._stored(family)
        segments, heads = [segment for segment, _ in run], [head for _, head in run]
        client, id_ = self._place.client, self._timeline.id
        rows = changes_of(client, id_, segments, heads, [key], family.kind)
        found: list[_Word] = []
        for segment, head, of in zip(segments, heads, rows, strict=True):
            own = [one for one in head.tombstones if one.family == family.id]
            gone = segment.entry.complete or is_covered(own, key)
            at = segment.version, segment.entry.time
            found.append(_Word(*at, family, key in of, gone, of.get(key)))
        return found

    def _below(self, version: int) -> Points:
        (opened,) = self._place.open([self._timeline], version)
        return Points(self._place.client, opened)

    def _stored(self, family: Family) -> bytes:
        return self._place.made(family).encode_key(self._key)

    def _shown(self, step: _HistoryStep, *, earlier: bool = False) -> Revision:
        version, family, value = step
        return Revision(
            batch_of(version, self._place.ahead), self._place.value(family, value), earlier
        )


def _steps(words: Sequence[_Word]) -> list[_HistoryStep]:
    """Returns the steps that these changes, the newest first, fully determine."""
    first = max((at for at, word in enumerate(words) if word.alone), default=None)
    if first is None:
        return []
    found: list[_HistoryStep] = []
    stored = words[first].over(None)
    before = words[first].shown(stored)
    for word in reversed(words[:first]):
        stored = word.over(stored)
        value = word.shown(stored)
        if value != before:
            found.append((word.version, word.family, value))
        before = value
    return found[::-1]
