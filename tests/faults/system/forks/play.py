"""Forks, kept versions and replays: what happens to them, and what has to be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.forks.names import store_gen
from redis_state.ids import PartitionId, StoreId
from tests.faults.system.forks.detaching import Detaching
from tests.faults.system.forks.forked import Fork, ForkedQuery, ForkedStore, gen_in, token_in
from tests.faults.system.forks.kept import Keeps, Subject, gen_of
from tests.faults.system.forks.making import COMPLETE, Making
from tests.faults.system.forks.purges import Purges
from tests.faults.system.forks.replay import replay
from tests.faults.system.forks.rules import Checkpoint, Rules
from tests.faults.system.python_stores import PythonStores
from tests.faults.system.query import Query
from tests.faults.system.world import PARTITIONS

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_FORKS_MAX = 4
_STEPS_MAX = 30
_AMID_MAX = 12
_HOUR_MS = 3_600_000
_REFUSED = ("the logs lack that batch", "Nothing was moved")

Step = Callable[[], None]


class Forks:
    """Everything that hangs on the pins of a schedule.

    Attributes:
        queries: Forks of the query and of its forks that can be used.
        stores: The same of Python's store.
        gens: Ids of all forks that there ever were.
        purged: Ids of checkpoints that are purged now.
        replays: Number of replays that there were.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.play = schedule
        self.lab, self.dice = schedule.lab, schedule.dice
        self.queries: list[ForkedQuery] = []
        self.stores: list[ForkedStore] = []
        self.gens: set[str] = set()
        self.purged: set[str] = set()
        self.replays = 0
        self._count = 0
        self.keeps = Keeps(schedule)
        self.rules = Rules(schedule.lab.server)
        self._making = Making(schedule, "forks")
        self._purges = Purges(self)
        self._detaching = Detaching(self)
        schedule.tells_progress = True
        if self.dice.one_in(2):
            schedule.more_options = ["keepEvery=3650d"]

    def act(self) -> None:
        """The next thing that happens to a fork or a kept version; then all rules are looked at."""
        makes: tuple[Step, ...] = (self._fork_query, self._fork_query, self._fork_store)
        works: tuple[Step, ...] = (self._go_on, self._go_on, self._second_start, self._rewind)
        keeps: tuple[Step, ...] = (
            self._keep,
            self._keep,
            self._renew,
            self.keeps.read_one,
            self.keeps.drop_one,
        )
        few = len(self.queries) + len(self.stores) < _FORKS_MAX
        if few and self.dice.one_in(3):
            step = self.dice.choice(makes)
        else:
            more = (*self._purges.steps, *self._detaching.steps, self._replay, self._time)
            step = self.dice.choice((*works, *keeps, *more))
        step()
        self.check()

    def check(self) -> None:
        """The rules of pins, over all checkpoints."""
        if self.play.world.problems:
            return
        found = self.checkpoints()
        kept = {one.gen: self.keeps.owners(one.gen) for one in found}
        for problem in self.rules.broken(found, kept):
            self.wrong(problem, "rules of pins broken")
        self.lab.counters["checks of all pins"] += 1
        self.lab.counters["pins of kept versions compared"] += len(self.rules.keeps)

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that have to be there, parents before their forks."""
        main, python = gen_in(self.play.folder), self.play.python.gen()
        found = []
        if main is not None:
            found.append(self._checkpoint(main, "the query", PARTITIONS))
        if python is not None:
            found.append(self._checkpoint(python, "the store", 1))
        found += [
            self._checkpoint(one.gen, one.folder.name, PARTITIONS, one.of) for one in self.queries
        ]
        found += [
            self._checkpoint(gen, one.name, 1, one.of)
            for one in self.stores
            if (gen := one.gen()) is not None
        ]
        return found

    def _checkpoint(self, gen: str, name: str, partitions: int, of: str = "") -> Checkpoint:
        life = "purged" if gen in self.purged else "live"
        return Checkpoint(gen, name, partitions, of, life)

    def ids(self, subject: Subject) -> list[PartitionId]:
        """Partitions of a query or store."""
        gen = gen_of(subject)
        count = PARTITIONS if isinstance(subject, Query) else 1
        return [PartitionId(StoreId(gen, 0), number) for number in range(count)] if gen else []

    def subjects(self) -> list[Subject]:
        """Queries, stores and forks that have versions."""
        found: list[Subject] = [self.play, *self.queries] if self.play.world.logged else []
        found += [self.play.python] if self.play.python.exists else []
        return [*found, *self.stores]

    def every(self) -> list[Fork]:
        """All forks that can be used, each behind what it was forked from."""
        found: list[Fork] = [*self.queries]
        found.extend(self.stores)
        return found

    def children(self, gen: str) -> list[Fork]:
        """Forks of a checkpoint that still need it."""
        return [one for one in self.every() if one.of == gen]

    # ---- making -----------------------------------------------------------------------------

    def ready(self) -> bool:
        """The query has some batches to choose from."""
        for _ in range(2):
            if len(self.play.world.logged) < 2:
                self.play.work_for_a_batch()
        return len(self.play.world.logged) > 1 and not self.play.world.problems

    def beside(self, parent: Subject) -> Callable[[], None]:
        """Something that a parent does meanwhile, or that is done to it."""

        def act() -> None:
            if isinstance(parent, PythonStores):
                steps: tuple[Step, ...] = (parent.write, self.play.administrators.maintain)
            elif isinstance(parent, ForkedQuery):
                steps = (lambda: parent.alone(2), self.play.administrators.maintain)
            else:
                goes_back = self._goes_back
                steps = (self.play.go_on, self._batches, goes_back, goes_back)
            self.dice.choice(steps)()

        return act

    def _batches(self) -> None:
        """The query runs some batches, and what it does not retain goes."""
        for _ in range(self.dice.between(1, 4)):
            self.play.work_for_a_batch()
        self.play.administrators.maintain()

    def _goes_back(self) -> None:
        """The query goes back behind its newest batch, and plans that anew."""
        before = len(self.play.world.logged)
        self.play.administrators.rewind(by=1)
        if not any(job.alive for job in self.play.jobs):
            self.play.start_job()
        for _ in range(2):
            if len(self.play.world.logged) < before and not self.play.world.problems:
                self.play.work_for_a_batch()

    def _fork_query(self) -> None:
        """A fork of the query, or of a fork, behind one of its batches."""
        if not self.ready():
            return
        parent: Query = self.dice.choice([self.play, *self.queries])
        first = parent.begun - 1 if isinstance(parent, ForkedQuery) else 0
        oldest = max(first, parent.world.oldest - 1)
        batch = self.dice.between(oldest, len(parent.world.logged) - 1)
        if self.dice.one_in(3):
            batch = len(parent.world.logged) - 1
        self._count += 1
        folder = self.play.folder.parent / f"fork{self._count}"
        words = ["fork", str(parent.folder), "--to", str(folder), "--at-batch", str(batch)]
        self.make_query(parent, folder.name, words, batch)

    def make_query(
        self, parent: Query, name: str, words: list[str], batch: int
    ) -> ForkedQuery | None:
        """Runs the command; the fork, if it was made."""
        went_back, jumped = len(parent.world.timelines), self.lab.jumped_ms
        folder = self.play.folder.parent / name
        told = self._making.run(words, self.beside(parent), lambda: gen_in(folder) or "")
        if (gen := gen_in(folder)) is not None:
            self.gens.add(gen)
        if told is None or self.play.world.problems:
            return None
        may_refuse = len(parent.world.timelines) > went_back or parent.world.oldest > batch + 1
        if told[0] and (may_refuse or self.lab.jumped_ms > jumped):
            self.lab.counters["forks refused behind what went on"] += 1
            return None
        is_made = f"forked the state after batch {batch}" in told[1] or COMPLETE in told[1]
        if told[0] or gen is None or not is_made:
            self.wrong(f"{' '.join(words)}: {told[1]}", "false errors")
            return None
        made = ForkedQuery(self.play, parent, folder, gen, gen_of(parent) or "")
        made.words = words
        self._begin(made, parent, batch)
        self.queries.append(made)
        of_fork = "forks of forks" if isinstance(parent, ForkedQuery) else "forks of a query"
        self.lab.counters[of_fork] += 1
        self.lab.counters["forks of an older batch"] += batch + 1 < len(parent.world.logged)
        made.read()
        return made

    def _begin(self, made: ForkedQuery, parent: Query, batch: int) -> None:
        """The fork's log says on which timeline of its parent it goes on."""
        token = token_in(made.folder, batch)
        lines = [parent.world.tokens, *parent.world.timelines[::-1]]
        fits = [line for line in lines if len(line) > batch and line[batch] == token]
        if not fits:
            self.wrong(f"{made.folder.name} has batch {batch} of no timeline", "wrong")
            return
        logged = parent.world.logged[: batch + 1]
        logged += [["-"] * PARTITIONS] * (batch + 1 - len(logged))
        made.begins(fits[0][: batch + 1], logged)

    def _fork_store(self) -> None:
        """A fork of Python's store, or of a fork."""
        python = self.play.python
        for _ in range(2):
            if python.newest[1] < 2:
                python.write()
        if self.play.world.problems:
            return
        parent = self.dice.choice([python, *self.stores])
        self._count += 1
        name, of = f"store{self._count}", parent.gen() or ""
        words = ["fork", parent.name, "--to", name]
        before, jumped = parent.newest[1], self.lab.jumped_ms
        gen = store_gen(of, name)
        told = self._making.run(words, self.beside(parent), lambda: gen)
        self.gens.add(gen)
        if told is None or self.play.world.problems:
            return
        if told[0] and self.lab.jumped_ms > jumped:
            self.lab.counters["forks refused behind what went on"] += 1
            return
        begun = self.lab.redis("HGET", keys.meta(PartitionId(StoreId(gen, 0), 0)), "g")
        version = int(begun.split(b" ")[1]) if begun else 0
        if told[0] or not before <= version <= parent.newest[1]:
            self.wrong(f"{' '.join(words)}: version {version}, {told[1]}", "false errors")
            return
        made = ForkedStore(self.play, parent, name, version)
        made.of, made.words = of, words
        self.stores.append(made)
        self.lab.counters["forks of a store of Python"] += 1
        made.look()

    # ---- living -----------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self.stores and self.dice.one_in(2):
            self.dice.choice(self.stores).act()
        elif self.queries:
            one = self.dice.choice(self.queries)
            one.go_on(self.dice.between(1, _STEPS_MAX))
            if not self.play.world.problems:
                one.read()
            self.lab.counters["forks go on"] += 1

    def _second_start(self) -> None:
        if self.queries:
            one = self.dice.choice(self.queries)
            one.second_start()
            one.go_on(self.dice.between(1, _STEPS_MAX))

    def _rewind(self) -> None:
        """Stops a fork and sets it back, also below the version with which it began."""
        if not self.queries:
            return
        one = self.dice.choice(self.queries)
        one.stop()
        newest = len(one.world.logged) - 1
        to_batch = self.dice.between(max(0, min(one.begun, one.world.oldest) - 2), newest)
        words = ("rewind", "--checkpoint", str(one.folder), "--to-batch", str(to_batch))
        status, said = self.lab.command(*words, "--yes", "--force")
        below = to_batch + 1 < one.world.oldest
        self.lab.counters["rewinds of a fork"] += not below
        self.lab.counters["rewinds below the beginning of a fork"] += to_batch + 1 < one.begun
        if not status:
            one.world.go_back(to_batch)
            one.begun = min(one.begun, to_batch + 1)
            one.alone()
        elif not below or not any(text in said for text in _REFUSED):
            self.wrong(f"{' '.join(words)}: {said}", "false errors")

    def _keep(self) -> None:
        subjects = self.subjects()
        if subjects:
            one = subjects[0] if self.dice.one_in(2) else self.dice.choice(subjects)
            if one is self.play and self.dice.one_in(2):
                self.lab.counters["keeps behind all tasks of a batch"] += self.play.work_up_to_log()
            elif one is self.play:
                # So that it is amid a batch.
                self.play.work_some(self.dice.below(_AMID_MAX))
            self.keeps.keep(one, self.beside(one))

    def _renew(self) -> None:
        subjects = self.subjects()
        if subjects:
            self.keeps.renew(self.dice.choice(subjects))

    def _replay(self) -> None:
        if self.ready():
            replay(self)

    def _time(self) -> None:
        """Maintenance, and hours that go by."""
        if not self.play.held:
            self.play.people.idle(self.dice.choice((_HOUR_MS, 13 * _HOUR_MS, 26 * _HOUR_MS)))
            self.play.administrators.maintain()

    # ---- others -----------------------------------------------------------------------------

    def killed(self, process: str) -> None:
        """A process is no more."""
        for one in self.queries:
            one.work.killed(process)

    def recall_unused(self) -> None:
        """Forks that nobody had used for a month were purged, and come back."""
        for gen in [one.gen for one in self.checkpoints()]:
            if self.lab.redis("HEXISTS", keys.query(gen), "purged"):
                self.command("purge", "--gen", gen, "--recall")
                self.lab.counters["forks called back"] += 1

    def server_lost_all(self) -> None:
        """Nothing is there any more: who goes on with a fork is told."""
        for one in self.queries:
            one.is_told(must_be=True)
        for store in self.stores:
            store.server_lost_all()
        self._give_up()

    def partition_lost(self) -> None:
        """A partition of the query is gone, with its pins: its forks are told, or are right."""
        for one in self.queries:
            one.is_told(must_be=False)
        self._give_up(of_stores=False)

    def _give_up(self, *, of_stores: bool = True) -> None:
        gens = [one.gen for one in reversed(self.queries)]
        gens += [gen for one in self.stores if (gen := one.gen())] if of_stores else []
        main = gen_in(self.play.folder)
        for gen in [*gens, *([main] if main else [])]:
            if not of_stores:
                # Of the other partitions; otherwise no pin is left.
                self.keeps.drop_all(gen)
            self.keeps.forget(gen)
            if gen != main and self.lab.redis("EXISTS", keys.query(gen)):
                self.command("purge", "--gen", gen, "--yes", "--now", "--force")
        self.queries.clear()
        if of_stores:
            self.stores.clear()
            self.keeps.forget()
        self.rules.keeps.clear()

    # ---- the end ----------------------------------------------------------------------------

    def in_peace(self) -> None:
        """Every fork that is alone has to work, and every kept version reads as it did."""
        for one in self.queries:
            if not self.play.world.problems:
                one.alone(self.dice.between(1, 2))
                one.stop()
                one.read()
        for store in self.stores:
            store.write()
        self.keeps.read_all()
        self.check()

    def end_pins(self) -> None:
        """Everything is dropped and purged: no field of a pin may be left in any manifest."""
        self._purges.all()

    def close(self) -> None:
        """Processes of Python end."""
        for store in self.stores:
            store.close()

    def command(self, *words: str) -> str:
        """Runs a command that has to work."""
        status, said = self.lab.command(*words)
        if status:
            self.wrong(f"{' '.join(words)}: {said}", "false errors")
        return said

    def wrong(self, text: str, counter: str) -> None:
        """A rule was broken."""
        self.lab.counters[counter] += 1
        self.play.world.problem(text)
