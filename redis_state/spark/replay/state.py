"""Comparison of the state after a replayed batch with that of production."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redis_state.config import Config
from redis_state.errors import UsageError
from redis_state.files import Folder
from redis_state.live import Reader
from redis_state.reader import Change, OperatorState
from redis_state.reader.query import Query
from redis_state.recovery.marker import gen_of


@dataclass(frozen=True, slots=True)
class ReplayedKey:
    """A key that differs after the batch.

    Attributes:
        store: Operator, store and family of the key.
        produced: Its value in production; ``None`` if it is absent there.
        replayed: Its value after the replay; ``None`` if it is absent.
    """

    store: tuple[int, str, str]
    key: Any
    produced: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class StoreChanges:
    """Counts of one family of a store.

    Attributes:
        produced: Number of keys that production's batch changed.
        replayed: Number of keys that the replay changed.
        different: Number of keys whose values differ after the batch.
    """

    store: tuple[int, str, str]
    produced: int
    replayed: int
    different: int


@dataclass(frozen=True, slots=True)
class StateDiff:
    """The state after a replayed batch, against that of production after the same batch.

    Attributes:
        keys: The keys that differ, of all stores.
    """

    stores: tuple[StoreChanges, ...]
    keys: tuple[ReplayedKey, ...]

    @property
    def same(self) -> bool:
        """True if every key has the same value."""
        return not self.keys


def compare_state(config: Config, production: Folder, fork: Folder, batch: int) -> StateDiff:
    """Compares what a batch changed on both sides. Both began with the same state.

    Memory holds the keys that the batch changed, of one store at a time, and those that differ.

    Raises:
        UsageError: The changed query has other operators, stores or families.
        StateError: Production's state after the batch is gone.
    """
    with Reader(config) as reader:
        ours, theirs = reader.query(gen_of(fork)), reader.query(gen_of(production))
        _check_same_stores(ours, theirs, batch)
        stores, keys = [], []
        for place in _families(theirs):
            operator, store, family = place
            produced = _changes(theirs.operator(operator, store, family=family), batch)
            replayed = _changes(ours.operator(operator, store, family=family), batch)
            different = list(_different(place, produced, replayed))
            stores.append(StoreChanges(place, len(produced), len(replayed), len(different)))
            keys += different
    return StateDiff(tuple(stores), tuple(keys))


def _families(query: Query) -> list[tuple[int, str, str]]:
    return [
        (one.operator, one.store, family.name)
        for one in query.operators()
        for family in one.families
    ]


def _check_same_stores(ours: Query, theirs: Query, batch: int) -> None:
    found, wanted = sorted(_families(ours)), sorted(_families(theirs))
    if found != wanted:
        raise UsageError(
            f"comparing the state after batch {batch}",
            found=f"the replayed query has the stores {found}, and production {wanted}",
            advice="Spark takes a checkpoint only for a query with the same stateful operators.",
        )


def _changes(state: OperatorState, batch: int) -> dict[Any, Change]:
    return {_hashable(one.key): one for one in state.diff(batch - 1, batch)}


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple((name, _hashable(value)) for name, value in key.items())
    if isinstance(key, (list, tuple)):
        return tuple(map(_hashable, key))
    return key


def _different(
    place: tuple[int, str, str], produced: dict[Any, Change], replayed: dict[Any, Change]
) -> Iterator[ReplayedKey]:
    for name in {**produced, **replayed}:
        theirs, ours = produced.get(name), replayed.get(name)
        known = theirs or ours
        assert known is not None
        # A side that did not change the key has the value from before the batch.
        before = known.before
        values = [before if one is None else one.after for one in (theirs, ours)]
        if values[0] != values[1]:
            yield ReplayedKey(place, known.key, *values)
