"""The change feed: the changes of each batch, in order (docs/format.md, section 7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis_state.clock import Clock
from redis_state.errors import ConfigError, StateError
from redis_state.ids import StoreId
from redis_state.protocol.refusal import behind
from redis_state.protocol.segments import SegmentGoneError
from redis_state.reader.feed import tokens
from redis_state.reader.feed.deltas import (
    PartitionHead,
    Timeline,
    confirmed,
    read_contents,
    read_timelines,
)
from redis_state.reader.feed.family_location import (
    FamilyLocation,
    batch_of,
    check_batch,
    version_of,
)
from redis_state.reader.feed.feed_positions import (
    WHAT,
    Advice,
    check_again,
    check_not_behind,
    checked,
    destroyed,
    newest_position,
    position_of,
)
from redis_state.reader.feed.partition_changes import PartitionChanges
from redis_state.reader.feed.tokens import Position
from redis_state.reader.feed.waiting import NewerVersion

START = "start"
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.01, 86_400
VERSIONS_AT_ONCE = 64
_ADVICE = Advice(
    expired="Read the state after batch {0} with items(version={1}) and continue with since={0}; "
    'or start again with since="start". To keep more from now on, raise versionsToRetain.',
    rewound='Start again with since="start", and replace all rows that you keep: '
    "some may be of abandoned batches. If you kept an earlier token together with your rows of "
    "that time, try that token first.",
)

ChangedKeys = Iterator[tuple[Any, Any]]
"""Keys and values; ``None`` where a batch removed the key."""


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one batch; iterating yields pairs of key and value.

    A value is the one after the batch, ``None`` if the key was removed; each key comes once. Rows
    are read during the iteration, so a batch that is not iterated costs nothing. A batch can be
    iterated again.

    Attributes:
        number: Number of the batch; of a store alone, its version minus one. -1 for the state
            before all batches.
        token: Position to continue from once the batch is processed: ``changes(since=token)``.
        whole: True if the rows are the whole state after the batch, so other keys have no value.
    """

    number: int
    token: str
    whole: bool
    _read: Callable[[], ChangedKeys] = field(repr=False, compare=False)

    def __iter__(self) -> ChangedKeys:
        """Yields keys and values, partition by partition, in no order.

        Raises:
            StateError: The batch is gone by now; see `OperatorState.changes`.
            UnavailableError: Redis gave no answer before the deadline, or the version of the whole
                state was dropped during the read.
        """
        return self._read()


def changes(
    place_of: Callable[[], FamilyLocation],
    store: StoreId,
    since: str | int | None,
    *,
    follow: bool,
    interval_s: float,
    stop: threading.Event | None,
) -> Iterator[ChangeBatch]:
    """Yields the batches of a store after a position; see `OperatorState.changes`.

    Args:
        place_of: Locates the family by the current list of operators.

    Raises:
        ConfigError: An argument is wrong; all other errors are raised by the iterator.
    """
    is_number = isinstance(interval_s, (int, float))
    if not is_number or not INTERVAL_MIN_S <= interval_s <= INTERVAL_MAX_S:
        raise ConfigError(
            WHAT,
            found="the interval is not a number of seconds, or too short or long",
            advice=f"Give {INTERVAL_MIN_S} to {INTERVAL_MAX_S}.",
        )
    position: Position | int | None = None
    if isinstance(since, str) and since != START:
        position = tokens.decode(since, store)
    elif since is not None and since != START:
        position = check_batch(since, what=WHAT)
    feed = _Feed(place_of, store, interval_s, stop)
    return feed.batches(position, whole=since == START, follow=follow)


