"""Tasks, and the providers that executors load for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.faults.system.jvm import SaidError
from tests.faults.system.world import Job, Task, changed, parsed, rows_of

if TYPE_CHECKING:
    from tests.faults.system.query import Query

_LOSES = ("FENCED",)
"""What a run is told that another one has overtaken."""

_TRIES = 4


class Executors:
    """Tasks and providers of a query.

    Attributes:
        tasks: Attempts under way.
        providers: Process and slot of those that are loaded, and whose run they are of.
        writing: Those of them that have committed, so that they report.
        hidden: Partitions in which a late task committed last, which is shown until the next one.
    """

    def __init__(self, query: Query) -> None:
        self._play = query
        self.tasks: list[Task] = []
        self.providers: dict[tuple[str, str], Job] = {}
        self.writing: set[tuple[str, str]] = set()
        self.hidden: set[int] = set()

    def start(self, job: Job, partition: int) -> None:
        """An attempt, somewhere."""
        name = f"t{len(self.tasks)}-{self._play.dice.below(1 << 20)}"
        process = self._play.dice.choice(self._play.executors)
        uid = job.uids[partition] if job.format == 2 and job.batch > 0 else "-"
        self.tasks.append(
            Task(name, job, partition, process, job.batch, job.tokens[: job.batch + 1], uid)
        )
        if self._play.dice.one_in(3):
            self.advance(self.tasks[-1]) if self._play.is_free(process) else None

    def advance(self, task: Task) -> None:
        """The next thing that the attempt does."""
        {"init": self._init, "open": self._open, "put": self._put, "commit": self._commit}[
            task.phase
        ](task)

    def _init(self, task: Task) -> None:
        key = (task.process, task.slot)
        if key not in self.providers:
            job = task.job
            self.init_provider(task.process, task.slot, job.run_id, job, task.partition)
            self.providers[key] = job
        task.phase = "open"
        self._open(task)

    def init_provider(self, process: str, slot: str, run_id: str, job: Job, partition: int) -> None:
        """Initializes a provider as `StateStore` does."""
        more = ["onPathChange=adopt"] if self._play.adopt else []
        words = ("init", slot, self._play.root, run_id, job.query_id, partition, job.format, *more)
        self._play.lab.jvm.run(process, *words)

    def _open(self, task: Task) -> None:
        if (task.process, task.slot) not in self.providers:
            task.phase = "init"  # Spark has unloaded it meanwhile.
            self._init(task)
            return
        self._do(task, ("open", task.slot, task.name, task.batch, task.uid), self._opened)

    def _opened(self, task: Task, said: str) -> None:
        found = parsed(said)
        known = [rows_of(task.tokens[: task.batch], task.partition)]
        if not task.is_wanted:
            known.append(self._play.world.rows(task.batch, task.partition))
        self._play.lab.counters["loads compared"] += 1
        if found not in known:
            self._play.lab.counters["wrong"] += 1
            self._play.world.problem(
                f"{task.slot} loaded {found} as version {task.batch}, not {known}"
            )
        task.phase, task.changes = "put", self._changes(task)

    def _changes(self, task: Task) -> list[tuple[object, ...]]:
        before = rows_of(task.tokens[: task.batch], task.partition)
        after = changed(before, task.tokens[task.batch], task.partition)
        place = (task.slot, task.name)
        puts = [("put", *place, k, v) for k, v in after.items() if before.get(k) != v]
        return [*puts, *(("remove", *place, k) for k in before if k not in after)]

    def _put(self, task: Task) -> None:
        """Applies one change of the batch; the first one acquires the partition."""
        if task.changes:
            self._do(task, task.changes.pop(0), lambda _task, _said: None)
            return
        task.phase = "commit"
        if self._play.dice.one_in(150):
            self._fill_and_abort(task)

    def _commit(self, task: Task) -> None:
        if self._play.dice.one_in(25):
            self._abort(task)
            return
        self._play.lab.counters["late tasks of ended runs"] += not task.job.alive
        self._do(task, ("commit", task.slot, task.name), self._committed)

    def _committed(self, task: Task, said: str) -> None:
        version, uid, reloaded = said.split()
        self._play.lab.counters["commits"] += 1
        self._play.world.unwritten.discard(task.partition)
        (self.hidden.discard if task.is_wanted else self.hidden.add)(task.partition)
        self._play.lab.counters["rows read again for lack of memory"] += int(reloaded) > 0
        if int(version) != task.batch + 1:
            self._play.world.problem(f"{task.slot} committed {version} in batch {task.batch}")
        self.tasks.remove(task)
        if (task.process, task.slot) in self.providers:
            self.writing.add((task.process, task.slot))
        self._play.idle_for_long = False
        if task.is_wanted:
            task.job.done.setdefault(task.partition, uid)
        if self._play.unloads_on_commit:
            self._close(task.process, task.slot, thread=task.name)
        self._play.lab.jvm.tell("end", task.process, task.name)

    def _abort(self, task: Task) -> None:
        """Spark ends a task, often by an interrupt."""
        interrupted = self._play.dice.one_in(2)
        self._play.lab.counters["aborts on an interrupted thread"] += interrupted
        self.tasks.remove(task)
        self._end(task, interrupted=interrupted)

    def _end(self, task: Task, *, interrupted: bool = False) -> None:
        """Aborts the store of a task that ends without a commit, as Spark does."""
        words = ("abort", task.name, str(interrupted).lower())
        try:
            if task.phase in ("put", "commit"):
                self._play.lab.jvm.run(task.process, *words, thread=task.name)
        except SaidError as error:
            self._play.lab.counters["failed aborts"] += 1
            self._play.world.problem(f"abort of {task.slot}: {error}")
        self._play.lab.jvm.tell("end", task.process, task.name)

    def end_all(self) -> None:
        """No attempt goes on, and no provider stays loaded."""
        for task in self.tasks:
            self._end(task)
        self.tasks = []
        for process, slot in self.providers:
            self._play.lab.jvm.run(process, "close", slot)
        self.providers, self.writing = {}, set()

    def _fill_and_abort(self, task: Task) -> None:
        """More than a write set keeps to itself: some of it is sent before the task is ended."""
        before = self._staged()

        def filled(task: Task, _said: str) -> None:
            self._play.lab.counters["aborts of staged rows"] += len(self._staged()) > len(before)
            self._abort(task)
            if left := self._staged() - before:
                self._play.lab.counters["staged keys left"] += 1
                self._play.world.problem(f"an abort left {left}")

        self._do(task, ("fill", task.slot, task.name), filled)

    def _staged(self) -> set[bytes]:
        return {name for name in self._play.lab.key_names() if b"}:d:" in name}

    def _do(self, task: Task, words: tuple[object, ...], done: Callable[[Task, str], None]) -> None:
        def told(said: str | None, error: SaidError | None) -> None:
            if error is not None:
                self._failed(task, str(words[0]), error)
            elif task in self.tasks:
                done(task, said or "")

        may_hold = words[0] in ("open", "put") and (task.batch < 2 or self._play.adopt)
        self._play.ask(task.process, task.name, words, told, may_hold=may_hold)

    def _failed(self, task: Task, what: str, error: SaidError) -> None:
        """Spark runs it again, some times."""
        if task in self.tasks:
            self.tasks.remove(task)
            self._end(task)
        self._play.lab.counters[f"{what}: {error.kind}"] += 1
        job, jobs = task.job, self._play.jobs
        rivals = sum(t.slot == task.slot and t.batch == task.batch for t in self.tasks)
        # A late task of an earlier run made the marker, a day or more after that run's claim.
        other_gen = task.batch == 0 and "its marker file" in error.told and job is not jobs[0]
        forgotten = task.batch == 0 and self._play.is_forgotten
        fair = error.kind in _LOSES and (
            job.disputed or not task.is_wanted or rivals > 0 or other_gen or forgotten
        )
        # It names the purge, which is recalled at once.
        fair |= self._play.is_purged and "purge" in error.told
        if self._play.may_be_lost and error.kind == "STATE_LOST":
            fair = True
            self._play.lab.counters["losses told to forks"] += 1
        late = not task.is_wanted and error.kind not in ("FORMAT", "HANG", "MEMORY")
        if not fair and not late:
            self._play.lab.counters["false errors"] += 1
            self._play.world.problem(f"{what} of {task.slot} in batch {task.batch}: {error}")
        if task.is_wanted:
            job.failures += 1
            if job.failures >= _TRIES:
                self._play.lab.counters["runs ended by the fence"] += 1
                self._play.end_job(job, politely=True)

    def die(self) -> None:
        free = [
            name
            for name in self._play.executors
            if self._play.kills > 0 and all(job.process != name for job in self._play.jobs)
        ]
        if free:
            self._play.kills -= 1
            self._play.kill(self._play.dice.choice(free))
            self._play.executors.append(self._play.lab.take_process())
            self._play.processes.append(self._play.executors[-1])

    def maintain(self) -> None:
        """Spark's maintenance of a provider."""
        loaded = [key for key in self.providers if self._play.is_free(key[0])]
        if loaded:
            process, slot = self._play.dice.choice(loaded)
            self._play.lab.counters["maintenance by Spark"] += 1
            self._play.lab.jvm.run(process, "maintain", slot, thread="maintenance")

    def unload(self) -> None:
        """Spark unloads a provider: on commit, or because another executor has it."""
        busy = {(task.process, task.slot) for task in self.tasks if task.phase != "init"}
        idle = [key for key in self.providers if key not in busy and self._play.is_free(key[0])]
        if idle:
            self._close(*self._play.dice.choice(idle), thread="maintenance")

    def _close(self, process: str, slot: str, *, thread: str) -> None:
        """Unless another attempt has a store of it open."""
        others = [t for t in self.tasks if (t.process, t.slot) == (process, slot)]
        if (process, slot) in self.providers and all(t.phase == "init" for t in others):
            del self.providers[(process, slot)]
            self.writing.discard((process, slot))
            self._play.lab.counters["providers unloaded"] += 1
            self._play.lab.jvm.run(process, "close", slot, thread=thread)

    def killed(self, process: str) -> None:
        """A process is no more."""
        self.tasks = [task for task in self.tasks if task.process != process]
        self.providers = {k: job for k, job in self.providers.items() if k[0] != process}
        self.writing = {key for key in self.writing if key[0] != process}
