"""Changes between two positions, split by partition, for parallel processes.

One process chooses the positions, and sends picklable spans to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from redis_state.errors import StateError, UnavailableError
from redis_state.format.header import Family
from redis_state.ids import StoreId
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import SegmentGoneError
from redis_state.reader.feed import tokens
from redis_state.reader.feed.deltas import Timeline, confirmed, read_contents, read_timelines
from redis_state.reader.feed.family_location import FamilyLocation, batch_of, version_of
from redis_state.reader.feed.feed_positions import (
    WHAT,
    Advice,
    check_again,
    checked,
    destroyed,
    newest_position,
    position_of,
)
from redis_state.reader.feed.partition_changes import PartitionChanges
from redis_state.reader.feed.tokens import Position
from redis_state.reader.feed.waiting import NewerVersion

INITIAL, PUT, REMOVED = "initial", "put", "removed"
"""Kinds of rows: of the state that a feed began with; written by a batch; removed by a batch."""


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a feed that one process reads of one partition.

    Attributes:
        before: The changes follow this position; with `opened` it is the position of the state.
        last: The last version whose changes are read.
        opened: The version of the whole state to read; ``None`` means changes.
    """

    timeline: Timeline
    before: Position
    last: int
    opened: Opened | None = None


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A changed row in stored form.

    Attributes:
        kind: `INITIAL`, `PUT` or `REMOVED`.
        family: Family of the key.
        after: Family of the value.
        value: ``None`` if the key was removed.
        batch: The number of the batch.
    """

    kind: str
    family: Family
    key: bytes
    after: Family | None
    value: bytes | None
    batch: int


@dataclass(frozen=True, slots=True)
class _Rest:
    """A position after which nothing is new until the waiting is over."""

    after: Position
    place: FamilyLocation
    waiting: NewerVersion


class ChangeSpans:
    """Chooses positions of a feed, and splits the changes between two of them.

    Args:
        place_of: Locates the family by the current list of operators.
        advice: Advice for followers on how to start again.
    """

    def __init__(
        self, place_of: Callable[[], FamilyLocation], store: StoreId, advice: Advice
    ) -> None:
        self._place_of = place_of
        self._store = store
        self._advice = advice
        self._rest: _Rest | None = None

    def newest(self) -> Position:
        """Returns the position of the newest batch that all partitions have confirmed.

        Raises:
            NotFoundError: There is no such operator, store or family.
            StateError: The partitions do not move together.
        """
        place = self._place_of()
        timelines = read_timelines(place.client, place.ids)
        position = newest_position(timelines, place.ahead)
        place.check(lambda: place.open(timelines, position.version))
        return position

    def behind(self, since: Position | int) -> Position:
        """Returns the position of a batch number, or a position after checking that it still holds.

        Raises:
            ConfigError: The store has no version for the batch.
            StateError: The batch is not confirmed yet, retention has dropped the next changes, or
                the query went back behind the batch.
        """
        place = self._place_of()
        if isinstance(since, int):
            since = Position(version_of(since, place.ahead, what=WHAT), 0, None)
        low = since.version
        timelines = read_timelines(place.client, place.ids, low=low, high=low)
        return checked(timelines, since, place.ahead, self._advice)

    def next(self, after: Position, *, batches: int | None, top: int | None) -> Position:
        """Returns the newest position to advance to; `after` itself if there is nothing new.

        Sends one small command while nothing happens.

        Args:
            batches: Most batches to advance; ``None`` means no limit.
            top: Version not to pass; ``None`` means no limit.

        Raises:
            StateError: See `behind`.
        """
        rest, heads = self._rest, None
        if rest is not None and rest.after == after:
            if not rest.waiting.is_over(rest.place.client):
                return after
            heads = rest.waiting.heads
        place = self._place_of()
        if rest is not None and list(place.ids) != list(rest.place.ids):
            heads = None
        low = after.version
        high = None if batches is None else low + batches
        timelines = read_timelines(place.client, place.ids, low=low, high=high, heads=heads)
        checked(timelines, after, place.ahead, self._advice)
        every = [one.head for one in timelines]
        newest = confirmed(every)
        waiting = NewerVersion(every, newest, look=self._place_of)
        self._rest = _Rest(after, place, waiting) if newest <= low else None
        last = min(one for one in (newest, high, top) if one is not None)
        return position_of(timelines, last) if last > low else after

    def spans(self, before: Position | None, last: Position) -> list[Span]:
        """Splits the changes between two positions by partition, without unchanged partitions.

        Args:
            before: ``None`` means the whole state as of `last`.

        Raises:
            StateError: See `behind`.
        """
        place = self._place_of()
        low = last.version if before is None else before.version
        timelines = read_timelines(place.client, place.ids, low=low, high=last.version)
        if before is None:
            if not last.version:
                return []
            checked(timelines, last, place.ahead, self._advice)
            every = place.open(timelines, last.version)
            pairs = zip(timelines, every, strict=True)
            return [Span(one, last, last.version, opened) for one, opened in pairs]
        checked(timelines, before, place.ahead, self._advice)
        versions = range(before.version + 1, last.version + 1)
        if not versions:
            return []
        late = [one for one in timelines if one.head.opened.version < last.version]
        if late or position_of(timelines, last.version) != last:
            check_again(place, last, self._advice)
            raise UnavailableError(WHAT, found="the query was started again meanwhile")
        return [
            Span(one, before, last.version)
            for one in timelines
            if any(
                one.deltas[version].entry.blocks or one.deltas[version].entry.complete
                for version in versions
            )
        ]

    def token(self, position: Position) -> str:
        """Returns the token of a position, in the format of `changes`."""
        return tokens.encode(position, self._store)

    def position(self, token: str) -> Position:
        """Parses the token of a position.

        Raises:
            ConfigError: The text is not a token, or is a token of another store.
        """
        return tokens.decode(token, self._store)


def span_rows(place: FamilyLocation, span: Span, advice: Advice) -> Iterator[SpanRow]:
    """Yields the rows of a span; each key once for each batch.

    Memory holds some MiB of small deltas, or one large one.

    Raises:
        StateError: Retention dropped the changes, or the query went back.
        FormatError: Blocks are damaged.
        UnavailableError: Redis gave no answer before the deadline, or the version of the whole
            state was dropped during the read.
    """
    changes, timeline = PartitionChanges(), span.timeline
    if span.opened is not None:
        batch = batch_of(span.last, place.ahead)
        for family, key, value in changes.whole(place, span.opened):
            yield SpanRow(INITIAL, family, key, family, value, batch)
        return
    versions = range(span.before.version + 1, span.last + 1)
    deltas = [(timeline.id, timeline.deltas[version]) for version in versions]
    try:
        for version, content in zip(versions, read_contents(place.client, deltas), strict=True):
            batch = batch_of(version, place.ahead)
            points = changes.below(place, [timeline], version).get(timeline.id)
            for row, after in changes.rows(place, timeline, version, content, points):
                kind = REMOVED if row.after is None else PUT
                yield SpanRow(kind, row.family, row.key, after, row.after, batch)
    except SegmentGoneError as error:
        check_again(place, span.before, advice)
        raise destroyed(error.segment) from error
    except StateError:
        check_again(place, span.before, advice)
        raise