class _Feed:
    def __init__(
        self,
        place_of: Callable[[], FamilyLocation],
        store: StoreId,
        interval_s: float,
        stop: threading.Event | None,
    ) -> None:
        self._place_of = place_of
        self._store = store
        self._interval_s = interval_s
        self._stop = stop
        self._changes = PartitionChanges()
        self._checked = False

    def batches(
        self, since: Position | int | None, *, whole: bool, follow: bool
    ) -> Iterator[ChangeBatch]:
        """Yields the batches after a position, or after the batch of a number."""
        place = self._place_of()
        if isinstance(since, Position):
            position = since
        elif since is not None:
            position = Position(version_of(since, place.ahead, what=WHAT), 0, None)
        else:
            timelines = read_timelines(place.client, place.ids)
            position = newest_position(timelines, place.ahead)
            self._check_name(place, timelines, position.version)
            if whole:
                yield self._whole(place, timelines, position)
        heads: Sequence[PartitionHead] | None = None
        last: int | None = None
        while not self._is_stopped():
            low = position.version
            high = low + VERSIONS_AT_ONCE
            timelines = read_timelines(place.client, place.ids, low=low, high=high, heads=heads)
            check_not_behind(place, timelines, position)
            position = checked(timelines, position, place.ahead, _ADVICE)
            newest = confirmed([one.head for one in timelines])
            if not follow and last is None:
                last = newest
            top = min(newest, high, newest if last is None else last)
            self._check_name(place, timelines, top)
            for version in range(low + 1, top + 1):
                before, position = position, position_of(timelines, version)
                yield self._batch(place, timelines, before, position)
                if self._is_stopped():
                    return
            if last is not None and (top >= last or top == newest):
                return
            heads = None
            if top == newest:
                known, ids = [one.head for one in timelines], list(place.ids)
                heads = self._next(place, known, newest)
                place = self._place_of()
                if ids != list(place.ids):
                    heads = None

    def _check_name(
        self, place: FamilyLocation, timelines: Sequence[Timeline], version: int
    ) -> None:
        if not self._checked:
            place.check(lambda: place.open(timelines, version))
            self._checked = True

    def _next(
        self, place: FamilyLocation, heads: Sequence[PartitionHead], version: int
    ) -> list[PartitionHead]:
        """Waits until each partition has passed a version, or one of them went back."""
        waiting = NewerVersion(heads, version, look=self._place_of)
        while not self._wait(place.client.clock) and not waiting.is_over(place.client):
            pass
        return waiting.heads

    def _wait(self, clock: Clock) -> bool:
        """Waits for an interval; returns whether the feed is to stop."""
        if self._stop is not None:
            return self._stop.wait(self._interval_s)
        clock.sleep_s(self._interval_s)
        return False

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _whole(
        self, place: FamilyLocation, timelines: Sequence[Timeline], position: Position
    ) -> ChangeBatch:
        def read() -> ChangedKeys:
            for opened in place.open(timelines, position.version):
                for family, key, value in self._changes.whole(place, opened):
                    yield place.key(family, key), place.value(family, value)

        token = tokens.encode(position, self._store)
        return ChangeBatch(batch_of(position.version, place.ahead), token, True, read)

    def _batch(
        self,
        place: FamilyLocation,
        timelines: Sequence[Timeline],
        before: Position,
        position: Position,
    ) -> ChangeBatch:
        version = position.version
        deltas = [(one.id, one.deltas[version]) for one in timelines]

        def read() -> ChangedKeys:
            try:
                opened = self._changes.below(place, timelines, version)
                contents = read_contents(place.client, deltas)
                for one, content in zip(timelines, contents, strict=True):
                    points = opened.get(one.id)
                    for row, after in self._changes.rows(place, one, version, content, points):
                        yield place.key(row.family, row.key), place.value(after, row.after)
            except SegmentGoneError as error:
                check_again(place, before, _ADVICE)
                lost = destroyed(error.segment)
                raise (behind(lost) if place.client.may_lag else lost) from error
            except StateError:
                check_again(place, before, _ADVICE)
                raise

        token = tokens.encode(position, self._store)
        return ChangeBatch(batch_of(version, place.ahead), token, False, read)
