"""Model of a join whose keys expire, over all short schedules (docs/format.md, section 15).

Four stores of one partition keep the rows and the counts of both sides. Each store hides, folds and
commits by itself; batches stop after any commit and are run again. The rule is checked against a
plain list of rows for each key, and each of its clauses is shown to be necessary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

TTL = 4
STEP = 2
SIDES = ("left", "right")
STORES = ("left counts", "left rows", "right counts", "right rows")
Stored = dict[int, tuple[object, int]]
"""Rows of one store by index, 0 for a count: value and expiry."""


@dataclass(frozen=True)
class Rule:
    """The rule, or a variant of it that lacks a clause."""

    renews_own_rows: bool = True
    renews_other_side: bool = True
    has_time_of_batch: bool = True
    keeps_expiry_of_replaced: bool = True
    takes_expiry_of_other_side: bool = True


@dataclass
class Version:
    rows: Stored = field(default_factory=dict)
    time: int = 0

    def visible(self, time: int) -> dict[int, object]:
        return {index: value for index, (value, until) in self.rows.items() if until > time}


class TornError(AssertionError):
    """A count has no rows, or rows have no count."""


class Join:
    """One join key in the four stores of a partition."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.versions: dict[str, list[Version]] = {name: [Version()] for name in STORES}
        self.times: list[int] = []
        self.clock = 0
        self.ttl = TTL
        # The plain computation: rows of each side, and when a row was added last.
        self.rows: dict[str, list[object]] = {side: [] for side in SIDES}
        self.until = 0

    def batch(self, steps: Sequence[str], stops_after: int | None = None) -> None:
        """Runs a batch; it may stop after some commits, and is run again later."""
        version = len(self.times)
        self.times.append(max(self.clock, *self.times, 0) if self.times else self.clock)
        if stops_after is not None:
            self._attempt(version, steps, stops_after)
            self.clock += 1
        self._attempt(version, steps, len(STORES))
        self._compare(steps)

    def _attempt(self, version: int, steps: Sequence[str], commits: int) -> None:
        store = _Attempt(self, version)
        for step in steps:
            store.apply(step)
        for name in STORES[:commits]:
            written = store.written[name]
            del self.versions[name][version + 1 :]
            self.versions[name].append(written)

    def time_of(self, name: str, version: int) -> int:
        if self.rule.has_time_of_batch:
            return self.times[version]
        # Each store by the clock at which it opened, or that of its attempt which is there.
        found = self.versions[name]
        return found[version + 1].time if len(found) > version + 1 else self.clock

    def fold(self, name: str) -> None:
        """Removes what is expired in the newest version of one store."""
        newest = self.versions[name][-1]
        newest.rows = {at: row for at, row in newest.rows.items() if row[1] > newest.time}

    def _compare(self, steps: Sequence[str]) -> None:
        time = self.times[-1]
        if self.until <= time:
            self.rows = {side: [] for side in SIDES}
        for step in steps:
            side, what = step.split()
            if what == "add":
                self.rows[side].append(step)
                self.until = max(self.until, -(-(time + self.ttl) // STEP) * STEP)
            elif self.rows[side] and what == "evict":
                self.rows[side].pop()
        if not any(self.rows.values()):
            self.until = 0
        for side in SIDES:
            seen = self.seen(side)
            assert seen == len(self.rows[side]), (side, seen, self.rows)

    def seen(self, side: str) -> int:
        """Returns the number of rows that readers of each store by itself find."""
        counts, rows = (self.versions[f"{side} {kind}"][-1] for kind in ("counts", "rows"))
        count = counts.visible(counts.time).get(0, 0)
        found = rows.visible(rows.time)
        if sorted(found) != list(range(int(str(count)))):
            raise TornError(f"{side}: count {count}, rows {sorted(found)}")
        return len(found)


class _Attempt:
    """Writes as Spark's operator does, and gives rows their expiry by the rule."""

    def __init__(self, join: Join, version: int) -> None:
        self.rule = join.rule
        self.written = {
            name: Version(dict(join.versions[name][version].rows), join.time_of(name, version))
            for name in STORES
        }
        self.ttl = join.ttl

    def apply(self, step: str) -> None:
        side, what = step.split()
        count = int(str(self._get(f"{side} counts", 0) or 0))
        if what == "add":
            self._put(side, "rows", count, step)
            self._put(side, "counts", 0, count + 1)
        elif what == "mark" and count:
            self._put(side, "rows", 0, "marked")
        elif what == "evict" and count:
            del self.written[f"{side} rows"].rows[count - 1]
            if count > 1:
                self._put(side, "counts", 0, count - 1)
            else:
                del self.written[f"{side} counts"].rows[0]

    def _get(self, name: str, index: int) -> object:
        version = self.written[name]
        return version.visible(version.time).get(index)

    def _put(self, side: str, kind: str, index: int, value: object) -> None:
        name = f"{side} {kind}"
        there = self._get(name, index) is not None
        if there and self.rule.keeps_expiry_of_replaced:
            until = self.written[name].rows[index][1]
        else:
            until = self._until(side, self._new(name))
        self.written[name].rows[index] = (value, until)

    def _new(self, name: str) -> int:
        return -(-(self.written[name].time + self.ttl) // STEP) * STEP

    def _until(self, side: str, new: int) -> int:
        """Returns the expiry of the key, which it renews where a new row lives longer."""
        asked = SIDES if self.rule.takes_expiry_of_other_side else (side,)
        known = [
            self.written[f"{one} counts"].rows[0][1]
            for one in asked
            if self._get(f"{one} counts", 0) is not None
        ]
        found = max(known, default=0)
        if found >= new:
            return found
        for one in SIDES if known else ():
            if one != side and not self.rule.renews_other_side:
                continue
            for kind in ("counts", "rows") if self.rule.renews_own_rows else ("counts",):
                version = self.written[f"{one} {kind}"]
                for index, stored in version.visible(version.time).items():
                    version.rows[index] = (stored, new)
        return new


BATCHES = (
    (),
    ("left add",),
    ("right add",),
    ("left add", "left add", "right mark"),
    ("left evict",),
    ("right mark",),
)


def play(rule: Rule, batches: Sequence[Sequence[str]], waits: Sequence[int], stop: int) -> None:
    """Plays batches with time in between, a kill in the second one and folds of single stores."""
    join = Join(rule)
    for number, (steps, wait) in enumerate(zip(batches, waits, strict=True)):
        join.clock += wait
        if number == 2:
            join.ttl = TTL - 2  # a shorter one, for what is written from now on
        join.batch(steps, stop if number == 1 and stop < len(STORES) else None)
        join.fold(STORES[(number + stop) % len(STORES)])


def schedules() -> Iterator[tuple[Sequence[Sequence[str]], Sequence[int], int]]:
    for batches in product(BATCHES[1:3], BATCHES, BATCHES, BATCHES):
        for waits in product((0,), (1, 3), (1, 4), (2, 5)):
            for stop in range(len(STORES) + 1):
                yield batches, waits, stop


def play_all(rule: Rule) -> int:
    """Returns the number of schedules."""
    played = 0
    for batches, waits, stop in schedules():
        play(rule, batches, waits, stop)
        played += 1
    return played


def test_rows_of_a_join_key_leave_together() -> None:
    assert play_all(Rule()) == 2 * 6**3 * 8 * 5


@pytest.mark.parametrize(
    "without",
    [
        {"renews_own_rows": False},
        {"renews_other_side": False},
        {"has_time_of_batch": False},
        {"keeps_expiry_of_replaced": False},
        {"takes_expiry_of_other_side": False},
    ],
    ids=lambda without: next(iter(without)),
)
def test_each_clause_is_necessary(without: Mapping[str, bool]) -> None:
    rule = replace(Rule(), **without)
    with pytest.raises(AssertionError):
        play_all(rule)
