"""Age of an answer, measured from the last sign of life of its query (docs/reading.md)."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.clock import wall_ms
from redis_state.errors import FormatError, Kind, StateError
from redis_state.ids import text_number
from redis_state.protocol.opening import Opened

_WHAT = "reading with max_age"


def age_s(client: Client, opened: Sequence[Opened], *, alone: bool) -> float | None:
    """Returns the seconds since the last sign of life of the partitions' query.

    A sign is a minute in which the driver reports, or in which a partition is written. Where each
    partition has a writer of its own (`alone`), the partition that was silent longest counts.
    The age is ``None`` without any sign; with `alone`, also if one partition gave no sign.

    Raises:
        FormatError: A note is malformed.
    """
    if not opened:
        return None
    of = opened[0].id.store
    commands: list[Command] = [("HGET", keys.query(of.gen, tenant=of.tenant), "seen")]
    commands += [("HGET", keys.meta(one.id), "t") for one in opened]
    seen, *written = map(_ms, client.call(_WHAT, commands))
    if alone:
        newest = None if None in written else min(one for one in written if one is not None)
    else:
        newest = max((one for one in (seen, *written) if one is not None), default=None)
    return None if newest is None else max(0.0, (wall_ms() - newest) / 1000)


def check_age(age: float | None, max_age: float) -> None:
    """Raises an error if an answer is older than `max_age`, or of unknown age.

    Raises:
        StateError: The answer is older, or its age is unknown.
    """
    if age is not None and age <= max_age:
        return
    found = "the time of its last write is unknown"
    if age is not None:
        found = (
            f"the last sign of life of the query was {age:.0f} s ago, and max_age is {max_age:g} s"
        )
    raise StateError(
        _WHAT,
        found=found,
        advice=(
            "Check whether the query runs and keeps up. Without max_age its last confirmed "
            "version is read."
        ),
        kind=Kind.STALE,
    )


def _ms(raw: bytes | None) -> int | None:
    if raw is None:
        return None
    number = text_number(raw.decode("ascii", "replace"))
    if number is None:
        raise FormatError(_WHAT, found="the note of a time is malformed")
    return number
