"""Versions that are kept by name, and the rows of each until it is dropped or expires."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.errors import NotFoundError, RedisStateError, UnavailableError
from redis_state.protocol.kept import KEEP_FIELD
from redis_state.protocol.pins import KEEP_OWNER
from tests.faults.system.forks import points
from tests.faults.system.forks.forked import ForkedQuery, Read, gen_in, read_kept, rows_at
from tests.faults.system.python_stores import PythonStores
from tests.faults.system.query import Query

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

Subject = Query | PythonStores
Step = Callable[[], None]
Told = tuple[int, str]

_HOUR_MS = 3_600_000
_TIMES = {"12h": 12 * _HOUR_MS, "20d": 480 * _HOUR_MS}
_UNSURE_MS = 300_000
_POINTS_MAX = 40
_STRIDE_MAX = 6
_PINNED = 16, 23
"""Points of which some are between the pins of a call and its name."""
_APART = 3
"""Points between two at which another call is made."""
_AUTO = b"keep:auto-"
_EXPIRY_STEPS = "removing a name", "ending a pin"
"""Steps of maintenance for a name that has expired."""


def gen_of(subject: Subject) -> str | None:
    """Id of the checkpoint."""
    if isinstance(subject, PythonStores):
        return subject.gen()
    return subject.gen if isinstance(subject, ForkedQuery) else gen_in(subject.folder)


@dataclass(frozen=True)
class Kept:
    """A kept version.

    Attributes:
        until_ms: By the time that went by in the lab; `None` for ever.
        owner: Owner of its pins, for one that a driver has kept.
    """

    name: str
    gen: str
    rows: Read
    until_ms: int | None
    owner: str = ""


class Keeps:
    """Kept versions of all queries and stores of a schedule.

    Attributes:
        kept: Those there are.
        left: Names of which a call was killed and not repeated, with their checkpoints: pins may
            be left.
    """

    def __init__(self, play: Schedule) -> None:
        self._play = play
        self._lab = play.lab
        self._dice = play.dice
        self._count = 0
        self.kept: list[Kept] = []
        self.left: list[tuple[str, str]] = []

    # ---- keeping ----------------------------------------------------------------------------

    def keep(self, subject: Subject, beside: Callable[[], None]) -> None:
        """Keeps the newest version or that of a batch, in one of several ways."""
        gen, dice = gen_of(subject), self._dice
        if gen is None or not self._has_version(subject):
            return
        self._count += 1
        name, time = f"kept-{self._count}", dice.choice(("", *_TIMES))
        words = ["keep", gen, "--name", name, "--json", *(("--for", time) if time else ())]
        if isinstance(subject, Query) and dice.one_in(2):
            newest = len(subject.world.logged) - 1
            oldest = max(0, subject.world.oldest - 1)
            words += ["--at-batch", str(dice.between(min(oldest, newest), newest))]
        ways = (self._at_once, self._at_once, self._killed, self._cut_off, self._twice, self._amid)
        way = dice.choice(ways)
        told = way(words, beside)
        if told is None:
            self.left.append((gen, name))
            return
        status, said = told
        goes_on = way in (self._amid, self._killed)
        if status:
            self._refused(subject, said, goes_on)
            return
        made = json.loads(said.splitlines()[-1])
        self._lab.counters["kept versions"] += 1
        until = self._lab.jumped_ms + _TIMES[time] if time else None
        rows = self._expected(subject, gen, name, made["version"], goes_on)
        if rows is not None:
            self.kept.append(Kept(name, gen, rows, until))

    def _has_version(self, subject: Subject) -> bool:
        if isinstance(subject, PythonStores):
            return subject.newest[1] > 1
        return len(subject.world.logged) > 1

    def _at_once(self, words: list[str], _beside: Step) -> Told | None:
        return self._lab.command(*words)

    def _killed(self, words: list[str], beside: Step) -> Told | None:
        """The command is killed at one point after the other; then it may never come again."""
        number = 0
        while True:
            number += self._dice.between(1, _STRIDE_MAX)
            try:
                with points.at(number, points.kill):
                    return self._lab.command(*words)
            except points.CutError:
                self._lab.counters["keeps killed"] += 1
            if self._is_named(words):
                # It was killed behind its last step.
                return 0, self._listed(words)
            if self._dice.one_in(8):
                self._lab.counters["keeps given up"] += 1
                return None
            if self._dice.one_in(2):
                beside()

    def _is_named(self, words: list[str]) -> bool:
        return bool(self._lab.redis("HEXISTS", f"{{rs:{words[1]}}}:q", f"keep:{words[3]}"))

    def _listed(self, words: list[str]) -> str:
        _, said = self._lab.command("keep", words[1], "--list", "--json")
        return next(line for line in said.splitlines() if f'"{words[3]}"' in line)

    def _cut_off(self, words: list[str], _beside: Step) -> Told | None:
        """The command loses its connection; the same command again."""
        with points.at(self._dice.below(_POINTS_MAX), points.cut_off, lasts=True) as point:
            told = self._lab.command(*words)
        if not point.reached:
            return told
        self._lab.counters["keeps cut off from the server"] += 1
        if self._is_named(words):
            return 0, self._listed(words)
        return self._lab.command(*words)

    def _twice(self, words: list[str], _beside: Step) -> Told | None:
        """Another call with the same name amid this one, at one point after the other."""
        number, reached = self._dice.below(_APART), True
        while reached and number < _POINTS_MAX and not self._play.world.problems:
            name = f"{words[3]}-{number}"
            reached = self._two_calls([*words[:3], name, *words[4:]], number)
            self._drop(words[1], name)
            number += _APART
        return None

    def _two_calls(self, words: list[str], number: int) -> bool:
        """Runs two calls of which one wins; a third was killed before."""
        try:
            with points.at(self._dice.between(*_PINNED), points.kill):
                told = [self._lab.command(*words)]
        except points.CutError:
            told = []
        other = [*words[:5], "--for", "9d"] if "--for" not in words else words[:5]
        with points.at(number, lambda: told.append(self._lab.command(*other))) as point:
            told.append(self._lab.command(*words))
        if point.reached:
            self._lab.counters["keeps with the same name"] += 1
        is_named, won = self._is_named(words), [said for status, said in told if not status]
        if len(won) > 1 or (won and not is_named):
            self._wrong(f"two calls of one name, which is there or not: {told}", "false errors")
        if is_named:
            self.check_now(words[1], words[3])
        return point.reached

    def _amid(self, words: list[str], beside: Step) -> Told | None:
        """The query goes on, amid the command."""
        with points.at(self._dice.below(_POINTS_MAX), beside) as point:
            told = self._lab.command(*words)
        self._lab.counters["keeps of a query that goes on"] += point.reached
        return told

    def _refused(self, subject: Subject, said: str, has_gone_on: bool) -> None:
        """Checks a refusal: the version is not confirmed yet, or the query dropped it meanwhile."""
        reasons = ["is not confirmed yet", "does not hold the state"]
        if isinstance(subject, Query) and not subject.jobs:
            reasons.append("no batch of it is confirmed")
        if has_gone_on:
            reasons += ["retention dropped", "removed a pin"]
        self._lab.counters["keeps refused"] += 1
        if not any(reason in said for reason in reasons):
            self._wrong(f"keep: {said}", "false errors")

    def _expected(
        self, subject: Subject, gen: str, name: str, version: int, has_gone_on: bool
    ) -> Read | None:
        """Rows that the name has to give from here on; what it gives now is one of what it may."""
        known = self._candidates(subject, version, has_gone_on)
        try:
            got = read_kept(self._lab.url, gen, name)
        except RedisStateError as error:
            self._wrong(f"reading {name}: {error}", "false lost")
            return None
        if got not in known:
            self._wrong(f"{name} of version {version} reads as {got}, not {known}", "wrong")
            return None
        return got

    def _candidates(self, subject: Subject, version: int, has_gone_on: bool) -> list[Read]:
        if isinstance(subject, PythonStores):
            wanted = subject.history.get(version, {})
            return [sorted(wanted.items())]
        world = subject.world
        tokens = [world.tokens]
        if world.unwritten or has_gone_on:
            tokens += world.timelines
        elif version > len(world.logged):
            return []  # No task of a later batch has opened it, so it is not confirmed.
        return [rows_at(of, version) for of in tokens if len(of) >= version]

    def notice(self, query: Query) -> None:
        """The driver has kept a version by itself (`keepEvery`)."""
        gen = gen_of(query)
        if gen is None:
            return
        known = {one.name: one for one in self.kept if one.gen == gen}
        fields = self._lab.redis("HGETALL", f"{{rs:{gen}}}:q")
        for field, raw in fields.items():
            if not field.startswith(_AUTO):
                continue
            name, entry = field.decode()[len("keep:") :], json.loads(raw)
            before = known.get(name)
            if before is not None and before.owner == entry["owner"]:
                continue
            if before is not None:
                self._given_anew(before)
            self._lab.counters["versions kept by a driver"] += 1
            rows = self._expected(query, gen, name, entry["version"], False)
            if rows is not None:
                until = self._lab.jumped_ms + entry["expires"] - entry["at"]
                self.kept.append(Kept(name, gen, rows, until, entry["owner"]))

    def _given_anew(self, one: Kept) -> None:
        """A driver gives a name again only once it has expired."""
        until = one.until_ms
        if until is not None and until > self._lab.jumped_ms + _UNSURE_MS:
            self._wrong(f"{one} has not expired, and another version has its name", "wrong")
        self.kept.remove(one)

    def renew(self, subject: Subject) -> None:
        """An expired name is given anew before maintenance removes it or ends its pins."""
        gen = gen_of(subject)
        if gen is None or self._play.held or not self._has_version(subject):
            return
        self._count += 1
        name, what = f"renewed-{self._count}", self._dice.choice(_EXPIRY_STEPS)
        words = ["keep", gen, "--name", name, "--json"]
        if self._lab.command(*words, "--for", "12h")[0]:
            return
        self._play.people.idle(13 * _HOUR_MS)
        told: list[Told] = []
        again = partial(self._lab.command, *words)
        owner = f"{KEEP_OWNER}{name}."
        with points.before(what, lambda: told.append(again()), about=owner):
            self._play.administrators.maintain()
        if not told or told[0][0]:
            self._wrong(f"maintenance of {name}, expired, before {what}: {told}", "false errors")
            return
        self._lab.counters[f"names given anew before {what}"] += 1
        version = json.loads(told[0][1].splitlines()[-1])["version"]
        rows = self._expected(subject, gen, name, version, True)
        if rows is not None:
            self.kept.append(Kept(name, gen, rows, None))

    # ---- reading, dropping ------------------------------------------------------------------

    def check_now(self, gen: str, name: str) -> None:
        """A name that is there can be read."""
        try:
            read_kept(self._lab.url, gen, name)
        except RedisStateError as error:
            self._wrong(f"reading {name}: {error}", "false lost")

    def read(self, one: Kept) -> None:
        """Reads a name: the rows that it had when it was made, or nothing once it has expired."""
        until = one.until_ms
        if until is not None and abs(until - self._lab.jumped_ms) < _UNSURE_MS:
            return
        is_expired = until is not None and until < self._lab.jumped_ms
        try:
            got = self._read(one)
        except NotFoundError as error:
            self._lab.counters["reads of expired names"] += is_expired
            if not is_expired:
                self._wrong(f"reading {one}: {error}", "false lost")
            return
        except RedisStateError as error:
            self._wrong(f"reading {one}: {error}", "false lost")
            return
        self._lab.counters["reads of kept versions"] += 1
        if is_expired or got != one.rows:
            self._wrong(f"{one} reads as {got}", "wrong")

    def _read(self, one: Kept) -> Read:
        try:
            return read_kept(self._lab.url, one.gen, one.name)
        except UnavailableError:
            # Redis names the folder where restored files were, until a query writes at the new one.
            if not self._play.people.reach_moved_files():
                raise
            return read_kept(self._lab.url, one.gen, one.name)

    def read_one(self) -> None:
        """Reads one of all names."""
        if self.kept:
            self.read(self._dice.choice(self.kept))

    def read_all(self, gen: str | None = None) -> None:
        """Reads all names, or those of one checkpoint."""
        for one in self.kept:
            if gen in (None, one.gen) and not self._play.world.problems:
                self.read(one)

    def drop_one(self) -> None:
        """Drops a name; sometimes the command is killed, and comes again."""
        if not self.kept:
            return
        one = self._dice.choice(self.kept)
        self.read(one)
        self.kept.remove(one)
        number = self._dice.below(3 * _POINTS_MAX)
        try:
            with points.at(number, points.kill):
                self._drop(one.gen, one.name)
        except points.CutError:
            self._lab.counters["drops killed"] += 1
            self._drop(one.gen, one.name)
        self._lab.counters["kept versions dropped"] += 1
        try:
            read_kept(self._lab.url, one.gen, one.name)
        except NotFoundError:
            return
        except RedisStateError as error:
            self._wrong(f"reading {one}, which was dropped: {error}", "false errors")
        else:
            self._wrong(f"{one} was dropped, and can be read", "wrong")

    def drop_all(self, gen: str | None = None) -> None:
        """Drops what is kept, and ends pins of calls that were given up."""
        names = [*((one.gen, one.name) for one in self.kept), *self.left]
        for at in names:
            if gen in (None, at[0]):
                self._drop(*at)
        self.forget(gen)

    def forget(self, gen: str | None = None) -> None:
        """A checkpoint is no more, or no checkpoint is."""
        self.kept = [one for one in self.kept if gen not in (None, one.gen)]
        self.left = [at for at in self.left if gen not in (None, at[0])]

    def _drop(self, gen: str, name: str) -> None:
        status, said = self._lab.command("keep", gen, "--drop", name)
        if status and "has no kept version" not in said:
            self._wrong(f"keep --drop: {said}", "false errors")

    def pinned_in(self, gen: str) -> set[str]:
        """Names of a checkpoint that hold it for sure."""
        now = self._lab.jumped_ms
        lasting = (one for one in self.kept if one.gen == gen)
        return {
            one.name for one in lasting if one.until_ms is None or one.until_ms > now + _UNSURE_MS
        }

    def owners(self, gen: str) -> set[str]:
        """Owners of the pins of what is kept in a checkpoint, as its query names them."""
        names = sorted(self.pinned_in(gen))
        fields = [KEEP_FIELD + name for name in names]
        found = self._lab.redis("HMGET", keys.query(gen), *fields) if fields else []
        for name, raw in zip(names, found, strict=True):
            if raw is None:
                self._wrong(f"{name} of {gen} is kept, and has no entry", "rules of pins broken")
        return {str(json.loads(raw)["owner"]) for raw in found if raw is not None}

    def _wrong(self, text: str, counter: str) -> None:
        self._lab.counters[counter] += 1
        self._play.world.problem(text)
