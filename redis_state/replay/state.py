"""Comparison of the state after a replayed batch with that of production."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state.config import Config
from redis_state.live import Reader
from redis_state.reader.comparison import Comparison, FamilyDifference

FamilyPath = tuple[int, str, str]
"""Operator, store and family."""


@dataclass(frozen=True, slots=True)
class ReplayedState:
    """A checkpoint of production and its fork.

    Attributes:
        name: Name of a Python store; empty for Spark's operators.
    """

    name: str
    produced: str
    replayed: str


@dataclass(frozen=True, slots=True)
class ReplayedKey:
    """A key that differs after the batch.

    Attributes:
        store: Operator, store and family of the key.
        produced: Its value in production; ``None`` if it is absent there.
        replayed: Its value after the replay; ``None`` if it is absent.
        name: Name of the Python store; empty for Spark's operators.
    """

    store: FamilyPath
    key: Any
    produced: Any
    replayed: Any
    name: str = ""


@dataclass(frozen=True, slots=True)
class StoreChanges:
    """Counts of one family of a store.

    Attributes:
        produced: Number of keys that production's batch changed.
        replayed: Number of keys that the replay changed.
        different: Number of keys whose values differ after the batch.
        name: Name of the Python store; empty for Spark's operators.
    """

    store: FamilyPath
    produced: int
    replayed: int
    different: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class StateDiff:
    """Differences between the states of a replay and of production, after the same batch.

    Attributes:
        keys: The keys of all stores whose values differ.
    """

    stores: tuple[StoreChanges, ...]
    keys: tuple[ReplayedKey, ...]

    @property
    def same(self) -> bool:
        """True if every key has the same value."""
        return not self.keys


def compare_states(config: Config, states: Sequence[ReplayedState], batch: int) -> StateDiff:
    """Compares the state after a batch on both sides, and counts what it changed on each.

    Memory holds the keys that differ.

    Raises:
        UsageError: The changed query has other operators, stores, families or columns.
        StateError: Production's state after the batch is gone.
    """
    stores: list[StoreChanges] = []
    keys: list[ReplayedKey] = []
    with Reader(config) as reader:
        for one in states:
            after = reader.diff(
                one.produced, one.replayed, at_a=batch, at_b=batch, limit=sys.maxsize
            )
            produced, replayed = (
                _changed(reader, gen, batch, after, first=gen == one.produced)
                for gen in (one.produced, one.replayed)
            )
            for place, family in _families(after):
                different = family.only_a + family.only_b + family.changed
                counts = produced[place], replayed[place], different
                stores.append(StoreChanges(place, *counts, name=one.name))
            keys += [
                ReplayedKey(
                    (each.operator, each.store, each.family), each.key, each.a, each.b, one.name
                )
                for each in after.keys
            ]
    return StateDiff(tuple(stores), tuple(keys))


def _changed(
    reader: Reader, gen: str, batch: int, after: Comparison, *, first: bool
) -> Counter[FamilyPath]:
    """Returns how many keys of each family the batch changed in a checkpoint.

    Args:
        after: Both sides after the batch.
        first: True if the checkpoint is the first side of `after`.
    """
    counted: Counter[FamilyPath] = Counter()
    if any(batch - 1 + one.ahead < 1 for one in reader.query(gen).operators()):
        # The state began with this batch.
        for place, family in _families(after):
            alone = family.only_a if first else family.only_b
            counted[place] = alone + family.changed + (family.equal or 0)
        return counted
    for place, family in _families(reader.diff(gen, gen, at_a=batch - 1, at_b=batch, limit=0)):
        counted[place] = family.only_a + family.only_b + family.changed
    return counted


def _families(found: Comparison) -> Iterator[tuple[FamilyPath, FamilyDifference]]:
    for store in found.stores:
        for family in store.families:
            yield (store.operator, store.store, family.name), family
