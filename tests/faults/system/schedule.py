"""One schedule: processes, drivers, tasks and commands in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.oracle.dice import Dice
from tests.faults.system.jvm import SaidError
from tests.faults.system.lab import Lab
from tests.faults.system.people import People
from tests.faults.system.world import PARTITIONS, Job, Task, World, changed, parsed, rows_of

_LOSES = ("FENCED", "CONCURRENT")
"""What a run is told that another one has overtaken."""

_TRIES = 4
_POINTS = ("rename:_redis_state", "open:_redis_state", "delete:_redis_state")

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
        self.kills = self.dice.below(2)
        self.jobs: list[Job] = []
        self.tasks: list[Task] = []
        self.held: dict[tuple[str, str], Callable[[str | None, SaidError | None], None]] = {}
        self.providers: dict[tuple[str, str], Job] = {}
        self.executors = [lab.take_process() for _ in range(2)]
        self.processes = list(self.executors)
        self.people = People(self)
        lab.jvm.tell("files", self.dice.choice(("atomic", "local", "local", "objects")))

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
        if self.held and dice.one_in(6):
            self.proceed(dice.choice(list(self.held)))
            return
        roll = dice.below(40)
        if roll < 24:
            self._work()
        elif roll == 24:
            self._second_start()
        elif roll == 25:
            self._driver_dies()
        elif roll == 26:
            self._executor_dies()
        elif roll == 27:
            self._again()
        elif roll < 30:
            people.state_reader()
        elif roll < 32:
            people.beat()
        elif roll == 32:
            self._unload()
        else:
            people.act(roll - 33)

    def _work(self) -> None:
        """A driver or a task goes on."""
        ready: list[Step] = [
            lambda task=task: self.advance_task(task)  # type: ignore[misc]  # bound at once
            for task in self.tasks
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
        """Whether no thread of it is held."""
        return all(name != process for name, _ in self.held)

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
        running = {t.partition for t in self.tasks if t.job is job and t.batch == job.batch}
        missing = [n for n in range(PARTITIONS) if n not in job.done]
        idle = [n for n in missing if n not in running]
        if idle:
            self.start_task(job, self.dice.choice(idle))
        elif missing:
            wanted = [t for t in self.tasks if t.is_wanted and t.job is job]
            free = [t for t in wanted if self.is_free(t.process)]
            if free and self.dice.one_in(12):
                self.lab.counters["speculative tasks"] += 1
                self.start_task(job, self.dice.choice(missing))
            elif free:
                self.advance_task(self.dice.choice(free))
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

    # ---- executors --------------------------------------------------------------------------

    def start_task(self, job: Job, partition: int) -> None:
        """An attempt, somewhere."""
        name = f"t{len(self.tasks)}-{self.dice.below(1 << 20)}"
        process = self.dice.choice(self.executors)
        uid = job.uids[partition] if job.format == 2 and job.batch > 0 else "-"
        self.tasks.append(
            Task(name, job, partition, process, job.batch, job.tokens[: job.batch + 1], uid)
        )
        if self.dice.one_in(3):
            self.advance_task(self.tasks[-1]) if self.is_free(process) else None

    def advance_task(self, task: Task) -> None:
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
        """As `StateStore` makes one."""
        more = ["onPathChange=adopt"] if self.adopt else []
        words = ("init", slot, self.root, run_id, job.query_id, partition, job.format, *more)
        self.lab.jvm.run(process, *words)

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
            known.append(self.world.rows(task.batch, task.partition))
        self.lab.counters["loads compared"] += 1
        if found not in known:
            self.lab.counters["wrong"] += 1
            self.world.problem(f"{task.slot} loaded {found} as version {task.batch}, not {known}")
        task.phase, task.changes = "put", self._changes(task)

    def _changes(self, task: Task) -> list[tuple[object, ...]]:
        before = rows_of(task.tokens[: task.batch], task.partition)
        after = changed(before, task.tokens[task.batch], task.partition)
        place = (task.slot, task.name)
        puts = [("put", *place, k, v) for k, v in after.items() if before.get(k) != v]
        return [*puts, *(("remove", *place, k) for k in before if k not in after)]

    def _put(self, task: Task) -> None:
        """One of the changes of the batch; the first of them takes the partition."""
        if task.changes:
            self._do(task, task.changes.pop(0), lambda _task, _said: None)
            return
        task.phase = "commit"
        if self.dice.one_in(200):
            self._do(
                task, ("fill", task.slot, task.name, 10), lambda task, _said: self._abort(task)
            )

    def _commit(self, task: Task) -> None:
        if self.dice.one_in(25):
            self._abort(task)
            return
        self.lab.counters["late tasks of ended runs"] += not task.job.alive
        self._do(task, ("commit", task.slot, task.name), self._committed)

    def _committed(self, task: Task, said: str) -> None:
        version, uid = said.split()
        self.lab.counters["commits"] += 1
        if int(version) != task.batch + 1:
            self.world.problem(f"{task.slot} committed {version} in batch {task.batch}")
        self.tasks.remove(task)
        if task.is_wanted:
            task.job.done.setdefault(task.partition, uid)

    def _abort(self, task: Task) -> None:
        """Spark ends a task, often by an interrupt."""
        interrupted = self.dice.one_in(2)
        self.lab.counters["aborts on an interrupted thread"] += interrupted
        try:
            self.lab.jvm.run(task.process, "abort", task.name, str(interrupted).lower())
        except SaidError as error:
            self.lab.counters["failed aborts"] += 1
            self.world.problem(f"abort of {task.slot}: {error}")
        self.tasks.remove(task)

    def _do(self, task: Task, words: tuple[object, ...], done: Callable[[Task, str], None]) -> None:
        def told(said: str | None, error: SaidError | None) -> None:
            if error is not None:
                self._failed(task, str(words[0]), error)
            elif task in self.tasks:
                done(task, said or "")

        may_hold = words[0] in ("open", "put") and (task.batch < 2 or self.adopt)
        self.ask(task.process, task.name, words, told, may_hold=may_hold)

    def _failed(self, task: Task, what: str, error: SaidError) -> None:
        """Spark runs it again, some times."""
        if task in self.tasks:
            self.tasks.remove(task)
        self.lab.counters[f"{what}: {error.kind}"] += 1
        job = task.job
        rivals = sum(t.slot == task.slot and t.batch == task.batch for t in self.tasks)
        fair = error.kind in _LOSES and (job.disputed or not task.is_wanted or rivals)
        late = not task.is_wanted and error.kind not in ("FORMAT", "HANG")
        if not fair and not late:
            self.lab.counters["false errors"] += 1
            self.world.problem(f"{what} of {task.slot} in batch {task.batch}: {error}")
        if task.is_wanted:
            job.failures += 1
            if job.failures >= _TRIES:
                self.lab.counters["runs ended by the fence"] += 1
                self.end_job(job, politely=True)

    def _executor_dies(self) -> None:
        free = [
            name
            for name in self.executors
            if self.kills > 0 and all(job.process != name for job in self.jobs)
        ]
        if free:
            self.kills -= 1
            self.kill(self.dice.choice(free))
            self.executors.append(self.lab.take_process())
            self.processes.append(self.executors[-1])

    def kill(self, process: str) -> None:
        """Nothing of it happens any more."""
        self.lab.counters["processes killed"] += 1
        self.lab.jvm.kill_process(process)
        self.processes.remove(process)
        if process in self.executors:
            self.executors.remove(process)
        self.tasks = [task for task in self.tasks if task.process != process]
        self.held = {key: then for key, then in self.held.items() if key[0] != process}
        self.providers = {k: job for k, job in self.providers.items() if k[0] != process}
        self.people.killed(process)

    def _again(self) -> None:
        """Spark's maintenance of a provider."""
        loaded = [key for key in self.providers if self.is_free(key[0])]
        if loaded:
            process, slot = self.dice.choice(loaded)
            self.lab.counters["maintenance by Spark"] += 1
            self.lab.jvm.run(process, "maintain", slot, thread="maintenance")

    def _unload(self) -> None:
        """Spark unloads a provider: on commit, or because another executor has it."""
        busy = {(task.process, task.slot) for task in self.tasks if task.phase != "init"}
        idle = [key for key in self.providers if key not in busy and self.is_free(key[0])]
        if idle:
            key = self.dice.choice(idle)
            del self.providers[key]
            self.lab.counters["providers unloaded"] += 1
            self.lab.jvm.run(key[0], "close", key[1], thread="maintenance")

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
        """Let a thread do something; sometimes it is held amid a step of a file."""
        pause = self.dice.choice(_POINTS) if may_hold and self.dice.one_in(8) else "-"
        try:
            said = self.lab.jvm.run(process, *words, thread=thread, pause=pause)
        except SaidError as error:
            then(None, error)
            return
        if said is None:
            self.lab.counters["held between two steps of a file"] += 1
            self.held[(process, thread)] = then
        else:
            then(said, None)

    def proceed(self, key: tuple[str, str]) -> None:
        """A thread that was held goes on."""
        then = self.held.pop(key)
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
        if self.world.problems:
            return
        job = self.start_job()
        goal = self.dice.between(1, 2)
        for _ in range(60):
            if job.batches_done >= goal or self.world.problems:
                break
            self.advance_job(job)
            while self.held:
                self.proceed(next(iter(self.held)))
        else:
            self.world.problem(f"{job.name}, alone, does not get on: {job}")
        if not self.world.problems:
            self.people.look_at_everything()
            self.end_job(job, politely=True)

    def clear_away(self) -> None:
        """Every process closes what it has; nothing may be left."""
        if self.world.problems:
            for process in self.processes:
                self.lab.jvm.kill_process(process)
            return
        for process, slot in list(self.providers):
            self.lab.jvm.run(process, "close", slot)
        self.people.clear_away()
        left = self.lab.jvm.connections()
        for process in self.processes:
            if left.get(process):
                self.lab.counters["connections left"] += 1
                self.world.problem(f"{process} has {left[process]} connections left")
                self.lab.jvm.kill_process(process)
            else:
                self.lab.give_back(process)
