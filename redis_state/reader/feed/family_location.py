"""Location of an operator's family and codec of its rows, to read many versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from redis_state.backend.client import Client
from redis_state.errors import ConfigError, Kind, StateError
from redis_state.format.header import Family
from redis_state.ids import NUMBER_MAX, PartitionId
from redis_state.protocol.opening import Opened, open_commands, read_replies
from redis_state.reader.family import FamilyChoice
from redis_state.reader.feed.deltas import Timeline
from redis_state.reader.source import Stores
from redis_state.reader.table_columns import RowCodec, value_decoder
from redis_state.reader.version_request import version_after

NO_BATCH = -1
_OPENED_AT_ONCE = 256
_FAMILIES_MAX = 16


@dataclass(frozen=True, slots=True)
class FamilyLocation:
    """A family in all partitions of a store.

    Attributes:
        ahead: See `OperatorInfo.ahead`.
        made: Returns the codec of a family of this name, as one version describes it.
        check: Raises an error for an unknown name that none of these versions has.
    """

    client: Client
    ids: Sequence[PartitionId]
    name: str
    ahead: int
    made: Callable[[Family], RowCodec]
    check: Callable[[Callable[[], Sequence[Opened]]], None]

    def key(self, family: Family, stored: bytes) -> Any:
        """Decodes a key."""
        return self.made(family).decode_key(stored)

    def value(self, family: Family | None, value: bytes | None) -> Any:
        """Decodes a value; a list if the family has a list for each key."""
        if family is None or value is None:
            return None
        return value_decoder(self.made(family))(value)

    def open(self, timelines: Sequence[Timeline], version: int) -> list[Opened]:
        """Opens one version of some partitions, on the timeline of the query.

        Raises:
            StateError: A partition no longer holds the version.
        """
        found: list[Opened] = []
        for start in range(0, len(timelines), _OPENED_AT_ONCE):
            group = timelines[start : start + _OPENED_AT_ONCE]
            ids = [one.id for one in group]
            uids = {one.id.partition: one.uid(version) for one in group}
            commands = open_commands(ids, version, uids=uids)
            replies = self.client.call("opening the state", commands)
            found += read_replies(ids, replies, version=version)
        return found


def place_of(
    client: Client, stores: Stores, operator: int, store: str, choice: FamilyChoice
) -> FamilyLocation:
    """Locates a family by the current list of operators.

    Raises:
        NotFoundError: There is no such operator or store.
        StateError: The store was given another number of partitions.
    """
    info, ids = stores.partitions(operator, store)

    def check(opened: Callable[[], Sequence[Opened]]) -> None:
        if choice.known is None:
            choice.likely(info, opened())

    # Called for every row, so cached.
    made = lru_cache(maxsize=_FAMILIES_MAX)(choice.of)
    return FamilyLocation(client, ids, choice.name, info.ahead, made, check)


def check_batch(batch: object, *, what: str) -> int:
    """Returns a batch number after checking that it is one, or -1.

    Raises:
        ConfigError: The value cannot be the number of a batch.
    """
    if type(batch) is not int or not NO_BATCH <= batch < NUMBER_MAX:
        raise ConfigError(
            what,
            found="a batch is not a whole number of -1 or more",
            advice="Give Spark's batch id; -1 is the empty state before all batches.",
        )
    return batch


def version_of(batch: object, ahead: int, *, what: str) -> int:
    """Returns the state version after a batch; -1 is the empty state before all batches.

    Raises:
        ConfigError: The value is not the number of a batch, or the store has no version for it.
    """
    number = check_batch(batch, what=what)
    return 0 if number == NO_BATCH else version_after(number, ahead, what=what)


def batch_of(version: int, ahead: int) -> int:
    """Returns the batch that made a version; -1 for the empty state before all batches."""
    return version - ahead if version else NO_BATCH


def check_reach(
    timelines: Sequence[Timeline], *, ahead: int, low: int, high: int, what: str, advice: str
) -> None:
    """Checks that versions are confirmed, and that their deltas are kept.

    Args:
        ahead: See `OperatorInfo.ahead`.
        advice: Advice for dropped deltas, with placeholders for a batch and its version.

    Raises:
        StateError: A version is not confirmed, or its deltas are gone; then `version` is the oldest
            one from which deltas are kept.
    """
    late = next((one for one in timelines if one.head.opened.version < high), None)
    if late is not None:
        newest = batch_of(late.head.opened.version, ahead)
        raise StateError(
            what,
            found=f"there is no batch {batch_of(high, ahead)}; the newest that is confirmed is "
            f"{'none' if newest == NO_BATCH else newest}",
            advice=(
                "Ask for that batch or an older one. If the batch existed before, the query went "
                "back, or Redis lost it."
            ),
            kind=Kind.STATE_LOST,
            where=str(late.id),
            version=high,
        )
    oldest = max((one.oldest for one in timelines), default=0)
    if oldest > low:
        # Initial state may make a version before batch 0, which no batch number names.
        batch = max(batch_of(oldest, ahead), 0)
        oldest = batch + ahead
        raise StateError(
            what,
            found=f"retention has dropped changes that batch {batch} or an older one made",
            advice=advice.format(batch, oldest),
            kind=Kind.VERSION_EXPIRED,
            version=oldest,
        )
