"""Comparison of two versions of whole queries: counts, and the first different keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from redis_state.backend.client import Client
from redis_state.errors import ConfigError, UsageError
from redis_state.format.header import Family
from redis_state.format.rows import family_of, stored_key
from redis_state.progress import Progress
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.compare.partition_rows import (
    WHAT,
    DifferentRow,
    PartitionTally,
    different_rows,
)
from redis_state.reader.family import FamilyChoice, is_ours
from redis_state.reader.scan import families_of, pieces_of
from redis_state.reader.table_columns import RowCodec, value_decoder
from redis_state.reader.version_request import NEWEST
from redis_state.reader.view import QueryView
from redis_state.types.decoding import Decoding

LIMIT = 100
"""Default number of different keys with their values."""

_CODECS_MAX = 256


@dataclass(frozen=True, slots=True)
class FamilyDifference:
    """Counts of a column family.

    Attributes:
        only_a: Keys that only the first version has.
        changed: Keys with different values.
        equal: Keys with equal values; ``None`` if common segments have them, which are not read,
            and the store has several families.
    """

    name: str
    only_a: int
    only_b: int
    changed: int
    equal: int | None


@dataclass(frozen=True, slots=True)
class StoreDifference:
    """Counts of a store, the sums of its families but Spark's internal ones.

    Attributes:
        name: Spark's name of the operator.
        common: Number of partitions whose versions have all segments in common.
    """

    operator: int
    store: str
    name: str
    partitions: int
    common: int
    only_a: int
    only_b: int
    changed: int
    equal: int
    families: tuple[FamilyDifference, ...]

    @property
    def differs(self) -> bool:
        """True if a row differs, also in an internal family."""
        return any(one.only_a or one.only_b or one.changed for one in self.families)


@dataclass(frozen=True, slots=True)
class DifferentKey:
    """A key whose value differs.

    Attributes:
        a: Value in the first version; ``None`` if the key is absent there. A list of list state.
        b: Value in the second version.
    """

    operator: int
    store: str
    family: str
    key: Any
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing two versions.

    Attributes:
        batch_a: Batch of the first version; ``None`` if no batch made it.
        keys: The first different keys, in no order.
        complete: True if `keys` has all of them.
    """

    batch_a: int | None
    batch_b: int | None
    stores: tuple[StoreDifference, ...]
    keys: tuple[DifferentKey, ...]
    complete: bool

    @property
    def differs(self) -> bool:
        """True if a row differs."""
        return any(one.differs for one in self.stores)


@dataclass(slots=True)
class _Counted:
    only_a: Counter[str] = field(default_factory=Counter)
    only_b: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    equal: Counter[str] = field(default_factory=Counter)
    unread: set[str] = field(default_factory=set)
    names: dict[str, bool] = field(default_factory=dict)
    common: int = 0

    def add(self, row: DifferentRow) -> None:
        counter = self.changed
        if row.a is None or row.b is None:
            counter = self.only_b if row.a is None else self.only_a
        counter[row.name] += 1

    def end(self, tally: PartitionTally, families: Sequence[Family], lost: int, live: int) -> None:
        """Counts the equal rows of a partition.

        Args:
            lost: Keys of user families of the first version that are not equal.
            live: Keys of its user families.
        """
        ours = [one for one in families if not is_ours(one)]
        self.names |= {one.name: one.internal for one in ours}
        users = sorted({one.name for one in ours if not one.internal})
        self.common += tally.identical
        if tally.equal is not None:
            self.equal += tally.equal
        elif len(users) == 1:
            self.equal[users[0]] += live - lost
            self.unread |= {one.name for one in ours if one.internal}
        else:
            self.unread |= {one.name for one in ours}


