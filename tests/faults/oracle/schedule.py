"""One schedule: batches, attempts, restarts, rewinds, readers, maintenance, and faults."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.backend.transport import Transport
from redis_state.errors import RedisStateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.orphans import sweep_orphans
from redis_state.partition_store import PartitionListStore, PartitionReadStore
from redis_state.protocol import PartitionClient, RegisteredRun, checkpoint_gen, register_run
from redis_state.provider import StateStoreProvider
from tests.faults.oracle.keyspace import Copy, Keyspace
from tests.faults.oracle.network import Actor, Network
from tests.faults.oracle.timeline import RETAINED, Run, Task, Timeline
from tests.faults.oracle.wire import scripts_in

_STEPS = 160
_ACTORS_MAX = 4
_KEYS = 6
_SETTLING_BATCHES = 3
_LEAVE_BLOCKS = ("OK", "ALREADY", "REOPEN")
_NAME = "oracle"


class StepClock:
    """Each look at it takes a tenth of a second: a deadline comes after so many tries."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        self._now_s += 0.1
        return self._now_s

    def sleep_s(self, seconds: float) -> None:
        """Nobody waits."""


class Schedule:
    """Runs on a server that holds nothing else.

    Args:
        seed: Decides everything but the names of attempts.
        destructive: Whether the server may lose data.
    """

    def __init__(
        self, seed: int, server: Transport, url: str, counters: Counter[str], *, destructive: bool
    ) -> None:
        self._random = Random(seed)
        self._server = server
        self._counters = counters
        self._destructive = destructive
        self._config = options.parse(
            {"url": url, "versionsToRetain": RETAINED, "deadline": "1s", "connectionsMax": 2}
        )
        self._network = Network(self._random, server, counters, self._watch)
        self._plain = self._client()
        self._runs = 0
        self._tasks: dict[Actor, Task] = {}
        self._providers: dict[tuple[int, str], StateStoreProvider] = {}
        self._registered: dict[str, RegisteredRun] = {}
        self._copy: Copy | None = None
        self._reader_is_slow = False
        self._keyspace = Keyspace(server, self._random)
        self._server.exchange([("FLUSHDB",)])
        self._gen = checkpoint_gen(self._plain, _NAME, create=True) or ""
        self._partition = StateStoreId(_NAME, 0, 0).partition(self._gen)
        self._timeline = Timeline(self._new_run(by_driver=True), counters)

    def run(self) -> list[str]:
        """What went wrong."""
        with self._network.watchdog:
            return self._run()

    def _run(self) -> list[str]:
        try:
            for _ in range(_STEPS):
                if self._timeline.problems:
                    break
                self._disturb()
                self._step()
            while self._network.actors and not self._timeline.problems:
                self._step()
            self._network.faults = False
            self._network.flush()
            if not self._timeline.problems:
                self._settle()
        finally:
            self._network.end()
        return self._timeline.problems

    def _disturb(self) -> None:
        if len(self._network.actors) < _ACTORS_MAX and self._random.randrange(4) == 0:
            self._start_something()
        if self._reader_is_slow:
            self._reader_is_slow = False
            self._let_minutes_pass()
        chance = self._random.randrange(160)
        if chance < 4:
            self._expire_one()
        elif self._destructive and chance == 4:
            self._copy = self._keyspace.copy()
        elif self._destructive and chance == 5 and self._copy is not None:
            self._fail_over(self._copy)
        elif self._destructive and chance == 6:
            self._destroy()

    def _start_something(self) -> None:
        chance = self._random.randrange(24)
        if chance < 2:
            self._restart(back=0)
        elif chance == 2:
            self._restart(back=self._random.randint(1, 3))
        elif chance < 6:
            self._start_reader()
        elif chance < 9:
            self._start_maintainer()
            if self._random.randrange(3) == 0:
                self._start_maintainer()
        elif chance == 9:
            self._start_unregistered_zombie()
        else:
            self._start_attempt()
            if self._random.randrange(3) == 0:
                self._start_attempt()

    # ---- the driver ------------------------------------------------------------------------

    def _new_run(self, *, by_driver: bool) -> Run:
        # What no driver registered is the newest whenever it registers: such a zombie is not fenced
        # (docs/reliability.md, "What is not promised").
        for actor, task in self._tasks.items():
            if task.run is not None and not task.run.by_driver:
                actor.killed = True
        self._runs += 1
        run = Run(self._runs, f"run-{self._runs}", by_driver)
        if by_driver:
            self._registered[run.run_id] = register_run(
                self._plain, self._gen, run.run_id, by_driver=True
            )
        return run

    def _restart(self, *, back: int) -> None:
        """Attempts of the earlier runs go on as zombies."""
        self._counters["restarts"] += 1
        self._network.disturb()
        if self._random.randrange(3) == 0:
            # A zombie from its first step on.
            self._start_attempt()
        # Only a driver may go back: a run that executors had to register could be a zombie.
        by_driver = back > 0 or self._random.randrange(4) > 0
        self._timeline.restart(self._new_run(by_driver=by_driver), back)

    def _perhaps_restart_beside_siblings(self, done: Task) -> None:
        """The driver restarts while another attempt of the batch just logged is under way."""
        timeline = self._timeline
        siblings = [
            one
            for one in self._tasks.values()
            if (one.run, one.version) == (done.run, done.version)
        ]
        logged = done.run == timeline.run and timeline.logged == done.version + 1
        if siblings and logged and self._random.randrange(3) == 0:
            self._restart(back=0)
            self._start_attempt()
            self._start_attempt()

    def _give_up_rewind(self) -> None:
        """The version has expired for good reason: the driver's log is put back."""
        before = self._timeline.rewound_from
        if before is not None:
            self._timeline.logged, self._timeline.owners = before[0], dict(before[1])
            self._timeline.rewound_from = None
        self._restart(back=0)

    def _step(self) -> None:
        actor = self._network.step()
        if actor is None:
            return
        task = self._tasks.pop(actor, None)
        if task is None:
            return
        if actor.failure is None:
            self._perhaps_restart_beside_siblings(task)
            return
        task.alone = actor.alone
        was_current = self._timeline.current(task)
        self._timeline.failed(task, actor.failure)
        error = actor.failure
        if was_current and task.run is not None and isinstance(error, RedisStateError):
            self._react(str(error.kind), task.run)

    def _react(self, kind: str, run: Run) -> None:
        if kind == "VERSION_EXPIRED" and not self._timeline.destroyed:
            self._give_up_rewind()
        elif kind in ("STATE_LOST", "VERSION_EXPIRED"):
            # The data is gone; after a few tries at older versions the user starts anew.
            self._restart(back=self._random.choice([1, 2, self._timeline.logged]))
        elif kind == "FENCED" and (self._timeline.destroyed or not run.by_driver):
            self._restart_by_driver()

    # ---- who acts --------------------------------------------------------------------------

    def _start_unregistered_zombie(self) -> None:
        """A task of a run that nobody knows, below the opened version: it must not get anywhere."""
        opened = self._keyspace.opened(self._partition)
        if opened > 0 and self._timeline.run.run_id in self._timeline.acquired:
            self._counters["unregistered zombies"] += 1
            run = Run(0, uuid.UUID(int=self._random.getrandbits(128)).hex, by_driver=False)
            self._start_attempt_of(run, self._random.randrange(opened))

    def _start_attempt(self) -> None:
        self._start_attempt_of(self._timeline.run, self._timeline.logged)

    def _start_attempt_of(self, run: Run, version: int) -> None:
        timeline = self._timeline
        timeline.started_max = max(timeline.started_max, version)
        executor = self._random.randrange(2)
        changes = [
            (self._random.choice("puaar"), f"k{self._random.randrange(_KEYS)}", n)
            for n in range(self._random.randrange(1, 5))
        ]
        gives_up = self._random.randrange(12) == 0
        logs, aborts = self._random.randrange(3) > 0, self._random.randrange(2) == 0
        name = f"run {run.number}, version {version}"
        task = Task(name, version, run, run, counted_on=run == timeline.run)

        def body() -> None:
            provider = self._provider(executor, run)
            store = provider.get_list_store(version)
            assert isinstance(store, PartitionListStore)
            self._compare(task, store)
            rows = {key: list(values) for key, values in store.iterator()}
            stamp = len(timeline.contents)
            for what, key, n in changes:
                _change(store, rows, what, key, stamp * 10 + n)
            uid = store._uid
            timeline.contents[uid], timeline.writers[uid] = rows, run
            if gives_up:
                store.abort()
                return
            begun, parent = timeline.commits, store._local.pin
            try:
                store.commit()
            except RedisStateError:
                if aborts:
                    store.abort()
                raise
            timeline.was_committed(run, parent, begun=begun)
            # A driver may crash before it logs what all tasks have committed.
            if logs:
                timeline.log(run, version + 1)

        self._tasks[self._network.start(name, body, writes=True)] = task

    def _start_reader(self) -> None:
        timeline = self._timeline
        version = max(0, timeline.logged - self._random.choice([0, 0, 0, 1, -1]))
        task = Task(
            f"reader of {version}",
            version,
            None,
            timeline.run,
            counted_on=version == timeline.logged,
        )

        def body() -> None:
            store = self._stranger().get_read_store(version)
            assert isinstance(store, PartitionReadStore)
            self._compare(task, store)

        self._tasks[self._network.start(task.name, body, writes=False)] = task

    def _start_maintainer(self) -> None:
        kind = self._random.randrange(3)
        executor = self._random.randrange(2)
        run = self._timeline.run

        def body() -> None:
            if kind == 0:
                self._provider(executor, run).do_maintenance()
                return
            self._maintain()
            if kind == 1:
                sweep_orphans(self._client())

        task = Task("maintenance", -1, None, run, counted_on=False)
        self._tasks[self._network.start(task.name, body, writes=False)] = task

    def _maintain(self) -> None:
        """What a maintainer of its own does, whose conf must not count."""
        partition = self._partition_client(versions_to_retain=1)
        opened = partition.open("", None)
        if opened.pin.version > 0 and not opened.segments[0].snapshot:
            added = add_snapshot(partition, opened)
            self._counters["snapshots"] += added is not None
        partition.retain()

    def _let_minutes_pass(self) -> None:
        """Maintenance goes by, and what it dropped expires, while somebody reads."""
        self._network.disturb()
        with suppress(RedisStateError):
            self._maintain()
        self._keyspace.remove(self._keyspace.mortal())

    def _compare(self, task: Task, store: PartitionReadStore) -> None:
        timeline = self._timeline
        rows = dict(store.iterator())
        owner = timeline.owners.get(task.version) if timeline.current(task) else None
        timeline.loaded(task.name, store._local.pin, rows, logged_in=owner)

    def _provider(self, executor: int, run: Run) -> StateStoreProvider:
        """The executor's own, whose cache may have outlived earlier runs."""
        known = self._providers.get((executor, run.run_id))
        if known is None or self._random.randrange(6) == 0:
            earlier = [p for (at, _), p in self._providers.items() if at == executor]
            after = earlier[-1] if earlier and self._random.randrange(2) == 0 else None
            known = StateStoreProvider(
                StateStoreProviderId(StateStoreId(_NAME, 0, 0), run.run_id),
                config=self._config,
                lists=True,
                run=self._registered.get(run.run_id),
                client=self._plain,
                after=after,
            )
            self._providers[executor, run.run_id] = known
        return known

    def _stranger(self) -> StateStoreProvider:
        """Of a run that nobody knows, with nothing cached."""
        id_ = StateStoreProviderId(StateStoreId(_NAME, 0, 0), uuid.uuid4().hex)
        return StateStoreProvider(id_, config=self._config, lists=True, client=self._client())

    def _client(self) -> Client:
        return Client(self._config, clock=StepClock(), connect=self._network.connect)

    def _partition_client(self, *, versions_to_retain: int) -> PartitionClient:
        return PartitionClient(
            self._client(), self._partition, versions_to_retain=versions_to_retain
        )

    # ---- what the server does --------------------------------------------------------------

    def _watch(self, commands: Sequence[Command], replies: list[Any]) -> None:
        for ran in scripts_in(commands, replies):
            outcome = " ".join(ran.reply[: 2 if ran.reply[0] == "FENCED" else 1])
            self._counters[f"{ran.name}: {outcome}"] += 1
            if ran.name == "acquire" and ran.reply[0] == "OK":
                self._timeline.acquired.add(ran.args[0])
                if ran.args[3] == str(self._timeline.logged):
                    self._timeline.rewound_from = None
            if ran.name == "open" and ran.args[0] == "" and self._random.randrange(6) == 0:
                self._reader_is_slow = True
            if ran.name in ("publish", "snapshot") and ran.reply[0] not in _LEAVE_BLOCKS:
                if self._keyspace.holds(ran.keys[1]):
                    self._timeline.problem(f"{ran.name} answered {outcome} and left its blocks")
            elif ran.name == "abort" and not self._keyspace.holds(ran.keys[1]):
                named = self._keyspace.names_blocks(ran.keys[0], ran.args[0])
                if named and not self._timeline.destroyed:
                    self._timeline.problem("abort dropped what is published")

    def _expire_one(self) -> None:
        if self._keyspace.remove_one(self._keyspace.mortal()):
            self._counters["expired"] += 1
            self._network.disturb()

    def _destroy(self) -> None:
        names = [
            name
            for name in self._keyspace.names()
            if b"}:" in name and name[-2:] not in (b":q", b":n")
        ]
        manifest = keys.meta(self._partition)
        there = self._keyspace.holds(manifest)
        if self._keyspace.remove_one(names):
            self._counters["destroyed"] += 1
            self._timeline.destroyed = True
            # Without a manifest any attempt at version 0 makes it anew, which format 1 cannot tell
            # from the lost one (docs/reliability.md, "What is not promised").
            self._timeline.forked |= there and not self._keyspace.holds(manifest)

    def _fail_over(self, copy: Copy) -> None:
        self._counters["fail-overs"] += 1
        self._timeline.destroyed = self._timeline.forked = True
        self._keyspace.restore(copy)

    # ---- the end ---------------------------------------------------------------------------

    def _settle(self) -> None:
        """Alone and without faults everything works, nothing is left over, nothing can expire."""
        self._read_back()
        for _ in range(_SETTLING_BATCHES):
            self._batch_alone()
            self._maintain_alone()
        if self._timeline.problems:
            return
        if self._timeline.destroyed:
            sweep_orphans(self._client())
        self._keyspace.remove(self._keyspace.mortal())
        self._look_for_orphans()
        self._read_back()

    def _maintain_alone(self) -> None:
        if not self._timeline.problems:
            self._start_maintainer()
            while self._network.actors:
                self._step()

    def _batch_alone(self) -> None:
        self._restart_by_driver()
        before = self._timeline.logged
        for _ in range(_SETTLING_BATCHES):
            self._start_attempt()
            while self._network.actors:
                self._step()
            if self._timeline.problems:
                return
            if self._timeline.logged == before + 1:
                return
        if self._timeline.destroyed:
            self._timeline.restart(self._new_run(by_driver=True), self._timeline.logged)

    def _restart_by_driver(self) -> None:
        self._timeline.restart(self._new_run(by_driver=True), 0)

    def _read_back(self) -> None:
        """What every kept version says to somebody who has nothing cached."""
        oldest = max(0, self._timeline.started_max - RETAINED)
        if self._timeline.acquired & {self._timeline.run.run_id}:
            for version in range(oldest, self._timeline.logged + 1):
                self._read_back_one(version)

    def _read_back_one(self, version: int) -> None:
        try:
            store = self._stranger().get_read_store(version)
        except RedisStateError as error:
            if not self._timeline.destroyed:
                self._counters["false lost"] += 1
                self._timeline.problem(f"in the end, version {version}: {error}")
            return
        assert isinstance(store, PartitionReadStore)
        self._timeline.loaded(
            "in the end",
            store._local.pin,
            dict(store.iterator()),
            logged_in=self._timeline.owners.get(version),
        )

    def _look_for_orphans(self) -> None:
        there, named = self._keyspace.segments(self._partition)
        for name in sorted(there - named):
            self._counters["orphans"] += 1
            self._timeline.problem(f"{name} is of no manifest and never expires")
        for name in sorted(named - there):
            if not self._timeline.destroyed:
                self._timeline.problem(f"the manifest names {name}, which is gone")


def _change(
    store: PartitionListStore, rows: dict[str, list[int]], what: str, key: str, n: int
) -> None:
    if what == "p" or what == "u":
        store.put(key, [n])
        rows[key] = [n]
    elif what == "a":
        store.append(key, n)
        rows[key] = [*rows.get(key, []), n]
    else:
        store.remove(key)
        rows.pop(key, None)
