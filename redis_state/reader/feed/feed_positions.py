"""Checks the position of a feed against the current timelines of the query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis_state.errors import Kind, StateError
from redis_state.format.entry import Segment
from redis_state.protocol.refusal import behind, not_there
from redis_state.reader.feed.deltas import Timeline, confirmed, read_timelines
from redis_state.reader.feed.family_location import FamilyLocation, batch_of, check_reach
from redis_state.reader.feed.tokens import Position, mark_of

WHAT = "following the changes of the state"


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for followers on how to start again.

    Attributes:
        expired: For dropped deltas; has placeholders for a batch and its version.
        rewound: For a query that went back behind the position.
    """

    expired: str
    rewound: str


def position_of(timelines: Sequence[Timeline], version: int) -> Position:
    """Returns the position of a version that was read of all partitions."""
    mark = mark_of(one.uid(version) for one in timelines)
    return Position(version, len(timelines), mark)


def newest_position(timelines: Sequence[Timeline], ahead: int) -> Position:
    """Returns the position of the newest version that all partitions have confirmed.

    Args:
        timelines: From that version on.
        ahead: See `OperatorInfo.ahead`.

    Raises:
        StateError: A partition no longer holds the version.
    """
    if not timelines:
        return position_of(timelines, 0)
    low = min(timelines, key=lambda one: one.head.opened.version)
    version = low.head.opened.version
    far = max(timelines, key=lambda one: one.oldest)
    if far.oldest > version:
        raise StateError(
            WHAT,
            found=(
                f"partition {low.id.partition} is at batch {batch_of(version, ahead)}, and of "
                f"partition {far.id.partition} retention keeps batch {batch_of(far.oldest, ahead)} "
                "and newer ones"
            ),
            advice="A feed needs partitions that move together, as those of a query do.",
            kind=Kind.VERSION_EXPIRED,
            version=far.oldest,
        )
    return position_of(timelines, version)


def checked(
    timelines: Sequence[Timeline], position: Position, ahead: int, advice: Advice
) -> Position:
    """Returns the position with its mark, after checking that the feed can continue from it.

    Raises:
        StateError: The query did not continue from the position, or deltas are gone.
    """
    version = position.version
    batch = batch_of(version, ahead)
    if position.mark is None:
        _check_reach(timelines, version, ahead, advice)
        return position_of(timelines, version)
    stands = confirmed([one.head for one in timelines])
    if version and position.partitions != len(timelines):
        raise _rewound(
            f"the state had {position.partitions} partitions, and has {len(timelines)} now",
            stands,
            ahead,
            advice,
        )
    if stands < version:
        raise _rewound(f"the query went back below batch {batch}", stands, ahead, advice)
    _check_reach(timelines, version, ahead, advice)
    now = position_of(timelines, version)
    if version and position.mark != now.mark:
        found = f"the query went back, and batch {batch} is no longer the batch that was read"
        raise _rewound(found, stands, ahead, advice)
    return now


def check_not_behind(
    place: FamilyLocation, timelines: Sequence[Timeline], position: Position
) -> None:
    """Raises a temporary error if a replica lags behind the position of a feed.

    Raises:
        UnavailableError: The replica has not reached the position.
    """
    stands = confirmed([one.head for one in timelines])
    if place.client.may_lag and stands < position.version:
        raise behind(not_there(WHAT, latest=str(stands), where="", version=position.version))


def check_again(place: FamilyLocation, before: Position, advice: Advice) -> None:
    """Raises the cause if the query or its retention removed the version of a position.

    Raises:
        StateError: The query went back, or retention dropped the version.
        UnavailableError: See `check_not_behind`.
    """
    low = before.version
    timelines = read_timelines(place.client, place.ids, low=low, high=low + 1)
    check_not_behind(place, timelines, before)
    checked(timelines, before, place.ahead, advice)


def destroyed(segment: Segment) -> StateError:
    """Builds the error for a missing delta that retention should have kept."""
    return StateError(
        WHAT,
        found=f"blocks of {segment.ident} are missing",
        advice="Look for evictions, FLUSHDB or deleted keys; restore the Redis data.",
        kind=Kind.STATE_LOST,
        version=segment.version,
    )


def _check_reach(timelines: Sequence[Timeline], version: int, ahead: int, advice: Advice) -> None:
    check_reach(timelines, ahead=ahead, low=version, high=version, what=WHAT, advice=advice.expired)


def _rewound(found: str, stands: int, ahead: int, advice: Advice) -> StateError:
    newest = (
        f"its newest confirmed batch is {batch_of(stands, ahead)}"
        if stands
        else "no batch is confirmed now"
    )
    return StateError(
        WHAT,
        found=f"{found}; {newest}",
        advice=advice.rewound,
        kind=Kind.STATE_LOST,
        version=stands,
    )