def compare_views(
    client: Client,
    a: QueryView,
    b: QueryView,
    *,
    decoding: Decoding,
    limit: int,
    progress: Progress,
) -> Comparison:
    """Compares two versions, partition by partition.

    Args:
        limit: Most different keys to return with their values; all are counted.
        progress: Called with the number of partitions.

    Raises:
        ConfigError: The limit is negative.
        UsageError: The versions have other stores, numbers of partitions or types.
        RedisStateError: See `different_rows`, and `OperatorState.get` for values.
    """
    if limit < 0:
        raise ConfigError(WHAT, found="the limit is negative", advice="Give 0 or more.")
    stores = _same_stores(a, b)
    total, done = sum(one.partitions for one in stores), 0
    keys: list[DifferentKey] = []
    found: list[StoreDifference] = []
    count = 0
    for info in stores:
        _, opened_a = a.open_at(info.operator, info.store, NEWEST)
        _, opened_b = b.open_at(info.operator, info.store, NEWEST)
        decoder, counted = _Decoder(client, info, decoding), _Counted()
        live = 0
        for one, other in zip(opened_a, opened_b, strict=True):
            tally, lost = PartitionTally(), 0
            for row in different_rows(client, one, other, tally):
                family = row.family_a if row.a is not None else row.family_b
                if family is not None and is_ours(family):
                    continue
                counted.add(row)
                lost += row.a is not None and not (family is not None and family.internal)
                count += 1
                if len(keys) < limit:
                    keys.append(decoder.key(row))
            both = [one] if tally.identical else [one, other]
            tables = [family for each in both for family in families_of(client, [each])]
            rows = _rows(client, one)
            live += rows
            counted.end(tally, tables, lost, rows)
            done += 1
            progress("comparing partitions", done, total)
        found.append(_store(info, counted, live))
    return Comparison(a.batch, b.batch, tuple(found), tuple(keys), count <= len(keys))


def _same_stores(a: QueryView, b: QueryView) -> list[OperatorInfo]:
    of_a = {(one.operator, one.store): one for one in a.operators()}
    of_b = {(one.operator, one.store): one for one in b.operators()}
    if of_a.keys() != of_b.keys():
        raise UsageError(
            WHAT,
            found=f"the first has the stores {_listed(of_a)}, the second {_listed(of_b)}",
            advice="Only versions with the same operators and stores can be compared; `--operator` "
            "chooses one that both have.",
        )
    for place, one in of_a.items():
        other = of_b[place]
        if one.partitions != other.partitions:
            raise UsageError(
                WHAT,
                found=f"operator {one.operator} (store '{one.store}') has {one.partitions} "
                f"partitions in the first and {other.partitions} in the second",
                advice="Only versions with the same number of partitions can be compared.",
            )
    return list(of_a.values())


def _listed(stores: Mapping[tuple[int, str], OperatorInfo]) -> str:
    return ", ".join(f"{operator} ({store})" for operator, store in stores) or "none"


def _rows(client: Client, opened: Opened) -> int:
    """Returns the number of keys of user families: by the manifest, unless rows can expire."""
    if not opened.segments:
        return 0
    head = opened.segments[0].entry
    if not head.time:
        return head.live - head.internal
    count = 0
    for rows, families in pieces_of(client, opened):
        users = {family.id for family in families if not family.internal}
        count += sum(family_of(key) in users for key, _ in rows)
    return count


def _store(info: OperatorInfo, counted: _Counted, live: int) -> StoreDifference:
    """Sums up a store; rows that were not read are those of the first version, `live` in all."""
    users = sorted(name for name, internal in counted.names.items() if not internal)
    internals = sorted(name for name, internal in counted.names.items() if internal)

    def sum_of(counter: Counter[str]) -> int:
        return sum(counter[name] for name in users)

    equal = live - sum_of(counted.only_a) - sum_of(counted.changed)
    rows = tuple(
        FamilyDifference(
            name,
            counted.only_a[name],
            counted.only_b[name],
            counted.changed[name],
            None if name in counted.unread else counted.equal[name],
        )
        for name in [*users, *internals]
    )
    return StoreDifference(
        info.operator,
        info.store,
        info.name,
        info.partitions,
        counted.common,
        sum_of(counted.only_a),
        sum_of(counted.only_b),
        sum_of(counted.changed),
        equal,
        rows,
    )


class _Decoder:
    """Decodes keys and values of a store, each with the family of its version."""

    def __init__(self, client: Client, info: OperatorInfo, decoding: Decoding) -> None:
        def codec_of(family: Family) -> RowCodec:
            return FamilyChoice(client, info.operator, family.name, None, decoding).of(family)

        self._info = info
        # Called for every row, so cached.
        self._codec_of = lru_cache(maxsize=_CODECS_MAX)(codec_of)

    def key(self, row: DifferentRow) -> DifferentKey:
        family = row.family_a if row.a is not None else row.family_b
        assert family is not None  # a row has a value in one of them
        stored = stored_key(family.id, row.key)
        return DifferentKey(
            self._info.operator,
            self._info.store,
            row.name,
            self._codec_of(family).decode_key(stored),
            self.value(row.family_a, row.a),
            self.value(row.family_b, row.b),
        )

    def value(self, family: Family | None, stored: bytes | None) -> Any:
        if family is None or stored is None:
            return None
        return value_decoder(self._codec_of(family))(stored)
