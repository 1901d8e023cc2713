"""Where a reader of changes may go on: what it has seen, and what the query says of it now."""

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
    """How to start again, for whoever follows.

    Attributes:
        expired: Retention has dropped what came next; places for a batch and for its version.
        rewound: The query went back behind what was read.
    """

    expired: str
    rewound: str


def position_of(timelines: Sequence[Timeline], version: int) -> Position:
    """A version that was read of all partitions."""
    mark = mark_of(one.uid(version) for one in timelines)
    return Position(version, len(timelines), mark)


def newest_position(timelines: Sequence[Timeline], ahead: int) -> Position:
    """The newest version that all partitions have confirmed.

    Args:
        timelines: From that version on.
        ahead: As `OperatorInfo.ahead`.

    Raises:
        StateError: A partition does not have it any more.
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
                f"partition {low.id.partition} stands at batch {batch_of(version, ahead)}, and of "
                f"partition {far.id.partition} retention keeps batch "
                f"{batch_of(far.oldest, ahead)} and newer ones"
            ),
            advice="A feed needs partitions that move together, as those of a query do.",
            kind=Kind.VERSION_EXPIRED,
            version=far.oldest,
        )
    return position_of(timelines, version)


def checked(
    timelines: Sequence[Timeline], position: Position, ahead: int, advice: Advice
) -> Position:
    """The position, with its mark; refused if the query did not go on from it, or deltas are gone.

    Raises:
        StateError: It is refused.
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
        raise _rewound(f"the query went back behind batch {batch}", stands, ahead, advice)
    _check_reach(timelines, version, ahead, advice)
    now = position_of(timelines, version)
    if version and position.mark != now.mark:
        found = f"the query went back, and batch {batch} is not the one that was read"
        raise _rewound(found, stands, ahead, advice)
    return now


def check_not_behind(
    place: FamilyLocation, timelines: Sequence[Timeline], position: Position
) -> None:
    """Let a feed end for a while where another replica is asked now, and not for good.

    Raises:
        UnavailableError: The replica has not come to the position.
    """
    stands = confirmed([one.head for one in timelines])
    if place.client.may_lag and stands < position.version:
        raise behind(not_there(WHAT, latest=str(stands), where="", version=position.version))


def check_again(place: FamilyLocation, before: Position, advice: Advice) -> None:
    """Say why the version behind a position is gone, where the query or its retention took it.

    Raises:
        StateError: One of the two did.
        UnavailableError: As `check_not_behind`.
    """
    low = before.version
    timelines = read_timelines(place.client, place.ids, low=low, high=low + 1)
    check_not_behind(place, timelines, before)
    checked(timelines, before, place.ahead, advice)


def destroyed(segment: Segment) -> StateError:
    """The error for a delta that is gone though it is to be kept."""
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
        else "none is confirmed now"
    )
    return StateError(
        WHAT,
        found=f"{found}; {newest}",
        advice=advice.rewound,
        kind=Kind.STATE_LOST,
        version=stands,
    )
