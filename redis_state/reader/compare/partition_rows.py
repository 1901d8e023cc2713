"""Rows that differ between two versions of one partition.

Segments that both versions name are not read: first the two chains of segments are compared. Where
they end in common segments, only keys of the other segments can differ. Otherwise the rows of both
versions are read side by side, bucket by bucket. So are those of versions of two times, where rows
have a time to live: any row may be expired in one of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from redis_state.backend.client import Client
from redis_state.errors import FormatError, UnavailableError, UsageError
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, stored_key
from redis_state.format.segment import SegmentContent
from redis_state.format.visible import time_of, visible, visible_values
from redis_state.ids import Pin
from redis_state.protocol.hot_runs import leave_out
from redis_state.protocol.opening import Opened, made_up_now
from redis_state.protocol.segments import SegmentGoneError, fetch
from redis_state.protocol.version_rows import VersionRows
from redis_state.reader.feed.changed_rows import Folded, fold
from redis_state.reader.feed.deltas import read_contents
from redis_state.reader.lookup.points import KEYS_AT_ONCE, Points

WHAT = "comparing two versions"
_UNIMPORTANT = ("nullable", "metadata", "containsNull", "valueContainsNull")


@dataclass(frozen=True, slots=True)
class DifferentRow:
    """A key whose values differ.

    Attributes:
        key: Without the family id.
        family_a: The family in version A; ``None`` without a family of the name.
        a: The value without its expiry; ``None`` if A does not have the key, or its row is expired.
    """

    name: str
    key: bytes
    family_a: Family | None
    family_b: Family | None
    a: bytes | None
    b: bytes | None


@dataclass(slots=True)
class PartitionTally:
    """Result of comparing one partition, besides the different rows.

    Attributes:
        equal: Number of equal rows by family; ``None`` where common segments were not read.
        identical: True if both versions have the same segments.
    """

    equal: Counter[str] | None = field(default_factory=Counter)
    identical: bool = False


def different_rows(
    client: Client, a: Opened, b: Opened, tally: PartitionTally
) -> Iterator[DifferentRow]:
    """Yields the rows that differ between two versions of a partition, in no order.

    Memory holds the changes since the last snapshot of both versions, and a few buckets.

    Raises:
        UsageError: A family has other columns in the other version.
        FormatError: A segment is damaged.
        UnavailableError: A segment was dropped during the read.
    """
    if _names(a) == _names(b):
        tally.equal, tally.identical = None, True
        return
    given = False
    for again in (False, True):
        try:
            if again:
                a, b = made_up_now(client, [a, b])
            for row in _different(client, a, b, tally):
                given = True
                yield row
            return
        except (SegmentGoneError, FormatError) as error:
            if isinstance(error, FormatError) and (given or again or not _has_run(a, b, error)):
                raise
            if given or again:
                break
            tally.equal = Counter()
    raise UnavailableError(
        WHAT,
        found="a version was dropped while it was read",
        advice="Start again, and keep more versions (versionsToRetain).",
        where=str(a.id),
    )


def _has_run(a: Opened, b: Opened, error: FormatError) -> bool:
    """Returns whether a hot run may be the damaged segment, which no version needs."""
    runs = [leave_out(one.segments, error, where=one.id) for one in (a, b)]
    return any(run is not None for run in runs)


def check_types(one: Family, other: Family, *, where: str) -> None:
    """Checks that rows of two families can be compared.

    Raises:
        UsageError: The columns differ.
    """
    if _types(one) != _types(other):
        raise UsageError(
            WHAT,
            found=f"family '{one.name}' has other columns or another order of keys in the second "
            "version",
            advice="Only versions of the same types can be compared.",
            where=where,
        )


def _names(opened: Opened) -> list[tuple[str, str]]:
    """Returns the segments of a version by the checkpoint that has their key, and their ident."""
    own = opened.id.store.gen
    return [(one.gen or own, one.ident) for one in opened.segments]


def _common(a: Opened, b: Opened) -> int:
    """Returns the number of segments in which both chains end."""
    count = 0
    for one, other in zip(reversed(_names(a)), reversed(_names(b)), strict=False):
        if one != other:
            break
        count += 1
    return count


def _different(
    client: Client, a: Opened, b: Opened, tally: PartitionTally
) -> Iterator[DifferentRow]:
    count, time_s = _common(a, b), time_of(a.segments)
    if not count or time_s != time_of(b.segments):
        yield from _Scan(client, a, b, tally).rows()
        return
    tally.equal = None
    tail = a.segments[-count:]
    pin = Pin(tail[0].version, tail[0].uid)
    points = Points(client, replace(a, pin=pin, segments=tail))
    above_a, above_b = _above(client, a, count), _above(client, b, count)
    table = points.families()
    tables = [table, *(one.families or () for _, one in [*above_a, *above_b])]
    for name in sorted({family.name for families in tables for family in families}):
        sides = [_Side(fold(name, table, above)[0]) for above in (above_a, above_b)]
        yield from _of_family(name, sides, points, time_s, where=str(a.id))


def _above(client: Client, opened: Opened, common: int) -> list[tuple[Segment, SegmentContent]]:
    """Reads the segments above the common ones, oldest first."""
    segments = opened.segments[: len(opened.segments) - common][::-1]
    contents = read_contents(client, [(opened.id, one) for one in segments])
    return list(zip(segments, contents, strict=True))


class _Side:
    """Changes of one version to a family, over the common segments."""

    def __init__(self, folded: Folded) -> None:
        self.family = folded.after
        self.before = folded.before
        self.gone: tuple[Tombstone, ...] = folded.gone
        self.rows: dict[bytes, Value] = {
            key[FAMILY_BYTES:]: word for key, word in folded.rows.items()
        }

    def needs_below(self, key: bytes) -> bool:
        """Returns whether the value depends on the common segments."""
        return key not in self.rows or isinstance(self.rows[key], Appended)

    def take(self, key: bytes, below: bytes | None) -> bytes | None:
        """Removes the change of a key; returns the value after it."""
        base = None if any(one.covers(key) for one in self.gone) else below
        if key not in self.rows:
            return base
        word = self.rows.pop(key)
        return (base or b"") + word.data if isinstance(word, Appended) else word


def _of_family(
    name: str, sides: Sequence[_Side], points: Points, time_s: int, *, where: str
) -> Iterator[DifferentRow]:
    """Compares a family of two versions of one time."""
    a, b = sides
    if a.family is not None and b.family is not None:
        check_types(a.family, b.family, where=where)
    before, ranges = a.before, (*a.gone, *b.gone)
    expires = before is not None and before.ttl

    def row(key: bytes, below: bytes | None) -> Iterator[DifferentRow]:
        left, right = a.take(key, below), b.take(key, below)
        if left != right:
            yield DifferentRow(name, key, a.family or before, b.family or before, left, right)

    if before is not None and ranges:
        for stored, below in points.rows_in(ranges, before):
            yield from row(stored[FAMILY_BYTES:], visible(below, time_s) if expires else below)
    while keys := list(islice(a.rows or b.rows, KEYS_AT_ONCE)):
        found: dict[bytes, bytes] = {}
        if before is not None:
            wanted = [
                stored_key(before.id, key)
                for key in keys
                if (a.needs_below(key) or b.needs_below(key))
                and not any(one.covers(key) for one in ranges)
            ]
            found = points.values(wanted, before) if wanted else {}
            if expires:
                found = visible_values(found, time_s)
        for key in keys:
            value = None if before is None else found.get(stored_key(before.id, key))
            yield from row(key, value)


class _Scan:
    """All rows of two versions without a common segment, side by side."""

    def __init__(self, client: Client, a: Opened, b: Opened, tally: PartitionTally) -> None:
        self._a = _Rows(client, a)
        self._b = _Rows(client, b)
        self._tally = tally
        self._where = str(a.id)
        # A family that was dropped and created again has another id, which its rows begin with.
        self._moved = _moved(self._a, self._b) | _moved(self._b, self._a)
        self._of_a: dict[str, dict[bytes, bytes]] = {}
        self._of_b: dict[str, dict[bytes, bytes]] = {}

    def rows(self) -> Iterator[DifferentRow]:
        """Yields the different rows.

        Raises:
            UsageError: See `different_rows`.
            SegmentGoneError: A segment is not complete any more.
        """
        self._check_families()
        yield from self._hashed()
        for family in sorted({*self._a.ordered_families(), *self._b.ordered_families()}):
            yield from self._ordered(family)
        yield from self._looked_up()
        self._a.check()
        self._b.check()

    def _check_families(self) -> None:
        for family in self._a.families:
            other = self._b.by_name.get(family.name)
            if other is not None:
                check_types(family, other, where=self._where)

    def _hashed(self) -> Iterator[DifferentRow]:
        """Compares hashed rows; buckets of equal remainders hold the same keys."""
        few, many = sorted((self._a, self._b), key=lambda one: one.buckets)
        if few.buckets * few.buckets < many.buckets:
            # All rows of the smaller one need less memory than many buckets of the larger one.
            held = {key: value for group in few.hashed(None) for key, value in group.items()}
            for group in many.hashed(None):
                for key, value in group.items():
                    other = held.pop(key, None)
                    pair = (other, value) if few is self._a else (value, other)
                    yield from self._row(key, *pair)
            for key, value in held.items():
                yield from self._row(key, *((value, None) if few is self._a else (None, value)))
            return
        modulus = few.buckets
        groups = zip(self._a.hashed(modulus), self._b.hashed(modulus), strict=True)
        for of_a, of_b in groups:
            if not self._moved and of_a == of_b:
                self._equal(of_a)
                continue
            for key, value in of_a.items():
                yield from self._row(key, value, of_b.pop(key, None))
            for key, value in of_b.items():
                yield from self._row(key, None, value)

    def _equal(self, keys: Collection[bytes]) -> None:
        """Counts equal rows."""
        if self._tally.equal is None:
            return
        for family, count in Counter(map(family_of, keys)).items():
            self._tally.equal[self._a.by_id[family].name] += count

    def _ordered(self, family: int) -> Iterator[DifferentRow]:
        """Merges the rows of an ordered family, which both versions have in key order."""
        left, right = self._a.ordered(family), self._b.ordered(family)
        one, other = next(left, None), next(right, None)
        while one is not None or other is not None:
            if other is None or (one is not None and one[0] < other[0]):
                assert one is not None
                yield from self._row(one[0], one[1], None)
                one = next(left, None)
            elif one is None or other[0] < one[0]:
                yield from self._row(other[0], None, other[1])
                other = next(right, None)
            else:
                yield from self._row(one[0], one[1], other[1])
                one, other = next(left, None), next(right, None)

    def _row(self, key: bytes, a: bytes | None, b: bytes | None) -> Iterator[DifferentRow]:
        of = family_of(key)
        if of in self._moved:
            yield from self._apart(key[FAMILY_BYTES:], of, a, b)
        elif a != b:
            family_a, family_b = self._a.by_id.get(of), self._b.by_id.get(of)
            name = self._name(family_a if a is not None else family_b)
            yield DifferentRow(name, key[FAMILY_BYTES:], family_a, family_b, a, b)
        elif self._tally.equal is not None:
            self._tally.equal[self._name(self._a.by_id.get(of))] += 1

    def _apart(
        self, key: bytes, of: int, a: bytes | None, b: bytes | None
    ) -> Iterator[DifferentRow]:
        """Notes rows of a family that has another id in the other version."""
        for mine, value, waiting in ((self._a, a, self._of_a), (self._b, b, self._of_b)):
            if value is not None:
                waiting.setdefault(self._name(mine.by_id.get(of)), {})[key] = value
        if sum(map(len, (*self._of_a.values(), *self._of_b.values()))) >= KEYS_AT_ONCE:
            yield from self._looked_up()

    def _looked_up(self) -> Iterator[DifferentRow]:
        """Yields what differs of the noted rows, after look-ups in both versions."""
        for waiting, other in ((self._of_a, self._b), (self._of_b, self._a)):
            for name, rows in waiting.items():
                pair = self._a.by_name.get(name), self._b.by_name.get(name)
                found = other.values(name, rows)
                for key, value in rows.items():
                    there = found.get(key)
                    if waiting is self._of_b:
                        if there is None:
                            yield DifferentRow(name, key, *pair, None, value)
                    elif there != value:
                        yield DifferentRow(name, key, *pair, value, there)
                    elif self._tally.equal is not None:
                        self._tally.equal[name] += 1
            waiting.clear()

    @staticmethod
    def _name(family: Family | None) -> str:
        assert family is not None  # the rows of a version belong to its families
        return family.name


class _Rows:
    """Rows of one version, counted; none of version 0. Values are without expiries."""

    def __init__(self, client: Client, opened: Opened) -> None:
        self._version: VersionRows | None = None
        self.families: Sequence[Family] = ()
        self.buckets = 1
        if opened.segments:
            read = partial(fetch, client, opened.id)
            where = str(opened.id)
            self._version = VersionRows(read, opened.segments, where=where, bare=True)
            self.families = self._version.families
            self.buckets = opened.segments[-1].entry.buckets
        self.by_id = {family.id: family for family in self.families}
        self.by_name = {family.name: family for family in self.families}
        self._count = 0
        self._points = Points(client, opened)

    def hashed(self, buckets: int | None) -> Iterator[dict[bytes, bytes]]:
        """Yields the hashed rows, by bucket."""
        if self._version is None:
            yield from ({} for _ in range(buckets or 1))
            return
        for group in self._version.hashed(buckets):
            self._count += len(group)
            yield group

    def values(self, name: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Returns the values of keys of a family, both without the family id."""
        family = self.by_name.get(name)
        if family is None:
            return {}
        found = self._points.values([stored_key(family.id, key) for key in keys], family)
        if family.ttl:
            found = visible_values(found, self._points.time_s)
        return {key[FAMILY_BYTES:]: value for key, value in found.items()}

    def ordered_families(self) -> list[int]:
        """Returns the families in key order."""
        return [] if self._version is None else self._version.ordered_families()

    def ordered(self, family: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows of a family in key order."""
        if self._version is not None and family in self._version.ordered_families():
            for row in self._version.ordered(family):
                self._count += 1
                yield row

    def check(self) -> None:
        """Compares the rows that were read with the manifest."""
        if self._version is not None:
            self._version.check(self._count)


def _moved(one: _Rows, other: _Rows) -> set[int]:
    """Returns the ids of families that the other version has under another id."""
    return {
        id_
        for id_, family in one.by_id.items()
        if (id_ in other.by_id and other.by_id[id_].name != family.name)
        or (family.name in other.by_name and other.by_name[family.name].id != id_)
    }


def _types(family: Family) -> tuple[object, ...]:
    schemas = _schema(family.key_schema), _schema(family.value_schema)
    return family.kind, family.params, family.multi_value, *schemas


def _schema(text: str) -> object:
    try:
        return _plain(json.loads(text))
    except ValueError:
        return text


def _plain(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in schema.items() if name not in _UNIMPORTANT}
    return [_plain(one) for one in schema] if isinstance(schema, list) else schema
