"""One schedule: processes, drivers, tasks and commands in an order that a seed decides."""

from __future__ import annotations

import time
from collections.abc import Callable

from redis_state.errors import Kind, StateError
from tests.faults.oracle.dice import Dice
from tests.faults.system.administrators import Administrators
from tests.faults.system.executors import Executors
from tests.faults.system.jvm import SaidError
from tests.faults.system.lab import Lab
from tests.faults.system.people import People
from tests.faults.system.processors import Processors
from tests.faults.system.python_stores import PythonStores
from tests.faults.system.world import PARTITIONS, Job, World

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

Step = Callable[[], None]


class Schedule:
    """Plays one seed.

    Attributes:
        world: What really happened, and what was wrong.
    """

    def __init__(self, lab: Lab, seed: int) -> None:
        self.dice = Dice(seed)
        self.lab = lab
        self.world = World(self.dice)
        self.format = 2 if self.dice.one_in(2) else 1
        self.folder = lab.fresh_folder() / "checkpoint"
        self.folder.mkdir()
        self.adopt = False
        self.idle_for_long = False
        # Redis forgets a run after a day in which nothing was written ("What is not promised").
        self.is_forgotten = False
        self.kills = int(self.dice.one_in(4))
        self.unloads_on_commit = self.dice.one_in(3)
        self.has_python = self.dice.one_in(3)
        self.copies = self.dice.one_in(2)
        self.is_purged = False
        self.jobs: list[Job] = []
        self.held: dict[tuple[str, str], Callable[[str | None, SaidError | None], None]] = {}
        self.listing: set[tuple[str, str]] = set()
        self.executors = [lab.take_process() for _ in range(2)]
        self.processes = list(self.executors)
        self.work = Executors(self)
        self.people = People(self)
        self.python = PythonStores(self)
        self.administrators = Administrators(self)
        self.processors = None if seed % 3 else Processors(self, seed)
        lab.jvm.tell("pad", _PAD_BYTES if self.dice.one_in(12) else 0)
        lab.jvm.tell("files", self.dice.choice(("atomic", "local", "objects")))

    @property
    def root(self) -> str:
        """The state's folder."""
        return f"{self.folder}/state"

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
        ready: list[Step] = [
            lambda task=task: self.work.advance(task)  # type: ignore[misc]  # bound at once
            for task in self.work.tasks
            if self.is_free(task.process)
        ]
        for job in self.jobs:
            if job.alive and self.is_free(job.process):
                ready += [lambda job=job: self.advance_job(job)] * 2  # type: ignore[misc]
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

    def work_for_a_batch(self) -> None:
        """The query goes on until it has logged another batch, if its runs let it."""
        before = len(self.world.logged)
        for _ in range(_BATCH_MAX):
            if len(self.world.logged) > before or self.world.problems:
                break
            self._work()

    def _work_again(self) -> None:
        if not any(job.alive for job in self.jobs):
            self.start_job()
        self._work()

    # ---- drivers ----------------------------------------------------------------------------

    def start_job(self, process: str | None = None) -> Job:
        """A driver starts the query."""
        if process is None:
            process = self.lab.take_process()
            self.processes.append(process)
        job = Job(f"j{len(self.jobs) + 1}", process, self.format)
        rivals = [other for other in self.jobs if other.alive]
        for other in rivals:
            other.disputed = job.disputed = True
        self.lab.counters["starts beside a living run"] += bool(rivals)
        self.lab.counters["starts"] += 1
        self.jobs.append(job)
        return job

    def advance_job(self, job: Job) -> None:
        """The next thing that the driver does."""
        {"start": self._begin, "read": self._read_logs, "plan": self._plan, "run": self._run}[
            job.phase
        ](job)

    def _begin(self, job: Job) -> None:
        options = ["onPathChange=adopt"] if self.adopt else []
        options += ["copyEveryBatches=1"] if self.copies else []

        def begun(said: str | None, error: SaidError | None) -> None:
            if error is not None or said is None:
                self.world.problem(f"{job.name} did not start: {error}")
                return
            job.run_id, job.query_id = said.split()
            job.phase = "read"

        words = ("start", job.name, str(self.folder), job.format, *options)
        self.ask(job.process, "main", words, begun, may_hold=True)

    def _read_logs(self, job: Job) -> None:
        said = self.lab.jvm.run(job.process, "logs", job.name)
        offset, _, commit, uids = (said or "").split()
        job.tokens = list(self.world.tokens)
        newest = -1 if offset == "-" else int(offset)
        if newest + 1 != len(job.tokens):
            self.world.problem(f"the offset log ends at {newest}, not {len(job.tokens) - 1}")
        job.uids = uids.split(",") if uids != "-" else ["-"] * PARTITIONS
        if commit == offset:
            job.batch, job.phase = newest + 1, "plan"
        else:
            job.batch, job.phase = newest, "run"

    def _plan(self, job: Job) -> None:
        token = self.world.next_token()
        try:
            self.lab.jvm.run(job.process, "offset", job.name, job.batch, token)
        except SaidError as error:
            self._lost(job, error)
            return
        self.world.tokens.append(token)
        job.tokens.append(token)
        if len(self.world.tokens) != job.batch + 1:
            self.world.problem(f"{job.name} planned batch {job.batch} on another timeline")
        job.phase, job.done, job.failures = "run", {}, 0

    def _run(self, job: Job) -> None:
        running = {t.partition for t in self.work.tasks if t.job is job and t.batch == job.batch}
        missing = [n for n in range(PARTITIONS) if n not in job.done]
        idle = [n for n in missing if n not in running]
        if idle:
            self.work.start(job, self.dice.choice(idle))
        elif missing:
            wanted = [t for t in self.work.tasks if t.is_wanted and t.job is job]
            free = [t for t in wanted if self.is_free(t.process)]
            if free and self.dice.one_in(12):
                self.lab.counters["speculative tasks"] += 1
                self.work.start(job, self.dice.choice(missing))
            elif free:
                self.work.advance(self.dice.choice(free))
        else:
            self._log_commit(job)

    def _log_commit(self, job: Job) -> None:
        uids = [job.done[number] for number in range(PARTITIONS)]
        told = "-" if job.format == 1 else ",".join(uids)
        try:
            self.lab.jvm.run(job.process, "done", job.name, job.batch, told)
        except SaidError as error:
            self._lost(job, error)
            return
        if job.tokens != self.world.tokens or len(self.world.logged) != job.batch:
            self.world.problem(f"{job.name} logged batch {job.batch} on another timeline")
        self.world.logged.append(uids)
        self.lab.counters["batches"] += 1
        if self.copies:
            self.lab.jvm.run(job.process, "progress", job.name, job.batch)
        job.uids = uids
        job.batch += 1
        job.batches_done += 1
        job.phase, job.done = "plan", {}

    def _lost(self, job: Job, error: SaidError) -> None:
        """Another run has the query now."""
        if not job.disputed or "CONCURRENT" not in error.told:
            self.world.problem(f"{job.name} ended with {error}")
        self.lab.counters["runs ended by Spark's logs"] += 1
        self.end_job(job, politely=True)

    def end_job(self, job: Job, *, politely: bool) -> None:
        """The driver is no more; its tasks may go on."""
        job.alive = False
        if politely:
            self.lab.jvm.run(job.process, "stop", job.name)

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
        self.people.killed(process)

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
        then: Callable[[str | None, SaidError | None], None],
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
        """Of those that were closed the server may only be about to learn."""
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
