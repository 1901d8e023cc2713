"""One schedule: batches, attempts, restarts, rewinds, readers, maintenance, and faults."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from redis_state.backend.client import Client
from redis_state.backend.transport import Transport
from redis_state.errors import RedisStateError
from redis_state.ids import Pin, StateStoreId
from redis_state.maintain.orphans import sweep_orphans
from redis_state.protocol import RegisteredRun, checkpoint_gen, register_run
from redis_state.store.partition_store import PartitionReadStore, PartitionStore
from tests.faults.oracle.accidents import Accidents
from tests.faults.oracle.attempt import change, commit, forked
from tests.faults.oracle.by_uid import asking
from tests.faults.oracle.clock import StepClock
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.keeps_beside import EVERY, KeepsBeside
from tests.faults.oracle.keyspace import Keyspace
from tests.faults.oracle.maintainer import Maintainer
from tests.faults.oracle.network import Actor, Network
from tests.faults.oracle.previewing import Previewing
from tests.faults.oracle.providers import NAME, Providers, config_of
from tests.faults.oracle.runs import Run
from tests.faults.oracle.timed import FIRST_S, SERVER_CLOCK, TTLS_S, TimedModel
from tests.faults.oracle.timed_task import Timed, look_at_each
from tests.faults.oracle.timeline import Task, Timeline
from tests.faults.oracle.watch import Watch

_STEPS = 140
_ACTORS_MAX = 4
_KEYS = 6


class Schedule:
    """Runs on a server that holds nothing else.

    Args:
        seed: Decides everything but the names of attempts.
        destructive: Whether the server may lose data.
        formats: Checkpoint formats: that of the first run, and that to which the query goes over.
        timed: Whether rows have a time to live.
        previews: Whether attempts show their rows before they commit.
    """

    def __init__(
        self,
        seed: int,
        server: Transport,
        url: str,
        counters: Counter[str],
        *,
        destructive: bool,
        formats: Sequence[int],
        timed: bool = False,
        previews: bool = False,
    ) -> None:
        self._dice = Dice(seed)
        self._server = server
        self.counters = counters
        self._destructive = destructive
        self._formats = formats
        self._format = formats[0]
        self.timed = TimedModel() if timed else None
        self._config = config_of(url)
        SERVER_CLOCK.times = [FIRST_S]
        self.keyspace = Keyspace(server, self._dice)
        self._watch = Watch(self._dice, counters, self.keyspace)
        self.network = Network(self._dice, server, counters, self._watch)
        self._plain = self.client()
        self._runs = 0
        self._tasks: dict[Actor, Task] = {}
        self._forked: list[tuple[Task, Callable[[], None]]] = []
        self._registered: dict[str, RegisteredRun] = {}
        self.providers = Providers(self._dice, url, self.client, self._registered, lists=not timed)
        keeps = seed // 16 % EVERY == 1 and not timed
        self.keeps = KeepsBeside(self, self._dice) if keeps else None
        self._server.exchange([("FLUSHDB",)])
        self._gen = checkpoint_gen(self._plain, NAME, create=True) or ""
        self.partition = StateStoreId(NAME, 0, 0).partition(self._gen)
        self.timeline = Timeline(self._new_run(by_driver=True), counters)
        self._watch.begin(self.timeline, self.partition)
        self._maintainer = Maintainer(self.client, self.partition, self.timeline, self._dice)
        self._previewing: Previewing | None = None
        if previews:
            of = self.keyspace, self.partition
            self._previewing = Previewing(self._dice, self.timeline, *of, counters, self.client)
            self._watch.also = self._previewing.ran
        self._accidents = Accidents(
            self.keyspace, self.network, self.timeline, [self.partition], counters
        )

    def run(self) -> None:
        """Until everybody is done, or something went wrong."""
        for _ in range(_STEPS):
            if self.timeline.problems:
                return
            self._disturb()
            self.step()
        while self.network.actors and not self.timeline.problems:
            self.step()

    def _disturb(self) -> None:
        if self.timed is not None and self._dice.one_in(6):
            SERVER_CLOCK.turn(self._dice.choice([-1, 1, 1, 2, 7]))
        if len(self.network.actors) < _ACTORS_MAX and self._dice.one_in(4):
            self._start_something()
        if self._watch.reader_is_slow:
            self._watch.reader_is_slow = False
            self._let_minutes_pass()
        chance = self._dice.below(160)
        if chance < 4:
            self._accidents.expire_one()
        elif self._destructive and chance == 4:
            self._accidents.copy()
        elif self._destructive and chance == 5:
            self._accidents.fail_over()
        elif self._destructive and chance == 6:
            self._accidents.destroy()

    def _start_something(self) -> None:
        if self.keeps is not None and self._dice.one_in(5):
            self.keeps.start()
            return
        if self._previewing is not None and self._dice.one_in(3):
            self._start_preview_reader(self._previewing)
            return
        chance = self._dice.below(24)
        if self._zombie_is_due():
            self._start_unregistered_zombie()
        elif chance < 2:
            self._restart(back=0)
        elif chance == 2:
            self._restart(back=self._dice.between(1, 3))
        elif chance < 6:
            self._start_reader()
        elif chance < 9:
            self.start_maintainer()
            if self._dice.one_in(3):
                self.start_maintainer()
        elif chance == 9:
            self._start_unregistered_zombie()
        elif chance < 12:
            self._start_or_end_a_second_driver()
        else:
            self.start_attempt()
            if self._dice.one_in(3):
                self.start_attempt()
            if self._format == 2 and self._dice.one_in(2):
                # While it opens what the driver logged, which need not be the newest attempt.
                self._start_reader(by_version=True)

    # ---- the driver ------------------------------------------------------------------------

    def _new_run(self, *, by_driver: bool) -> Run:
        # What no driver registered is the newest whenever it registers: such a zombie is not fenced
        # (docs/reliability.md, "What is not promised").
        self._kill_attempts(lambda run: not run.by_driver)
        self._runs += 1
        run = Run(self._runs, f"run-{self._runs}", by_driver, self._format)
        if by_driver:
            self._registered[run.run_id] = register_run(
                self._plain, self._gen, run.run_id, by_driver=True
            )
        return run

    def _kill_attempts(self, of: Callable[[Run], bool]) -> None:
        for actor, task in self._tasks.items():
            if task.run is not None and of(task.run):
                actor.killed = True

    def _restart(self, *, back: int) -> None:
        """Attempts of the earlier runs go on as zombies."""
        self.counters["restarts"] += 1
        self.network.disturb()
        if self.timed is not None and self._dice.one_in(4):
            self.timed.ttl_s = self._dice.choice(TTLS_S)
        if back > 0:
            self._end_the_unopened_batch()
        if self._dice.one_in(3):
            # A zombie from its first step on.
            self.start_attempt()
            if back > 0:
                # It may be a task of that batch, too.
                self._end_the_unopened_batch()
        if self._format != self._formats[-1] and self._dice.one_in(3):
            self.counters["switches"] += 1
            self._format = self._formats[-1]
        # Only a driver may go back: a run that executors had to register could be a zombie.
        by_driver = back > 0 or not self._dice.one_in(4)
        self.timeline.restart(self._new_run(by_driver=by_driver), back)

    def _start_or_end_a_second_driver(self) -> None:
        """A scheduler starts the query though it runs, or one of two drivers crashes."""
        timeline = self.timeline
        drivers = list(timeline.drivers)
        if len(drivers) > 1:
            timeline.lose(self._dice.choice(drivers))
        elif drivers and timeline.run.by_driver:
            self.network.disturb()
            timeline.second_start(self._new_run(by_driver=True))
            self.start_attempt()
            self.start_attempt()

    def _perhaps_restart_beside_siblings(self, done: Task) -> None:
        """The driver restarts while another attempt of the batch just logged is under way."""
        timeline = self.timeline
        siblings = [
            one
            for one in self._tasks.values()
            if (one.run, one.version) == (done.run, done.version)
        ]
        # The run that logged the newest version is the timeline's.
        logged = done.run == timeline.run and timeline.logged == done.version + 1
        if siblings and logged and self._dice.one_in(3):
            self._restart(back=0)
            self.start_attempt()
            self.start_attempt()

    def _give_up_rewind(self) -> None:
        """The version has expired for good reason: the driver's log is put back.

        Before that nothing may live of the runs that began with the rewind: their attempts would
        still carry it out (docs/reliability.md, "What is not promised").
        """
        timeline = self.timeline
        if timeline.rewound_from is not None:
            self._kill_attempts(lambda run: run.number >= timeline.rewound_by)
            self.network.flush()
        if timeline.rewound_from is not None:
            timeline.log, timeline.rewound_from = timeline.rewound_from, None
            timeline.drivers.planned = max(timeline.drivers.planned, timeline.logged - 1)
        self._restart(back=0)

    def _end_the_unopened_batch(self) -> None:
        """Its tasks could take back a rewind by one batch: "What is not promised" says when."""
        if self.keyspace.opened(self.partition)[0] < self.timeline.logged:
            for actor, task in self._tasks.items():
                if task.run is not None and task.version == self.timeline.logged:
                    actor.killed = True
            self.network.flush()

    def restart_by_driver(self, back: int = 0) -> None:
        """A new run goes on from the newest logged version, or from an earlier one."""
        self.timeline.restart(self._new_run(by_driver=True), back)

    def step(self) -> None:
        """One exchange of one actor, and what follows from its end."""
        actor = self.network.step()
        while self._forked:
            # Not on the stack of the process that is copied.
            twin, body = self._forked.pop()
            self.start(twin, body, 2, writes=True, whole=True)
        if actor is None:
            return
        task = self._tasks.pop(actor, None)
        if task is None:
            return
        if actor.failure is None:
            self._perhaps_restart_beside_siblings(task)
            return
        task.alone = actor.alone
        if task.run is not None:
            opened, holder = self.keyspace.opened(self.partition)
            goes_back = not task.run.by_driver and opened > task.version
            task.overtaken = (
                goes_back
                or holder in self._watch.unregistered
                or self.timeline.came_too_late(task.run, holder)
            )
        was_current = self.timeline.current(task)
        if task.run is not None and not was_current and len(self.timeline.drivers.alive) > 1:
            # Its driver was told that the other one has gone on.
            self.timeline.lose(task.run)
        self.timeline.failed(task, actor.failure)
        error = actor.failure
        if was_current and task.run is not None and isinstance(error, RedisStateError):
            self._react(str(error.kind), task.run)

    def _react(self, kind: str, run: Run) -> None:
        if kind == "VERSION_EXPIRED" and not self.timeline.destroyed:
            self._give_up_rewind()
        elif kind in ("STATE_LOST", "VERSION_EXPIRED"):
            # The data is gone; after a few tries at older versions the user starts anew.
            self._restart(back=self._dice.choice([1, 2, self.timeline.logged]))
        elif kind == "FENCED" and (self.timeline.destroyed or not run.by_driver):
            self.restart_by_driver()
        elif kind == "FENCED":
            _, holder = self.keyspace.opened(self.partition)
            # Or a zombie that no driver registered took the partition at the opened version.
            if holder in self._watch.unregistered or self.timeline.came_too_late(run, holder):
                self.restart_by_driver()

    # ---- who acts --------------------------------------------------------------------------

    def _start_unregistered_zombie(self) -> None:
        """A task of a run that nobody knows.

        It goes on from below the opened version, or is of the time before the query went over to
        format 2: it must not get anywhere. In format 2 it may be of the living timeline, on which
        it gets on and nothing may be lost by it, or of one that was left.
        """
        opened, _ = self.keyspace.opened(self.partition)
        if opened == 0 or not self._holds():
            return
        format_ = self._dice.choice(self._formats[: self._formats.index(self._format) + 1])
        run = Run(0, uuid.uuid4().hex, by_driver=False, format=format_)
        self._watch.unregistered.add(run.run_id)
        self.counters["unregistered zombies"] += 1
        if format_ == 2 and self.timeline.ever_logged:
            pin = self._dice.choice(self.timeline.left(opened) or self.timeline.ever_logged)
            self._start_attempt_of(run, pin.version, pin)
        else:
            version = self._dice.below(opened) if format_ == self._format else opened
            self._start_attempt_of(run, version, None)

    def _zombie_is_due(self) -> bool:
        """More of them where there is something to take along or to drop."""
        if self._format == 1 or not self._holds() or not self._dice.one_in(4):
            return False
        opened, _ = self.keyspace.opened(self.partition)
        return self._formats[0] == 1 or bool(self.timeline.left(opened))

    def start_attempt(self) -> None:
        """An attempt of the batch of a living driver."""
        drivers = self.timeline.drivers
        run = self._dice.choice(list(drivers)) if len(drivers.alive) > 1 else self.timeline.run
        if run not in drivers or not drivers.begins_batch(run):
            if not drivers.alive:
                self._restart(back=0)
            return
        at = drivers.alive[run].at
        self._start_attempt_of(run, at, self.timeline.log.pin(at))

    def _start_attempt_of(self, run: Run, version: int, asked: Pin | None) -> None:
        timeline = self.timeline
        timeline.started_max = max(timeline.started_max, version)
        executor = self._dice.below(2)
        changes = [
            (self._dice.choice("puaar"), f"k{self._dice.below(_KEYS)}", n)
            for n in range(self._dice.between(1, 4))
        ]
        one_in = self._dice.one_in
        gives_up, logs, aborts = one_in(12), not one_in(3), one_in(2)
        name = f"run {run.number}, version {version}"
        counted_on = run in timeline.drivers and version == timeline.logged
        task = Task(name, version, run, run, counted_on=counted_on, asked=asked)
        forks = run.format == 2 and not self._destructive and one_in(8) and self.timed is None
        ttl_s = None if self.timed is None else self.timed.ttl_s
        timed = None
        if self.timed is not None:
            timed = Timed(self.timed, timeline, ttl_s, self.keyspace, self.partition)

        def body() -> None:
            provider = self.providers.of_executor(executor, run, ttl_s)
            if timed is not None:
                timed.begin()
            store = provider.get_store(version)
            assert isinstance(store, PartitionStore)
            rows = self._compare(task, store, timed)
            stamp = len(timeline.contents)
            preview = self._previewing.begin(run, store) if self._previewing is not None else None
            for what, key, n in changes:
                change(store, rows, what, key, stamp * 10 + n)
                if preview is not None:
                    preview.show(rows)
            if timed is not None:
                timed.writes(store, rows, [key for _, key, _ in changes])
            timeline.contents[store._uid], timeline.writers[store._uid] = rows, run
            if gives_up:
                store.abort()
                if preview is not None:
                    preview.end()
                return
            if forks:
                self._forked.append(forked(timeline, task, run, store, rows, stamp * 10 + 9))
            commit(timeline, run, store, rows, aborts=aborts, preview=preview)
            if timed is not None:
                timed.committed(store)
            # A driver may crash before it logs what all tasks have committed.
            if logs:
                timeline.logs(run, self._chosen(run, version + 1, store._local.pin))

        self.start(task, body, run.format, writes=True, whole=forks)

    def _chosen(self, run: Run, version: int, newest: Pin) -> Pin:
        """Returns the attempt that the driver logs: in format 2 any that it has heard of."""
        heard_of = self.timeline.confirmed.get((run, version), [])
        if self._format == 1 or len(heard_of) < 2:
            return newest
        self.counters["choices"] += 1
        return Pin(version, self._dice.choice(heard_of))

    def start(
        self,
        task: Task,
        body: Callable[[], None],
        format_: int,
        *,
        writes: bool,
        whole: bool = False,
    ) -> None:
        """Starts an actor for a task."""

        def asks() -> None:
            with asking(format_, task.asked, lambda: self.timeline.logged, whole=whole):
                body()

        self._tasks[self.network.start(task.name, asks, writes=writes)] = task

    def _start_reader(self, *, by_version: bool = False) -> None:
        timeline = self.timeline
        version = max(0, timeline.logged - self._dice.choice([0, 0, 0, 1, -1]))
        asked = timeline.log.pin(version)
        if by_version:
            version, asked = timeline.logged, None
        elif self._format == 2 and self._dice.one_in(2):
            asked = self._some_attempt() or asked
        version = version if asked is None else asked.version
        counted_on = version == timeline.logged or asked is not None
        name = f"reader of {asked or version}"
        task = Task(name, version, None, timeline.run, counted_on, asked)

        def body() -> None:
            went_on_with = None if asked else self._went_on_with(version)
            store = self.providers.stranger().get_read_store(version)
            assert isinstance(store, PartitionReadStore)
            self._compare(task, store)
            if went_on_with is not None:
                timeline.found_by_version(task, store._local.pin, went_on_with)

        self.start(task, body, self._format, writes=False)

    def _start_preview_reader(self, previewing: Previewing) -> None:
        task = Task("uncommitted", -1, None, self.timeline.run, counted_on=False)
        self.start(task, lambda: previewing.read(task.name), self._format, writes=False)

    def _went_on_with(self, version: int) -> Pin | None:
        """The attempt that the driver's run opened, if it is known by its uid."""
        opened, holder = self.keyspace.opened(self.partition)
        holds = holder == self.timeline.run.run_id
        return self.timeline.log.pin(version) if holds and version <= opened else None

    def _holds(self) -> bool:
        """Returns whether the driver's run has acquired the partition."""
        return self.timeline.run.run_id in self.timeline.acquired

    def _some_attempt(self) -> Pin | None:
        """Returns an attempt that the driver may log next, or any earlier one."""
        timeline = self.timeline
        heard_of = timeline.next_attempts
        if heard_of and self._dice.one_in(2):
            return Pin(timeline.logged + 1, self._dice.choice(heard_of))
        return self._dice.choice(timeline.attempts) if timeline.attempts else None

    def start_maintainer(self) -> None:
        """Maintenance by the executor that serves the partition, or by somebody else."""
        kind = self._dice.below(3)
        executor = self._dice.below(2)
        run = self.timeline.run

        def body() -> None:
            if kind == 0:
                ttl_s = None if self.timed is None else self.timed.ttl_s
                self.providers.of_executor(executor, run, ttl_s).do_maintenance()
                return
            self._maintainer.run(self._format)
            if kind == 1:
                sweep_orphans(self.client())

        task = Task("maintenance", -1, None, run, counted_on=False)
        self.start(task, body, run.format, writes=False)

    def _let_minutes_pass(self) -> None:
        """Maintenance goes by, and what it dropped expires, while somebody reads."""
        self.network.disturb()
        with suppress(RedisStateError):
            self._maintainer.run(self._format)
        self.keyspace.remove(self.keyspace.mortal())

    def _compare(
        self, task: Task, store: PartitionReadStore, timed: Timed | None = None
    ) -> dict[str, list[int]]:
        timeline = self.timeline
        rows = dict(store.iterator())
        seen = None if timed is None else timed.seen(task, store)
        if self.timed is not None:
            look_at_each(timeline, task, store, rows)
        owner = timeline.log.owners.get(task.version) if timeline.current(task) else None
        pin = store._local.pin
        timeline.loaded(task.name, pin, rows, asked=task.asked, logged_in=owner, seen=seen)
        return rows

    def client(self) -> Client:
        """Makes the client of all actors."""
        return Client(self._config, clock=StepClock(), connect=self.network.connect)
