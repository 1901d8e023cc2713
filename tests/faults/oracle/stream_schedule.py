"""One schedule of a streaming query whose tasks begin its batches: no program of ours drives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.transport import Transport
from redis_state.batches.event_time import NOTES_KEY, RAW_SCHEMA, Notes, declare_notes
from redis_state.batches.streams import JoinedBatch, StreamPlan, TaskPlace, join_batch, take_plan
from redis_state.codec.ordered_key import encode_key
from redis_state.errors import Kind, RedisStateError
from redis_state.ids import StateStoreProviderId
from redis_state.protocol import checkpoint_gen
from redis_state.store.family_store import FamilyStore
from redis_state.store.provider import StateStoreProvider
from tests.faults.oracle.accidents import Accidents
from tests.faults.oracle.clock import StepClock
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.keyspace import Keyspace
from tests.faults.oracle.network import Actor, Network
from tests.faults.oracle.runs import Run
from tests.faults.oracle.stream_timeline import Start, StreamTask, StreamTimeline
from tests.faults.oracle.stream_watch import StreamWatch

_STEPS = 170
_ACTORS_MAX = 4
_PARTITIONS = 2
_NAME = "stream"
_QUERY = "the-query"
_LAYOUT = '"key k"'
_RETAINED = 2
_LOG, _TIMES = encode_key("log"), encode_key("times")


class StreamSchedule:
    """Runs on a server that holds nothing else.

    Args:
        seed: Decides everything but the names of attempts, and times.
        destructive: Whether the server may lose data.
    """

    def __init__(
        self, seed: int, server: Transport, url: str, counters: Counter[str], *, destructive: bool
    ) -> None:
        self._dice = Dice(seed)
        self._server = server
        self._counters = counters
        self._destructive = destructive
        self._config = options.parse(
            {"url": url, "versionsToRetain": _RETAINED, "deadline": "1s", "connectionsMax": 2}
        )
        self._keyspace = Keyspace(server, self._dice)
        watch = StreamWatch(counters)
        self.network = Network(self._dice, server, counters, watch)
        self._client = Client(self._config, clock=StepClock(), connect=self.network.connect)
        self._server.exchange([("FLUSHDB",)])
        self._gen = checkpoint_gen(self._client, _NAME, create=True) or ""
        self._query = keys.query(self._gen)
        self._first = self._dice.choice((0, 0, 5))
        delay_ms = self._dice.choice((10, 10, None))
        self.timeline = StreamTimeline(_PARTITIONS, self._first, delay_ms, counters)
        self._tasks: dict[Actor, StreamTask] = {}
        self._warm: dict[tuple[int, int], StateStoreProvider] = {}
        self._runs = 0
        self._app = 0
        self._attempts: Counter[int] = Counter()
        self._plans: dict[int, StreamPlan] = {}
        self._undo: Callable[[], None] | None = None
        self._limits: set[int] = set()
        self._lost = False
        self._call()
        self._partitions = [self._plans[0].partition(number) for number in range(_PARTITIONS)]
        watch.begin(self.timeline, self._partitions)
        self._accidents = Accidents(
            self._keyspace, self.network, self.timeline, self._partitions, counters
        )
        self._start()

    def run(self) -> None:
        """Until everybody is done, or something went wrong."""
        for _ in range(_STEPS):
            if self.timeline.problems:
                return
            self._disturb()
            self._step()
        self._go_on()
        self._end()

    # ---- the end -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Alone and without faults everything works, and nothing is left over."""
        self.network.faults = False
        self.network.flush()
        timeline = self.timeline
        for _ in range(2):
            if timeline.destroyed and timeline.newest is not None:
                self._take_back(timeline.newest)
            self._new_app()
            self._batch_alone()
        if timeline.problems:
            return
        self._keyspace.remove(self._keyspace.mortal())
        if not (timeline.destroyed or self._lost):
            for id_ in self._partitions:
                self._look_for_orphans(*self._keyspace.segments(id_))
        if self._keyspace.holds(self._query) and not self._keyspace.field(self._query, "f"):
            timeline.problem("the hash of the query has no format")

    def _batch_alone(self) -> None:
        timeline = self.timeline
        before = timeline.logged
        for _ in range(8 * _PARTITIONS):
            if timeline.problems or self._lost or timeline.logged > before:
                return
            self._start_task(alone=True)
            self._go_on()
        if not (timeline.problems or timeline.destroyed or self._lost):
            timeline.problem("in the end no batch gets done")

    def _look_for_orphans(self, there: set[str], named: set[str]) -> None:
        for name in sorted(there - named):
            self._counters["orphans"] += 1
            self.timeline.problem(f"{name} is of no manifest and never expires")
        for name in sorted(named - there):
            self.timeline.problem(f"the manifest names {name}, which is gone")

    def _go_on(self) -> None:
        while self.network.actors and not self.timeline.problems:
            self._step()

    # ---- what goes on --------------------------------------------------------------------------

    def _disturb(self) -> None:
        if len(self.network.actors) < _ACTORS_MAX and self._dice.one_in(3):
            self._start_something()
        chance = self._dice.below(160)
        if chance < 3:
            self._accidents.expire_one()
        elif chance < 6:
            self._forget_query()
        elif self._destructive and chance < 8:
            self._accidents.copy()
        elif self._destructive and chance < 10:
            self._fail_over()
        elif self._destructive and chance == 10:
            self._accidents.destroy()

    def _start_something(self) -> None:
        chance = self._dice.below(40)
        if self._lost:
            return
        if chance < 2:
            self._restart()
        elif chance == 2:
            self._new_app()
        elif chance == 3:
            self._second_app()
        elif chance == 4:
            # Of this call nothing is ever started.
            take_plan(self._client, self._gen, tenant="")
        elif chance == 5:
            self._rewind()
        elif chance == 6:
            self._start_stranger()
        elif chance < 9:
            self._start_task(kept=True)
        else:
            self._start_task(crashes=self._dice.one_in(8))
            if self._dice.one_in(2):
                self._start_task(crashes=self._dice.one_in(8))

    def _step(self) -> None:
        """One exchange of one actor, and what follows from its end."""
        actor = self.network.step()
        task = None if actor is None else self._tasks.pop(actor, None)
        if actor is None or task is None or actor.failure is None:
            return
        task.alone = actor.alone
        error = actor.failure
        self.timeline.failed(task, error)
        lives = task.start.run in self.timeline.drivers
        if isinstance(error, RedisStateError) and lives and not (task.refused or task.kept):
            self._react(task, error)

    def _react(self, task: StreamTask, error: RedisStateError) -> None:
        """Reacts to a task's error as Spark and the user do."""
        timeline = self.timeline
        if error.kind is Kind.FENCED and timeline.is_over(task.start):
            timeline.drivers.end(task.start.run)
        elif error.kind is Kind.USAGE and "can be run again" in str(error):
            # It goes back too far: the logs are put back.
            if self._undo is not None:
                self._undo()
            self._new_app()
        elif error.kind is Kind.USAGE and timeline.newest is not None:
            self._take_back(timeline.newest)
            self._new_app()
        elif error.kind in (Kind.STATE_LOST, Kind.VERSION_EXPIRED) and task.at == timeline.logged:
            self._counters["batches refused over missing versions"] += 1
            if task.at < 2:
                # As the message says: begin again, with a new checkpoint and store.
                self._lost = True
            else:
                self._take_back(task.at - 1)
                self._new_app()

    # ---- applications and their starts ---------------------------------------------------------

    def _call(self) -> None:
        """The application calls `transform_with_state`."""
        number = take_plan(self._client, self._gen, tenant="")
        self._plans[self._app] = StreamPlan(
            _NAME,
            self._gen,
            "",
            self._first,
            _PARTITIONS,
            _LAYOUT,
            number,
            self.timeline.delay_ms,
        )

    def _start(self) -> None:
        self.network.disturb()
        self._runs += 1
        run = Run(self._runs, f"run-{self._runs}", by_driver=True)
        start = Start(run, self._plans[self._app], self._app)
        self.timeline.starts[run.run_id] = start
        self.timeline.drivers.start(run, self.timeline.logged)

    def _end_starts(self, of: Callable[[Start], bool]) -> None:
        """Their tasks go on as zombies."""
        for run in self.timeline.drivers:
            if of(self.timeline.starts[run.run_id]):
                self.timeline.drivers.end(run)

    def _restart(self) -> None:
        """The query is stopped and started again in one of the applications, anew or as it was."""
        self._counters["restarts"] += 1
        app = self._app = self._dice.choice(list(self._plans))
        self._end_starts(lambda start: start.app == app)
        if self._dice.one_in(2):
            self._call()
        self._start()

    def _new_app(self) -> None:
        """All that lived have crashed; another one starts the query."""
        self._counters["restarts"] += 1
        self._end_starts(lambda _start: True)
        self._plans.clear()
        self._app += 1
        self._call()
        self._start()

    def _second_app(self) -> None:
        """A scheduler starts the query though it runs, or one of two drivers crashes."""
        timeline = self.timeline
        living = list(timeline.drivers)
        if len(living) > 1:
            timeline.drivers.end(self._dice.choice(living))
            return
        self._counters["second starts"] += 1
        self._app = max(self._plans) + 1
        self._call()
        self._start()

    def _rewind(self) -> None:
        """A user takes the logs back by one batch, as errors say, or by two, which is refused."""
        target = self.timeline.logged - self._dice.choice((1, 1, 2))
        if target > 0:
            self._take_back(target)
            self._new_app()

    def _take_back(self, target: int) -> None:
        """The query is stopped, though not all of its tasks are, and its logs are taken back."""
        timeline = self.timeline
        if target > timeline.logged:
            return
        self._counters["rewinds"] += 1
        self._end_starts(lambda _start: True)
        entries, logged = timeline.entries, timeline.logged

        def undo() -> None:
            timeline.entries, timeline.logged = entries, logged
            timeline.drivers.planned = max(entries, default=-1)

        self._undo = undo
        timeline.rewound = True
        timeline.logged = target
        timeline.entries = {at: one for at, one in entries.items() if at < target}
        timeline.drivers.rewind(target)

    # ---- accidents -----------------------------------------------------------------------------

    def _forget_query(self) -> None:
        """A query that no partition was taken for yet is forgotten after a day."""
        if self._keyspace.expires(self._query):
            self._counters["queries forgotten"] += 1
            self._keyspace.remove([self._query.encode()])
            self._look_at_query()

    def _fail_over(self) -> None:
        """Fails over the whole server, or the node with the query or a partition."""
        timeline = self.timeline
        places = [keys.partition(id_) for id_ in self._partitions]
        query = self._query.removesuffix(":q")
        tag = self._dice.choice(["", query, query, *places])
        forked = timeline.forked
        if self._accidents.fail_over(tag):
            if tag not in places:
                timeline.forgot = True
                self._look_at_query()
            if tag == query:
                timeline.forked = forked

    def _look_at_query(self) -> None:
        """Forgets the known starts of the query, and waits until the clock has advanced."""
        timeline = self.timeline
        self.network.disturb()
        latest = max([0, *timeline.joined.values(), *(one.number for one in self._plans.values())])
        while self._now_ms() <= latest:
            pass
        timeline.joined.clear()
        timeline.shown.clear()
        timeline.times.clear()
        timeline.begun.clear()
        known = self._keyspace.field(self._query, "batch:0:default")
        timeline.newest = int(known.split(b" ")[0]) - self._first if known else None

    def _now_ms(self) -> int:
        ((seconds, micros),) = self._server.exchange([("TIME",)])
        return int(seconds) * 1000 + int(micros) // 1000

    # ---- tasks ---------------------------------------------------------------------------------

    def _start_task(
        self, *, crashes: bool = False, kept: bool = False, alone: bool = False
    ) -> None:
        """An attempt of the batch of a living driver.

        Args:
            alone: Of a partition that is not done yet.
            crashes: The driver ends before it logs the batch that this attempt was the last of.
            kept: It evaluates a frame of an earlier batch or start, which the function of
                `foreachBatch` kept.
        """
        timeline = self.timeline
        living = list(timeline.drivers)
        run = self._dice.choice(living) if living else None
        if run is None or not timeline.drivers.begins_batch(run):
            if not timeline.drivers.alive:
                self._new_app()
            return
        at = timeline.drivers.alive[run].at
        chain = timeline.chain(at)
        entry = timeline.entry_at(at, self._dice)
        start = timeline.starts[run.run_id]
        wanted = timeline.wanted.setdefault((run, at), self._evaluated(at, alone=alone))
        open_ = wanted - timeline.done.get((run, at), set())
        # Else a second attempt, as speculation or a lost stage start it.
        again = not alone and self._dice.one_in(5)
        partition = self._dice.choice(sorted(wanted if again else open_ or wanted))
        name = f"run {run.number}, version {at}, partition {partition}"
        frame = timeline.frame_of(run, at, entry)
        task = StreamTask(name, start, at, partition, chain, entry, frame)
        stale = timeline.stale_frames(run, at) if kept else []
        if stale:
            task.frame, task.rows_of = self._dice.choice(stale)
            task.kept = True
        place = self._place(task)
        self._go(task, lambda: self._evaluate(task, place, crashes=crashes))

    def _start_stranger(self) -> None:
        """A task that is of another query, or of a call that does not fit the store."""
        timeline = self.timeline
        living = list(timeline.drivers)
        if not living or timeline.newest is None or timeline.destroyed:
            return
        start = timeline.starts[self._dice.choice(living).run_id]
        at = timeline.newest
        if at not in timeline.entries or timeline.is_over(start):
            return
        plan, query, told = self._dice.choice(
            (
                (start.plan, "another", f"belongs to the query {_QUERY}"),
                (replace(start.plan, partitions=3), _QUERY, "has 2 partitions, not 3"),
                (replace(start.plan, layout='"key j"'), _QUERY, 'was made with "key k"'),
                (replace(start.plan, first=start.plan.first + 1), _QUERY, "began with batch"),
            )
        )
        if start in timeline.joined and not self._keyspace.expires(self._query):
            twice = replace(start.plan, number=start.plan.number + self._dice.choice((-1, 1)))
            if self._dice.one_in(3):
                self._send_stranger(Start(start.run, twice, start.app), at, _QUERY, "two calls of")
                return
        # As a newer start, so that nothing but what does not fit is in its way.
        self._runs += 1
        run = Run(self._runs, f"stranger-{self._runs}", by_driver=True)
        self._send_stranger(Start(run, plan, start.app), at, query, told)

    def _send_stranger(self, stranger: Start, at: int, query: str, told: str) -> None:
        timeline = self.timeline
        chain, entry = timeline.chain(at), timeline.entries[at]
        task = StreamTask("stranger", stranger, at, 0, chain, entry, "5" * 16, refused=told)
        place = replace(self._place(task), query_id=query)
        self._go(
            task, lambda: timeline.was_joined(task, join_batch(self._client, stranger.plan, place))
        )

    def _go(self, task: StreamTask, body: Callable[[], None]) -> None:
        self._tasks[self.network.start(task.name, body, writes=True)] = task

    def _place(self, task: StreamTask) -> TaskPlace:
        self._attempts[task.start.app] += 1
        return TaskPlace(
            _QUERY,
            task.start.run.run_id,
            self._first + task.at,
            task.partition,
            self._attempts[task.start.app],
            str(task.rows_of.planned),
            task.frame,
        )

    def _evaluated(self, at: int, *, alone: bool) -> frozenset[int]:
        """The partitions that are evaluated: a limit behind the operator stops tasks early."""
        if at and not alone and self._dice.one_in(2 if at in self._limits else 12):
            # Who runs the batch again may have left it there.
            self._limits.add(at)
            return frozenset([self._dice.below(_PARTITIONS)])
        return frozenset(range(_PARTITIONS))

    def _evaluate(self, task: StreamTask, place: TaskPlace, *, crashes: bool) -> None:
        """Runs a task: join, open, run the function, commit, report to the driver."""
        timeline, start = self.timeline, task.start
        joined = join_batch(self._client, start.plan, place)
        timeline.was_joined(task, joined)
        warm = self._dice.below(2), task.partition
        provider = self._provider(task, joined, self._warm.pop(warm, None))
        store = provider.get_family_store(joined.version)
        self._change(task, store, joined)
        try:
            store.commit()
        except RedisStateError:
            store.abort()
            raise
        if self._dice.one_in(5):
            provider.do_maintenance()
        self._warm[warm] = provider
        if timeline.heard_of(task):
            if crashes:
                timeline.drivers.end(start.run)
            else:
                timeline.logs(start, task.at)

    def _provider(
        self, task: StreamTask, joined: JoinedBatch, after: StateStoreProvider | None
    ) -> StateStoreProvider:
        return StateStoreProvider(
            StateStoreProviderId(task.start.plan.store_id(task.partition), task.start.run.run_id),
            config=self._config,
            families=True,
            run=joined.run,
            client=self._client,
            after=after,
        )

    def _change(self, task: StreamTask, store: FamilyStore, joined: JoinedBatch) -> None:
        """Each batch adds what it is, and when it was, to what there is."""
        declare_notes(store)
        prefix = store.declare("rows", key_schema=RAW_SCHEMA, value_schema=RAW_SCHEMA)
        rows, times = (store.get(prefix + key) or b"" for key in (_LOG, _TIMES))
        self.timeline.loaded(task, store._local.pin, rows, times)
        rows += b"%d " % task.rows_of.stamp
        times += b"%d:%d " % (joined.began_ms, joined.watermark_ms)
        store.put(prefix + _LOG, rows)
        store.put(prefix + _TIMES, times)
        newest = max(
            Notes.decode(store.get(NOTES_KEY)).newest_ms, task.rows_of.times[task.partition]
        )
        store.put(NOTES_KEY, Notes(newest, joined.watermark_ms).encode())
        self.timeline.contents[store._uid] = rows, times
