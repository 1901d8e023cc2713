"""One schedule: processes, drivers, tasks and commands in an order that a seed decides."""

from __future__ import annotations

import time

from redis_state.errors import Kind, StateError
from tests.faults.oracle.dice import Dice
from tests.faults.system.administrators import Administrators
from tests.faults.system.forks.play import Forks
from tests.faults.system.jvm import SaidError
from tests.faults.system.lab import Lab
from tests.faults.system.people import People
from tests.faults.system.processors import Processors
from tests.faults.system.python_stores import PythonStores
from tests.faults.system.query import Query, Step, Then
from tests.faults.system.world import PARTITIONS, World

_PAD_BYTES = 200_000
"""A value of so many bytes: what a partition has fits into a process's memory, that of two not."""

_LOOKS, _PAUSE_S = 100, 0.02

_RENAME = "rename:_redis_state"
_LISTING = "listing"
_POINTS = (_RENAME, _RENAME, "open:_redis_state", "delete:_redis_state", _LISTING)

_BESIDE_MAX = 60
"""Steps of a query that is rewound while somebody reads, until a partition is written anew."""

_BATCH_MAX = 80
"""Steps of a query in which it mostly gets a batch done."""

_UNLOADED_MAX = 3
"""Providers, also of ended runs, that are unloaded while the last run has its own."""


