"""Differences of one family between two versions, at least one of which has a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from redis_state.backend.client import Client
from redis_state.errors import NotFoundError
from redis_state.format.header import Family
from redis_state.format.rows import stored_key
from redis_state.ids import EMPTY
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.compare.partition_rows import WHAT, PartitionTally, different_rows
from redis_state.reader.family import FamilyChoice
from redis_state.reader.feed.diff import Change
from redis_state.reader.feed.family_location import NO_BATCH, check_batch
from redis_state.reader.source import Source
from redis_state.reader.table_columns import value_decoder
from redis_state.reader.version_request import NEWEST, VersionRequest, refuse_uncommitted

_CODECS_MAX = 16


def changes_between(
    client: Client,
    source: Source,
    place: tuple[int, str],
    choice: FamilyChoice,
    a: str | int,
    b: str | int | None,
) -> Iterator[Change]:
    """Yields the changes of a family from one version to another, in no order.

    Args:
        place: Operator and store.
        a: See `OperatorState.diff`.
        b: See `OperatorState.diff`.

    Raises:
        RedisStateError: See `OperatorState.diff`.
    """
    info, of_a = _opened(source, place, a)
    _, of_b = _opened(source, place, b)
    _check_family(choice, info, [*of_b, *of_a])
    # Called for every row, so cached.
    made = lru_cache(maxsize=_CODECS_MAX)(choice.of)

    def value(family: Family | None, stored: bytes | None) -> Any:
        if family is None or stored is None:
            return None
        return value_decoder(made(family))(stored)

    for one, other in zip(of_a, of_b, strict=True):
        for row in different_rows(client, one, other, PartitionTally()):
            family = row.family_a if row.a is not None else row.family_b
            if row.name == choice.name and family is not None:
                key = made(family).decode_key(stored_key(family.id, row.key))
                yield Change(key, value(row.family_a, row.a), value(row.family_b, row.b))


def _check_family(choice: FamilyChoice, info: OperatorInfo, opened: Sequence[Opened]) -> None:
    """Checks that a partition of one of the versions has the family."""
    failed: NotFoundError | None = None
    for one in [one for one in opened if one.segments] or opened[:1]:
        try:
            choice.likely(info, [one])
        except NotFoundError as error:
            failed = error
        else:
            return
    if failed is not None:
        raise failed


def _opened(
    source: Source, place: tuple[int, str], at: str | int | None
) -> tuple[OperatorInfo, list[Opened]]:
    if isinstance(at, int) and check_batch(at, what=WHAT) == NO_BATCH:
        info, opened = source.open_at(*place, NEWEST)
        return info, [Opened(one.id, EMPTY, False, 0, 0, EMPTY, ()) for one in opened]
    wanted = NEWEST if at is None else VersionRequest(at=at)
    refuse_uncommitted(wanted.at, WHAT)
    return source.open_at(*place, wanted)
