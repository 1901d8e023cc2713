"""One schedule of pins: kept versions, forks, forks of forks, and what goes on beside them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.backend.transport import Transport
from redis_state.errors import Kind, RedisStateError
from redis_state.ids import Pin, StateStoreId, StateStoreProviderId
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.orphans import sweep_orphans
from redis_state.protocol import PartitionClient, RegisteredRun, register_run
from redis_state.store.partition_store import PartitionStore
from redis_state.store.provider import StateStoreProvider
from tests.faults.oracle.by_uid import FormatTwo, UidClient, asking
from tests.faults.oracle.clock import StepClock
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.network import Actor, Network
from tests.faults.oracle.pin_ending import RETAINED, PinEnding
from tests.faults.oracle.pin_keeps import Keeps, Task
from tests.faults.oracle.pin_late import LateCalls
from tests.faults.oracle.pin_steps import Fork, PinMaintenance
from tests.faults.oracle.pin_watch import PinWatch
from tests.faults.oracle.pin_world import DAY_MS, Node, World

_STEPS = 260
_ACTORS_MAX = 4
_FORKS_MAX = 3
_KEYS = 5
_ROOT = "oracle"
_HOUR_MS = 3_600_000
Rows = dict[str, int]


class PinSchedule:
    """Runs on a server that holds nothing else.

    Args:
        seed: Decides everything but times.

    Attributes:
        steps: Turns before the end.
    """

    steps = _STEPS

    def __init__(self, seed: int, server: Transport, url: str, counters: Counter[str]) -> None:
        self.dice = Dice(seed)
        self.counters = counters
        self.steps = _STEPS
        self._config = options.parse(
            {"url": url, "versionsToRetain": RETAINED, "deadline": "1s", "connectionsMax": 2}
        )
        self.world = self.new_world(server)
        self.watch = PinWatch(self.world, counters)
        self.network = Network(self.dice, server, counters, self.watch)
        self.client = self.new_client()
        self.tasks: dict[Actor, Task] = {}
        self._contents: dict[str, Rows] = {"-": {}}
        self._writers: dict[str, str] = {}
        self.runs: dict[Node, RegisteredRun] = {}
        self._providers: dict[tuple[Node, str], StateStoreProvider] = {}
        self.notes: dict[tuple[str, str], int] = {}
        self._wanted: dict[Node, Pin] = {}
        self._logged_by: dict[str, str] = {}
        self.keeps, self._late = Keeps(self), LateCalls(self)
        server.exchange([("FLUSHDB",)])
        self._root = self._new_node(_ROOT, None)
        self._root.format = 2 if self.dice.one_in(3) else 1
        self.restart(self._root, 0)

    @property
    def problems(self) -> list[str]:
        """Rules that were broken."""
        return self.world.problems

    def run(self) -> None:
        """Until everybody is done, or something went wrong."""
        self.play()

    def play(self) -> None:
        """Plays the steps of the schedule, then its end."""
        for _ in range(self.steps):
            if len(self.network.actors) < _ACTORS_MAX and self.dice.one_in(3):
                self._start_something()
            self._accident(self.dice.below(120))
            planned, self.watch.planned = self.watch.planned, None
            if planned is not None:
                self.keeps.renew_expired(planned)
            free = planned is not None and planned.seen.has_free
            if planned is not None and planned.copied and self.dice.one_in(2 if free else 8):
                self._fail_over(planned)
            self.step()
            if self.problems:
                return
            if self._root.life == "gone":
                break
        self.end()

    def new_world(self, server: Transport) -> World:
        """Returns the world that the rules are about."""
        return World(server)

    def end(self) -> None:
        """Judges what is left."""
        PinEnding(self).run()

    # ---- what goes on --------------------------------------------------------------------------

    def step(self) -> None:
        actor = self.network.step()
        task = None if actor is None else self.tasks.pop(actor, None)
        self.begin_forks()
        if actor is None or task is None or actor.failure is None:
            return
        error = actor.failure
        if not isinstance(error, RedisStateError):
            self.problems.append(f"{task.of} of {task.at.name}: {type(error).__name__}: {error}")
            return
        self.counters[str(error.kind)] += 1
        self._failed(task, error)

    def begin_forks(self) -> None:
        """Starts the drivers of forks that can be used now."""
        while self.watch.usable:
            node = self.watch.usable.pop()
            self.resync(node)
            self.counters["forks of forks"] += node.parent is not self._root

    def _failed(self, task: Task, error: RedisStateError) -> None:
        at = task.at
        if at.life == "gone" or at.life == "lost" or at.disturbed != task.disturbed:
            return
        is_current = at in self.runs and task.run == self.runs[at].run_id
        if task.alone:
            self.problems.append(f"{task.of} of {at.name}, alone: {error}")
        elif task.of == "attempt" and not is_current:
            return
        elif error.kind is Kind.STATE_LOST and task.of in ("attempt", "reading of a keep"):
            self.counters["false lost"] += 1
            self.problems.append(f"{task.of} of {at.name}: {error}")
        elif error.kind is Kind.VERSION_EXPIRED and task.of == "attempt":
            self.resync(at)  # a rewind that came too late

    def _start_something(self) -> None:
        live = self._live()
        chance = self.dice.below(32)
        if chance >= 30 or not live:
            self._purge_or_recall(self.dice.choice(self.world.nodes))
            return
        node = self.dice.choice(live)
        if chance < 12:
            for _ in range(self.dice.choice([1, 1, 2])):
                self.attempt(node)
        elif chance < 19:
            self.maintain(node, retained=0 if self.dice.one_in(3) else None)
        elif chance < 22:
            self.restart(node, self.dice.choice([0, 0, 1, 2, 3, node.newest]))
            self.attempt(node)
        elif chance < 23:
            self.keeps.make(node)
        elif chance < 24:
            self.keeps.give_name(node)
        elif chance < 26:
            self.keeps.use()
        else:
            self._fork(node)

    def _accident(self, chance: int) -> None:
        forks = any(task.of == "fork" for task in self.tasks.values())
        if chance == 0 or (forks and chance < 4):
            self._pass_by(self.dice.between(5, 27) * _HOUR_MS)
        elif chance < 6:
            self._late.expire_one()
        elif chance < 14:
            self._late.repeat(self.dice.choice(self.world.nodes))
        elif chance < 16:
            self.world.copy(self.dice.choice(self.world.nodes))
        elif chance == 16:
            self._fail_over(self.dice.choice(self.world.nodes))

    def _pass_by(self, ms: int) -> None:
        """Everybody but the commands of forks comes to an end before."""
        self.network.flush()
        while not self.problems and any(map(self._is_waited_for, self._at_work())):
            self.step()
        for node in self.world.nodes:
            if node.life == "purged" and not self.dice.one_in(4):
                self.recall(node)
        self.counters["days"] += 1
        self.world.pass_by(ms)
        self.age_notes(ms)
        for node in self.world.nodes:
            node.disturbed += node.life in ("gone", "lost")
        self.world.judge()
        live = self._live()
        if live and self.dice.one_in(2):
            node = self.dice.choice(live)
            for _ in range(2):
                self.maintain(node, retained=0)

    def _live(self) -> list[Node]:
        """Returns the nodes whose drivers run."""
        return [one for one in self.world.nodes if one.life == "live" and one in self.runs]

    def _at_work(self) -> list[Task]:
        return [self.tasks[actor] for actor in self.network.actors]

    def _is_waited_for(self, task: Task) -> bool:
        """Returns whether work comes to its end before a day goes by."""
        return task.of != "fork"

    def age_notes(self, ms: int) -> None:
        """Makes the notes of maintenance so much older."""
        for at in self.notes:
            self.notes[at] -= ms

    def _fail_over(self, node: Node) -> None:
        if self.world.fail_over(node):
            self.counters["fail-overs"] += 1
            if node.life == "live":
                self.resync(node)
            else:
                self._kill(node)
            self.world.judge()

    # ---- the driver ----------------------------------------------------------------------------

    def _new_node(self, name: str, parent: Node | None) -> Node:
        gen = uuid.uuid4().hex
        id_ = StateStoreId(name, 0, 0).partition(gen)
        node = Node(id_, name, parent, life="live" if parent is None else "new")
        self.world.nodes.append(node)
        self.world.ask(("HSET", keys.names(), keys.name_field(name), gen))
        return node

    def restart(self, node: Node, back: int) -> None:
        """A new run goes on from a logged version; attempts of earlier runs go on as zombies."""
        self.counters["rewinds"] += back > 0
        floor = node.seen.number("w")
        newest = max(node.newest - back, min(floor, node.newest))
        node.log = {at: uid for at, uid in node.log.items() if at <= newest}
        run_id = f"run-{len(self.runs)}-{uuid.uuid4().hex[:12]}"
        self.runs[node] = register_run(self.client, node.gen, run_id, by_driver=True)
        # The driver has described its stores.
        self.world.ask(("PERSIST", node.query))

    def resync(self, node: Node) -> None:
        """The driver goes on from what there is, as after a rewind by hand.

        Nothing lives of the runs that began with a rewind which is given up (docs/reliability.md,
        "What is not promised").
        """
        self._kill(node, of="attempt")
        self.world.look()
        seen = node.seen
        node.log, at, uid = {}, seen.number("o"), seen.fields.get("ou", "-")
        while at > 0:
            node.log[at] = uid
            self._logged_by[uid] = self._writers.get(uid, "")
            below = seen.named.get(f"d:{at}:{uid}")
            if below is None:
                break
            at, uid = at - 1, below.entry.ref
        self.restart(node, 0)

    def _kill(self, node: Node, *, of: str = "") -> None:
        for actor, task in self.tasks.items():
            actor.killed |= task.at is node and of in (task.of, "")
        self.network.flush()

    def attempt(self, node: Node, *, alone: bool = False) -> None:
        run, version = self.runs[node], node.newest
        asked = Pin(version, node.log[version]) if node.format == 2 and version else None
        changes = [
            (f"k{self.dice.below(_KEYS)}", self.dice.below(3))
            for _ in range(self.dice.between(1, 3))
        ]
        gives_up = not alone and self.dice.one_in(12)
        aborts, keeps = self.dice.one_in(2), self.dice.one_in(2)

        def body() -> None:
            store = self.provider(node, run, keeps=keeps).get_store(version)
            assert isinstance(store, PartitionStore)
            rows = dict(store.iterator())
            self.compare(f"attempt of {node.name}", store._local.pin, rows)
            self._is_logged(node, run.run_id, store._local.pin)
            for key, kind in changes:
                if kind:
                    rows[key] = len(self._contents)
                    store.put(key, rows[key])
                else:
                    rows.pop(key, None)
                    store.remove(key)
            uid = store._uid
            self._contents[uid], self._writers[uid] = rows, run.run_id
            if gives_up:
                store.abort()
                return
            try:
                store.commit()
            except RedisStateError:
                if aborts:
                    store.abort()
                raise
            self.counters["commits"] += 1
            if self.runs[node] is run and node.newest == version:
                node.log[version + 1] = uid
                self._logged_by[uid] = run.run_id

        task = Task(node, "attempt", run.run_id, version, node.disturbed, alone)
        self.start(task, body, asked=asked)

    def _is_logged(self, node: Node, run_id: str, pin: Pin) -> None:
        """Judges the attempt that the driver's run goes on from."""
        logged = node.log.get(pin.version)
        if self.runs[node].run_id != run_id or not pin.version or pin.uid == logged:
            return
        writer = self._writers.get(pin.uid)
        if node.format == 2 or logged is None or writer != self._logged_by.get(logged):
            self.counters["wrong"] += 1
            self.problems.append(f"{node.name}: was given {pin}, the driver logged {logged}")

    def compare(self, who: str, pin: Pin, rows: Rows) -> None:
        self.counters["loads compared"] += 1
        if rows != self._contents.get(pin.uid):
            self.counters["wrong"] += 1
            wanted = self._contents.get(pin.uid)
            self.problems.append(f"{who}: {pin} reads as {rows}, the model has {wanted}")

    def provider(self, node: Node, run: RegisteredRun, *, keeps: bool) -> StateStoreProvider:
        known = self._providers.get((node, run.run_id))
        if known is None or not keeps:
            known = StateStoreProvider(
                StateStoreProviderId(StateStoreId(node.name, 0, 0), run.run_id),
                config=self._config,
                run=run,
                client=self.new_client(),
            )
            self._providers[node, run.run_id] = known
        return known

    # ---- who acts ------------------------------------------------------------------------------

    def start(self, task: Task, body: Callable[[], None], *, asked: Pin | None = None) -> None:
        format_ = task.at.format

        def asks() -> None:
            with asking(format_, asked):
                body()

        self.tasks[self.network.start(f"{task.of} of {task.at.name}", asks, writes=True)] = task

    def maintain(self, node: Node, *, retained: int | None = None, alone: bool = False) -> None:
        """Maintenance from another process, which may write a snapshot and then drop all else."""
        snapshots = retained is not None or alone or self.dice.one_in(2)
        sweeps, copies = self.dice.one_in(6), self.dice.one_in(6)

        def body() -> None:
            partition = self.partition(node)
            opened = partition.open("", None)
            if copies:
                self.world.copy(node)
            if snapshots and opened.segments and not opened.segments[0].snapshot:
                self.counters["snapshots"] += add_snapshot(partition, opened) is not None
            partition.retain()
            PinMaintenance(self.new_client(), node.id, self.notes).run()
            if sweeps:
                sweep_orphans(self.new_client())

        self.start(Task(node, "maintenance", disturbed=node.disturbed, alone=alone), body)

    def _fork(self, parent: Node) -> None:
        """A new fork, or the command of one that was interrupted once more."""
        begun = [node for node in self.world.nodes if node.life == "new"]
        if begun and self.dice.one_in(2):
            node = self.dice.choice(begun)
        elif len(self.world.nodes) <= _FORKS_MAX and parent.newest:
            seen = parent.seen
            opened, floor = seen.number("o"), seen.number("w")
            some = [at for at in parent.log if floor <= at <= max(opened, 1)]
            if not some:
                return
            version = self.dice.choice(some)
            node = self._new_node(f"fork-{len(self.world.nodes)}", parent)
            node.format = parent.format
            self._wanted[node] = Pin(version, parent.log[version])
        else:
            return
        assert node.parent is not None
        if node in self.runs or (node.log and not self.world.ask(("EXISTS", node.query))[0]):
            return  # its query expired before it was complete
        pin, parent = self._wanted[node], node.parent
        node.log = {pin.version: pin.uid}

        def wait() -> None:
            self.world.copy(parent)

        def body() -> None:
            client = self.new_client()
            Fork(client, parent.id, node.gen, pin.version, pin.uid, wait).run()

        self.start(Task(node, "fork", disturbed=node.disturbed), body)
        self.network.actors[-1].slow = self.dice.one_in(2)

    def _purge_or_recall(self, node: Node) -> None:
        if node.life == "purged":
            self.recall(node)
        elif node.life == "live" and node.seen.fields:
            force = "1" if self.dice.one_in(4) else ""
            command = script("purge").by_text([node.meta], str(DAY_MS), node.gen, force)
            self.network.exchange([command])

    def recall(self, node: Node) -> None:
        self.network.exchange([script("recall").by_text([node.meta])])

    def new_client(self) -> Client:
        return Client(self._config, clock=StepClock(), connect=self.network.connect)

    def partition(self, node: Node) -> PartitionClient:
        kind = FormatTwo if node.format == 2 else UidClient
        return kind(self.new_client(), node.id, versions_to_retain=RETAINED)