class Schedule(Query):
    """Plays one seed.

    Attributes:
        world: What really happened, and what was wrong.
    """

    def __init__(self, lab: Lab, seed: int) -> None:
        dice = Dice(seed)
        world, format_ = World(dice), 2 if dice.one_in(2) else 1
        folder = lab.fresh_folder() / "checkpoint"
        folder.mkdir()
        super().__init__(lab, dice, folder, world, format_)
        self.kills = int(self.dice.one_in(4))
        self.unloads_on_commit = self.dice.one_in(3)
        self.has_python = self.dice.one_in(3)
        self.copies = self.dice.one_in(2)
        self.held: dict[tuple[str, str], Then] = {}
        self.listing: set[tuple[str, str]] = set()
        self.executors = [lab.take_process() for _ in range(2)]
        self.processes = list(self.executors)
        self.people = People(self)
        self.python = PythonStores(self)
        self.administrators = Administrators(self)
        self.processors = None if seed % 3 else Processors(self, seed)
        self.forks = Forks(self) if seed % 4 == 1 else None
        lab.jvm.tell("pad", _PAD_BYTES if self.dice.one_in(12) else 0)
        lab.jvm.tell("files", self.dice.choice(("atomic", "local", "objects")))

    def play(self) -> list[str]:
        """Run it to its end; the rules that were broken."""
        self.start_job()
        for _ in range(self.dice.between(10, 60)):
            self.step()
            if self.world.problems:
                break
        if not self.world.problems:
            self.end_in_peace()
        self.clear_away()
        return self.world.problems

    def step(self) -> None:
        """Something happens somewhere."""
        dice, people = self.dice, self.people
        if self.processors is not None and dice.one_in(4):
            self.processors.act()
            return
        if self.forks is not None and dice.one_in(3):
            self.forks.act()
            return
        if self.listing and dice.one_in(3):
            self.administrators.purge_beside(dice.choice(sorted(self.listing)))
            return
        if self.held and dice.one_in(6):
            self.proceed(dice.choice(list(self.held)))
            return
        roll = dice.below(45)
        if roll < 24:
            self._work()
        elif roll == 24:
            self._second_start()
        elif roll == 25:
            self._driver_dies()
        elif roll == 26:
            self.work.die()
        elif roll == 27:
            self.work.maintain()
        elif roll < 30:
            people.state_reader()
        elif roll < 32:
            people.beat()
        elif roll == 32:
            self.work.unload()
        elif roll < 40:
            people.act(roll - 33)
        elif roll == 40:
            restores = self.copies and dice.one_in(2)
            self.administrators.restore() if restores else self.administrators.rewind()
        elif roll == 44:
            people.latest_reader()
        elif not self.has_python:
            self._work()
        elif roll < 43:
            self.python.act()
        else:
            self.administrators.purge_of_python() if dice.one_in(3) else self.python.act()

    def _work(self) -> None:
        """A driver or a task goes on."""
        ready = self.steps()
        if ready:
            self.dice.choice(ready)()
        else:
            self._restart()

    def is_free(self, process: str) -> bool:
        """Returns whether no thread of the process is held."""
        return all(name != process for name, _ in self.held)

    def go_on(self) -> None:
        """Advances the query between two requests of a reader, or rewinds it."""
        goal = self.dice.below(4)
        if self.dice.one_in(2):
            # So that the same version is written anew.
            self.administrators.rewind(by=1)
            for _ in range(_BESIDE_MAX):
                if len(self.world.unwritten) < PARTITIONS or self.world.problems:
                    break
                self._work_again()
        for _ in range(goal):
            if not self.world.problems:
                self._work_again()

    def work_some(self, steps: int) -> None:
        """Some steps of drivers and tasks."""
        for _ in range(steps):
            if not self.world.problems:
                self._work()

    def work_for_a_batch(self) -> None:
        """The query goes on until it has logged another batch, if its runs let it."""
        before = len(self.world.logged)
        for _ in range(_BATCH_MAX):
            if len(self.world.logged) > before or self.world.problems:
                break
            self._work()

    def work_up_to_log(self) -> bool:
        """The query goes on until all tasks of a batch are done, which is not logged yet."""
        for _ in range(_BATCH_MAX):
            if self.world.problems:
                break
            if any(one.alive and len(one.done) == PARTITIONS for one in self.jobs):
                return True
            self._work()
        return False

    def _work_again(self) -> None:
        if not any(job.alive for job in self.jobs):
            self.start_job()
        self._work()

    # ---- drivers ----------------------------------------------------------------------------

    def _second_start(self) -> None:
        if sum(job.alive for job in self.jobs) == 1 and len(self.jobs) < 4:
            local = self.dice.one_in(3)
            free = [name for name in self.executors if self.is_free(name)]
            self.start_job(self.dice.choice(free) if local and free else None)

    def _driver_dies(self) -> None:
        alive = [job for job in self.jobs if job.alive and self.is_free(job.process)]
        if not alive:
            return
        job = self.dice.choice(alive)
        self.lab.counters["drivers ended"] += 1
        killable = job.process not in self.executors and self.kills > 0
        if killable and sum(one.process == job.process for one in self.jobs) == 1:
            self.kills -= 1
            job.alive = False
            self.kill(job.process)
        else:
            self.end_job(job, politely=job.phase != "start")

    def _restart(self) -> None:
        if not any(job.alive for job in self.jobs) and len(self.jobs) < 5:
            self.start_job()

    def stop_all(self) -> bool:
        """Every run of the query is stopped, and every process of it; whether all went well."""
        while self.held:
            self.proceed(next(iter(self.held)))
        for job in self.jobs:
            if job.alive:
                self.end_job(job, politely=job.phase != "start")
        self.work.end_all()
        self.people.close_readers()
        return not self.world.problems

    def kill(self, process: str) -> None:
        """Nothing of it happens any more."""
        self.lab.counters["processes killed"] += 1
        self.lab.jvm.kill_process(process)
        self.processes.remove(process)
        if process in self.executors:
            self.executors.remove(process)
        self.held = {key: then for key, then in self.held.items() if key[0] != process}
        self.listing = {key for key in self.listing if key[0] != process}
        self.work.killed(process)
        if self.forks is not None:
            self.forks.killed(process)
        self.people.killed(process)

    def confirmed(self) -> None:
        """The listener of a run was told of a batch, after which it may keep a version."""
        if self.forks is not None:
            self.forks.keeps.notice(self)

    def told_loss(self, whom: str, error: StateError) -> None:
        """Counts an error that reports the loss of a whole server; any other kind is wrong."""
        if error.kind is Kind.STATE_LOST:
            self.lab.counters[f"losses told to {whom}"] += 1
        else:
            self.world.problem(f"a loss was told to {whom} as {error}")

    # ---- threads that are held --------------------------------------------------------------

    def ask(
        self,
        process: str,
        thread: str,
        words: tuple[object, ...],
        then: Then,
        *,
        may_hold: bool = False,
    ) -> None:
        """Runs a command on a thread; sometimes the thread is held amid a step of a file."""
        pause = self.dice.choice(_POINTS) if may_hold and self.dice.one_in(4) else "-"
        try:
            said = self.lab.jvm.run(process, *words, thread=thread, pause=pause)
        except SaidError as error:
            then(None, error)
            return
        if said is None:
            self.held[(process, thread)] = then
            if pause == _LISTING:
                self.listing.add((process, thread))
            else:
                self.lab.counters["held between two steps of a file"] += 1
        else:
            then(said, None)

    def proceed(self, key: tuple[str, str]) -> None:
        """A thread that was held goes on."""
        then = self.held.pop(key)
        self.listing.discard(key)
        try:
            then(self.lab.jvm.proceed(*key), None)
        except SaidError as error:
            then(None, error)

    # ---- the end ----------------------------------------------------------------------------

    def end_in_peace(self) -> None:
        """Everybody ends; then a run that is alone has to work, and all state has to be there."""
        while self.held:
            self.proceed(next(iter(self.held)))
        for job in self.jobs:
            if job.alive:
                self.end_job(job, politely=job.phase != "start")
        self.people.before_the_end()
        self._alone()
        if self.world.problems:
            return
        acts: list[Step] = [self.people.latest_reader] if self.dice.one_in(2) else []
        if self.copies and self.dice.one_in(2):
            acts.append(self.administrators.restore)
        for act in acts:
            act()
        if acts and self.stop_all():
            self._alone()

    def _alone(self) -> None:
        """A run that has everything to itself works, and then all state is there."""
        if self.processors is not None:
            self.processors.in_peace()
        if self.forks is not None:
            self.forks.in_peace()
        if self.world.problems:
            return
        job = self.start_job()
        goal = self.dice.between(1, 2)
        for _ in range(200):
            if job.batches_done >= goal or self.world.problems:
                break
            self.advance_job(job)
            while self.held:
                self.proceed(next(iter(self.held)))
        else:
            self.world.problem(f"{job.name}, alone, does not get on: {job}")
        if unloaded := self.dice.below(_UNLOADED_MAX + 1):
            for _ in range(unloaded):
                self.work.unload()
            # What is not renewed expires.
            self.people.let_pass(0)
        if not self.world.problems:
            self.people.look_at_everything()
            self.end_job(job, politely=True)

    def _connections(self) -> dict[str, int]:
        """Returns the connections, once the server has noticed the closed ones."""
        for _ in range(_LOOKS):
            found = self.lab.jvm.connections()
            if found["default"] == 1 and not any(found.get(name) for name in self.processes):
                break
            time.sleep(_PAUSE_S)
        return found

    def _close_python(self) -> None:
        self.python.close()
        if self.processors is not None:
            self.processors.close()
        if self.forks is not None:
            self.forks.close()

    def clear_away(self) -> None:
        """Every process closes what it has; nothing may be left."""
        if self.world.problems:
            for process in self.processes:
                self.lab.jvm.kill_process(process)
            self._close_python()
            return
        self.work.end_all()
        self.people.close_readers()
        self._close_python()
        if self.forks is not None:
            self.forks.end_pins()
        self.administrators.purge_all()
        left = self._connections()
        if left["default"] > 1:
            self.lab.counters["connections left"] += 1
            self.world.problem(f"Python has {left['default']} connections left")
        for process in self.processes:
            if self.lab.jvm.run(process, "memory") != "0":
                self.lab.counters["memory left"] += 1
                self.world.problem(f"{process} counts memory for what is closed")
            if left.get(process):
                self.lab.counters["connections left"] += 1
                self.world.problem(f"{process} has {left[process]} connections left")
                self.lab.jvm.kill_process(process)
            else:
                self.lab.give_back(process)
