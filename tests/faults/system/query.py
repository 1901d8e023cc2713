"""A query of Spark: its checkpoint, its drivers, and the tasks that they start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tests.faults.oracle.dice import Dice
from tests.faults.system.executors import Executors
from tests.faults.system.jvm import SaidError
from tests.faults.system.lab import Lab
from tests.faults.system.world import PARTITIONS, Job, World

Step = Callable[[], None]
Then = Callable[[str | None, SaidError | None], None]


class Query(ABC):
    """One checkpoint, and everybody who works in it.

    Attributes:
        world: What really happened, and what was wrong.
        executors: Processes for its tasks.
        processes: All processes.
        kills: How many processes may still be killed.
        label: Begins the names of its runs.
        more_options: Of its drivers.
        tells_progress: Its listener is told of each batch.
    """

    executors: list[str]
    processes: list[str]
    kills = 0
    unloads_on_commit = False
    label = "j"

    def __init__(self, lab: Lab, dice: Dice, folder: Path, world: World, format_: int) -> None:
        self.lab, self.dice, self.world = lab, dice, world
        self.folder, self.format = folder, format_
        self.adopt = False
        self.copies = False
        self.more_options: list[str] = []
        self.tells_progress = False
        self.idle_for_long = False
        # Redis forgets a run after a day in which nothing was written ("What is not promised").
        self.is_forgotten = False
        self.is_purged = False
        self.may_be_lost = False
        self.jobs: list[Job] = []
        self.work = Executors(self)

    @property
    def root(self) -> str:
        """The state's folder."""
        return f"{self.folder}/state"

    @abstractmethod
    def is_free(self, process: str) -> bool:
        """Returns whether no thread of the process is held."""

    @abstractmethod
    def ask(
        self,
        process: str,
        thread: str,
        words: tuple[object, ...],
        then: Then,
        *,
        may_hold: bool = False,
    ) -> None:
        """Runs a command on a thread of a process."""

    @abstractmethod
    def kill(self, process: str) -> None:
        """Nothing of it happens any more."""

    @abstractmethod
    def confirmed(self) -> None:
        """The listener of a run was told of a batch."""

    def steps(self) -> list[Step]:
        """Steps of drivers and tasks that may come next."""
        ready: list[Step] = [
            lambda task=task: self.work.advance(task)  # type: ignore[misc]  # bound at once
            for task in self.work.tasks
            if self.is_free(task.process)
        ]
        for job in self.jobs:
            if job.alive and self.is_free(job.process):
                ready += [lambda job=job: self.advance_job(job)] * 2  # type: ignore[misc]
        return ready

    # ---- drivers ----------------------------------------------------------------------------

    def start_job(self, process: str | None = None) -> Job:
        """A driver starts the query."""
        if process is None:
            process = self.lab.take_process()
            self.processes.append(process)
        job = Job(f"{self.label}{len(self.jobs) + 1}", process, self.format)
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
        options += self.more_options

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
        if self.copies or self.tells_progress:
            self.lab.jvm.run(job.process, "progress", job.name, job.batch)
            self.confirmed()
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
