"""One schedule of pins: kept versions, forks, forks of forks, and what goes on beside them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.backend.script import Command, script
from redis_state.backend.transport import Transport
from redis_state.errors import Kind, RedisStateError
from redis_state.ids import Pin, StateStoreId, StateStoreProviderId
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.orphans import sweep_orphans
from redis_state.protocol import PartitionClient, RegisteredRun, SegmentGoneError, register_run
from redis_state.protocol.pins import KEEP, held_commands, pin_all, read_held, unpin_all
from redis_state.store.local.loading import Loader
from redis_state.store.partition_store import PartitionReadStore, PartitionStore
from redis_state.store.provider import StateStoreProvider
from tests.faults.oracle.by_uid import FormatTwo, UidClient, asking
from tests.faults.oracle.clock import StepClock
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.network import Actor, Network
from tests.faults.oracle.pin_steps import Fork, PinMaintenance
from tests.faults.oracle.pin_world import DAY_MS, PIN_FIELDS, Node, Pinned, Seen, World
from tests.faults.oracle.wire import Ran, scripts_in

_STEPS = 260
_ACTORS_MAX = 4
_FORKS_MAX = 3
_KEEPS_MAX = 3
_KEYS = 5
_RETAINED = 2
_ROUNDS_MAX = 10
_ROOT = "oracle"
_HOUR_MS = 3_600_000
_READ_ONLY = ("open", "held", "register")
_UNKNOWN = (Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN)
_OLD_ORPHAN = """
if redis.call('PTTL', KEYS[2]) ~= -1 then return {'EXPIRES'} end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return {'NAMED'} end
local version, writer = string.match(ARGV[1], '^s:(%d+):(.+)$')
local all = version and redis.call('HGETALL', KEYS[1]) or {}
for i = 1, #all, 2 do
  local same = string.match(all[i], '^s:(%d+):') == version
  if same and string.match(all[i + 1], '^%S+') == writer then return {'NAMED'} end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'OK'}
"""
"""The script of a release that knows only format 1."""

Rows = dict[str, int]


@dataclass(eq=False)
class Task:
    """What an actor does.

    Attributes:
        of: ``attempt``, ``maintenance``, ``fork`` and so on.
        run: The run of an attempt.
        disturbed: As the checkpoint's when it began.
        alone: Whether it may not fail at all.
    """

    at: Node
    of: str
    run: str = ""
    version: int = 0
    disturbed: int = 0
    alone: bool = False


class PinSchedule:
    """Runs on a server that holds nothing else.

    Args:
        seed: Decides everything but times.
    """

    def __init__(self, seed: int, server: Transport, url: str, counters: Counter[str]) -> None:
        self._dice = Dice(seed)
        self._counters = counters
        self._config = options.parse(
            {"url": url, "versionsToRetain": _RETAINED, "deadline": "1s", "connectionsMax": 2}
        )
        self.network = Network(self._dice, server, counters, self._watch)
        self.world = World(server)
        self._client = self._new_client()
        self._tasks: dict[Actor, Task] = {}
        self._contents: dict[str, Rows] = {"-": {}}
        self._writers: dict[str, str] = {}
        self._runs: dict[Node, RegisteredRun] = {}
        self._providers: dict[tuple[Node, str], StateStoreProvider] = {}
        self._notes: dict[tuple[str, str], int] = {}
        self._sent: dict[str, list[Ran]] = {}
        self._wanted: dict[Node, Pin] = {}
        self._logged_by: dict[str, str] = {}
        self._usable: list[Node] = []
        server.exchange([("FLUSHDB",)])
        self._root = self._new_node(_ROOT, None)
        self._root.format = 2 if self._dice.one_in(3) else 1
        self._restart(self._root, 0)

    @property
    def problems(self) -> list[str]:
        """Rules that were broken."""
        return self.world.problems

    def run(self) -> None:
        """Until everybody is done, or something went wrong."""
        for _ in range(_STEPS):
            if len(self.network.actors) < _ACTORS_MAX and self._dice.one_in(3):
                self._start_something()
            self._accident(self._dice.below(120))
            self._step()
            if self.problems:
                return
            if self._root.life == "gone":
                break
        self._end()

    # ---- what goes on --------------------------------------------------------------------------

    def _step(self) -> None:
        actor = self.network.step()
        task = None if actor is None else self._tasks.pop(actor, None)
        while self._usable:
            node = self._usable.pop()
            self._resync(node)
            self._counters["forks of forks"] += node.parent is not self._root
        if actor is None or task is None or actor.failure is None:
            return
        error = actor.failure
        if not isinstance(error, RedisStateError):
            self.problems.append(f"{task.of} of {task.at.name}: {type(error).__name__}: {error}")
            return
        self._counters[str(error.kind)] += 1
        self._failed(task, error)

    def _failed(self, task: Task, error: RedisStateError) -> None:
        at = task.at
        if at.life == "gone" or at.life == "lost" or at.disturbed != task.disturbed:
            return
        is_current = at in self._runs and task.run == self._runs[at].run_id
        if task.alone:
            self.problems.append(f"{task.of} of {at.name}, alone: {error}")
        elif task.of == "attempt" and not is_current:
            return
        elif error.kind is Kind.STATE_LOST and task.of in ("attempt", "reading of a keep"):
            self._counters["false lost"] += 1
            self.problems.append(f"{task.of} of {at.name}: {error}")
        elif error.kind is Kind.VERSION_EXPIRED and task.of == "attempt":
            self._resync(at)  # a rewind that came too late

    def _start_something(self) -> None:
        live = [one for one in self.world.nodes if one.life == "live" and one in self._runs]
        chance = self._dice.below(32)
        if chance >= 30 or not live:
            self._purge_or_recall(self._dice.choice(self.world.nodes))
            return
        node = self._dice.choice(live)
        if chance < 12:
            for _ in range(self._dice.choice([1, 1, 2])):
                self._attempt(node)
        elif chance < 19:
            self._maintain(node, retained=0 if self._dice.one_in(3) else None)
        elif chance < 22:
            self._restart(node, self._dice.choice([0, 0, 1, 2, 3, node.newest]))
            self._attempt(node)
        elif chance < 24:
            self._keep(node)
        elif chance < 26:
            self._use_keep()
        else:
            self._fork(node)

    def _accident(self, chance: int) -> None:
        if chance == 0:
            self._pass_by(self._dice.between(5, 27) * _HOUR_MS)
        elif chance < 4:
            self._expire_one()
        elif chance < 8:
            self._repeat_late(self._dice.choice(self.world.nodes))
        elif chance < 10:
            self.world.copy(self._dice.choice(self.world.nodes))
        elif chance == 10:
            self._fail_over(self._dice.choice(self.world.nodes))

    def _pass_by(self, ms: int) -> None:
        """Everybody but the commands of forks comes to an end before."""
        self.network.flush()
        while any(self._tasks[a].of != "fork" for a in self.network.actors) and not self.problems:
            self._step()
        for node in self.world.nodes:
            if node.life == "purged" and not self._dice.one_in(4):
                self._recall(node)
        self._counters["days"] += 1
        self.world.pass_by(ms)
        self._notes = {at: noted - ms for at, noted in self._notes.items()}
        for node in self.world.nodes:
            node.disturbed += node.life in ("gone", "lost")
        self.world.judge()

    def _expire_one(self) -> None:
        live = [one.meta[:-1].encode() for one in self.world.nodes if one.life == "live"]
        all_names = self.world.ask(("KEYS", "*"))[0]
        names = sorted(n for n in all_names if n.startswith((*live,)) and n[-2:] != b":m")
        lefts = self.world.ask(*(("PTTL", name) for name in names))
        due = [name for name, left in zip(names, lefts, strict=True) if 0 < left <= 2 * DAY_MS]
        if due:
            self._counters["expired"] += 1
            self.world.ask(("DEL", self._dice.choice(due)))

    def _repeat_late(self, node: Node) -> None:
        """A call arrives again, long after its segment was published, or set aside."""
        aside = [keys.segment(node.id, ident) for ident in node.seen.aside]
        known = [one for one in aside if one in self._sent]
        key = self._dice.choice(known) if known else ""
        if not key or node.life != "live":
            return
        ident = key[len(node.meta) - 1 :]
        what = self._dice.choice(["stage", "abort", "again", "again", "orphan"])
        self._counters[
            f"late: {what}" if what in ("again", "orphan") else "late: known segment"
        ] += 1
        both: Sequence[Any] = (node.meta, key)
        if what == "stage":
            command = script("stage").by_text(both, ident, str(DAY_MS))
        elif what == "abort":
            command = script("abort").by_text(both, ident)
        elif what == "orphan":
            command = ("EVAL", _OLD_ORPHAN, "2", *both, ident, str(DAY_MS))
        else:
            ran = self._dice.choice(self._sent[key])
            command = script(ran.name).by_text(ran.keys, *ran.args)
        self.network.exchange([command])

    def _fail_over(self, node: Node) -> None:
        if self.world.fail_over(node):
            self._counters["fail-overs"] += 1
            if node.life == "live":
                self._resync(node)
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

    def _restart(self, node: Node, back: int) -> None:
        """A new run goes on from a logged version; attempts of earlier runs go on as zombies."""
        self._counters["rewinds"] += back > 0
        floor = node.seen.number("w")
        newest = max(node.newest - back, min(floor, node.newest))
        node.log = {at: uid for at, uid in node.log.items() if at <= newest}
        run_id = f"run-{len(self._runs)}-{uuid.uuid4().hex[:12]}"
        self._runs[node] = register_run(self._client, node.gen, run_id, by_driver=True)

    def _resync(self, node: Node) -> None:
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
        self._restart(node, 0)

    def _kill(self, node: Node, *, of: str = "") -> None:
        for actor, task in self._tasks.items():
            actor.killed |= task.at is node and of in (task.of, "")
        self.network.flush()

    def _attempt(self, node: Node, *, alone: bool = False) -> None:
        run, version = self._runs[node], node.newest
        asked = Pin(version, node.log[version]) if node.format == 2 and version else None
        changes = [
            (f"k{self._dice.below(_KEYS)}", self._dice.below(3))
            for _ in range(self._dice.between(1, 3))
        ]
        gives_up = not alone and self._dice.one_in(12)
        aborts, keeps = self._dice.one_in(2), self._dice.one_in(2)

        def body() -> None:
            store = self._provider(node, run, keeps=keeps).get_store(version)
            assert isinstance(store, PartitionStore)
            rows = dict(store.iterator())
            self._compare(f"attempt of {node.name}", store._local.pin, rows)
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
            self._counters["commits"] += 1
            if self._runs[node] is run and node.newest == version:
                node.log[version + 1] = uid
                self._logged_by[uid] = run.run_id

        task = Task(node, "attempt", run.run_id, version, node.disturbed, alone)
        self._start(task, body, asked=asked)

    def _is_logged(self, node: Node, run_id: str, pin: Pin) -> None:
        """What the run of the driver goes on from is what the driver logged."""
        logged = node.log.get(pin.version)
        if self._runs[node].run_id != run_id or not pin.version or pin.uid == logged:
            return
        writer = self._writers.get(pin.uid)
        if node.format == 2 or logged is None or writer != self._logged_by.get(logged):
            self._counters["wrong"] += 1
            self.problems.append(f"{node.name}: was given {pin}, the driver logged {logged}")

    def _compare(self, who: str, pin: Pin, rows: Rows) -> None:
        self._counters["loads compared"] += 1
        if rows != self._contents.get(pin.uid):
            self._counters["wrong"] += 1
            wanted = self._contents.get(pin.uid)
            self.problems.append(f"{who}: {pin} reads as {rows}, the model has {wanted}")

    def _provider(self, node: Node, run: RegisteredRun, *, keeps: bool) -> StateStoreProvider:
        known = self._providers.get((node, run.run_id))
        if known is None or not keeps:
            known = StateStoreProvider(
                StateStoreProviderId(StateStoreId(node.name, 0, 0), run.run_id),
                config=self._config,
                run=run,
                client=self._new_client(),
            )
            self._providers[node, run.run_id] = known
        return known

    # ---- who acts ------------------------------------------------------------------------------

    def _start(self, task: Task, body: Callable[[], None], *, asked: Pin | None = None) -> None:
        format_ = task.at.format

        def asks() -> None:
            with asking(format_, asked):
                body()

        self._tasks[self.network.start(f"{task.of} of {task.at.name}", asks, writes=True)] = task

    def _maintain(self, node: Node, *, retained: int | None = None, alone: bool = False) -> None:
        """Maintenance from another process, which may write a snapshot and then drop all else."""
        snapshots = retained is not None or alone or self._dice.one_in(2)
        sweeps = self._dice.one_in(6)

        def body() -> None:
            partition = self._partition(node)
            opened = partition.open("", None)
            if snapshots and opened.segments and not opened.segments[0].snapshot:
                self._counters["snapshots"] += add_snapshot(partition, opened) is not None
            partition.retain()
            PinMaintenance(self._new_client(), node.id, self._notes).run()
            if sweeps:
                sweep_orphans(self._new_client())

        self._start(Task(node, "maintenance", disturbed=node.disturbed, alone=alone), body)

    def _keep(self, node: Node) -> None:
        seen = node.seen
        version = self._dice.between(max(1, seen.number("w")), max(1, seen.number("l")))
        owner = f"keep.{self._dice.below(_KEEPS_MAX)}"
        if (node.gen, owner) in self.world.keeps or not node.newest:
            return
        ttl_ms = self._dice.choice([0, DAY_MS])

        def body() -> None:
            with suppress(RedisStateError):
                client = self._new_client()
                pin_all(client, [node.id], owner, version, kind=KEEP, ttl_ms=ttl_ms)

        self._start(Task(node, "keep", disturbed=node.disturbed), body)

    def _use_keep(self) -> None:
        """Reads a kept version, or drops it."""
        kept = [(at, pin) for at, pin in self.world.keeps.items()]
        if not kept:
            return
        (gen, owner), pin = self._dice.choice(kept)
        node = self.world.of(gen)
        if node is None or node.life != "live":
            return
        drops = self._dice.one_in(3)

        def body() -> None:
            client = self._new_client()
            if drops:
                unpin_all(client, [node.id], owner)
            elif self.world.keeps.get((gen, owner)) == pin:
                self._read_keep(node, client, owner, pin)

        self._start(Task(node, "reading of a keep", disturbed=node.disturbed), body)

    def _read_keep(self, node: Node, client: Client, owner: str, pin: Pinned) -> None:
        (reply,) = client.call("reading", held_commands([node.id], owner))
        opened = None
        with suppress(RedisStateError):
            opened = read_held(node.id, reply)
        is_kept = self.world.keeps.get((node.gen, owner)) == pin and node.life == "live"
        if opened is None:
            if is_kept:
                self.problems.append(f"{node.name}: {owner} cannot be read: {reply}")
            return
        try:
            local = Loader(self._partition(node), where=owner)._load(opened, None)
        except SegmentGoneError as error:
            if self.world.keeps.get((node.gen, owner)) == pin and node.life == "live":
                self.problems.append(f"{node.name}: {error} of {owner} is gone")
            return
        provider = self._provider(node, self._runs[node], keeps=True)
        store = PartitionReadStore(provider._partition, provider._codec, local)
        self._counters["kept versions read"] += 1
        self._compare(owner, opened.pin, dict(store.iterator()))

    def _fork(self, parent: Node) -> None:
        """A new fork, or the command of one that was interrupted once more."""
        begun = [node for node in self.world.nodes if node.life == "new"]
        if begun and self._dice.one_in(2):
            node = self._dice.choice(begun)
        elif len(self.world.nodes) <= _FORKS_MAX and parent.newest:
            seen = parent.seen
            opened, floor = seen.number("o"), seen.number("w")
            some = [at for at in parent.log if floor <= at <= max(opened, 1)]
            if not some:
                return
            version = self._dice.choice(some)
            node = self._new_node(f"fork-{len(self.world.nodes)}", parent)
            node.format = parent.format
            self._wanted[node] = Pin(version, parent.log[version])
        else:
            return
        assert node.parent is not None
        if node in self._runs or (node.log and not self.world.ask(("EXISTS", node.query))[0]):
            return  # its query expired before it was complete
        pin, parent = self._wanted[node], node.parent
        node.log = {pin.version: pin.uid}

        def wait() -> None:
            self.world.copy(parent)

        def body() -> None:
            client = self._new_client()
            Fork(client, parent.id, node.gen, pin.version, pin.uid, wait).run()

        self._start(Task(node, "fork", disturbed=node.disturbed), body)

    def _purge_or_recall(self, node: Node) -> None:
        if node.life == "purged":
            self._recall(node)
        elif node.life == "live" and node.seen.fields:
            force = "1" if self._dice.one_in(4) else ""
            command = script("purge").by_text([node.meta], str(DAY_MS), node.gen, force)
            self.network.exchange([command])

    def _recall(self, node: Node) -> None:
        self.network.exchange([script("recall").by_text([node.meta])])

    # ---- what is judged ------------------------------------------------------------------------

    def _watch(self, commands: Sequence[Command], replies: list[Any]) -> None:
        all_ran = list(scripts_in(commands, replies))
        aside = {keys.segment(n.id, ident) for n in self.world.nodes for ident in n.seen.aside}
        changed = any(one[0] in ("PERSIST", "EVAL") for one in commands)
        for ran in all_ran:
            self._counters[f"{ran.name}: {ran.outcome}"] += 1
            if ran.name in ("publish", "snapshot", "stage"):
                self._sent.setdefault(ran.keys[1], []).append(ran)
            changed |= ran.name not in _READ_ONLY
            changed |= ran.name in ("stage", "abort") and ran.keys[1] in aside
        if not changed or self.problems:
            return
        before = {node.meta: node.seen for node in self.world.nodes}
        self.world.look()
        for ran in all_ran:
            node = next((one for one in self.world.nodes if one.meta == ran.keys[0]), None)
            if node is not None and ran.word == "OK":
                self._happened(node, ran, before[node.meta])
        for node in self.world.nodes:
            if node.life == "new" and ("PERSIST", node.query) in commands:
                if self.world.ask(("PTTL", node.query)) == [-1]:
                    node.life = "live"
                    self._counters["forks"] += 1
                    self._usable.append(node)
        self.world.judge()

    def _happened(self, node: Node, ran: Ran, before: Seen) -> None:
        if ran.name == "pin":
            owner = ran.args[0]
            pin = node.seen.pins[owner]
            chain = self.world.chain(node, pin.version, pin.uid)
            if owner not in before.pins and list(pin.idents) != chain:
                self.problems.append(f"{node.name}: {pin} is not of {chain}")
            if pin.kind == KEEP:
                self.world.keeps[node.gen, owner] = pin
        elif ran.name == "unpin":
            self.world.keeps.pop((node.gen, ran.args[0]), None)
        elif ran.name == "purge":
            now_ms = time_ms(self.world.ask(("TIME",))[0])
            alive = [who for who, pin in before.pins.items() if not 0 < pin.expires <= now_ms]
            if alive and ran.args[2] != "1":
                self.problems.append(f"{node.name} was purged, though {alive} pin it")
            self._counters["purges"] += 1
            self._counters["purges by force"] += bool(alive)
            node.life, node.copied = "purged", None
            node.disturbed += 1
            self.world.ask(("PEXPIRE", node.query, str(DAY_MS)))
        elif ran.name == "recall":
            self._counters["recalls"] += 1
            if ran.reply[2] != "0":
                self.problems.append(f"{node.name}: {ran.reply[2]} segments are incomplete")
            node.life, node.copied = "live", None
            self.world.ask(("PERSIST", node.query))

    # ---- the end -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Alone and without faults everything works, and nothing is left over."""
        self.network.faults = False
        self.network.end()
        self._tasks.clear()
        self.network.flush()
        for node in self.world.nodes:
            if node.life == "purged":
                self._recall(node)
        for node in self.world.nodes:
            if node in self._usable:
                self._resync(node)
        parents = {one.parent for one in self._living()}
        leaving = [
            one
            for one in self._living()
            if one.parent and one not in parents and self._dice.one_in(2)
        ]
        for number in range(_ROUNDS_MAX):
            if number == 1:
                for gen, owner in sorted(self.world.keeps):
                    node = self.world.of(gen)
                    if node is not None and node.life == "live":
                        unpin_all(self._client, [node.id], owner)
            self._round(leaving if number == 2 else [])
            if self.problems:
                return
            if number > 1 and not any(n.seen.has_pins for n in self._living()):
                break
        self._judge_end()

    def _living(self) -> list[Node]:
        return [one for one in self.world.nodes if one.life == "live"]

    def _round(self, leaving: Sequence[Node]) -> None:
        for node in self._living():
            if node in leaving:
                command = script("purge").by_text([node.meta], str(DAY_MS), node.gen, "1")
                self.network.exchange([command])
                continue
            # Of several at once the last restart counts.
            newest = node.newest
            self._restart(node, 0)
            for _ in range(_RETAINED + 1):
                self._alone(lambda node=node: self._attempt(node, alone=True))
            if not self.problems and node.newest != newest + _RETAINED + 1:
                self.problems.append(f"{node.name}: its driver got from {newest} to {node.newest}")
            self._alone(lambda node=node: self._maintain(node, alone=True))
        if not self.problems:
            self.world.pass_by(26 * _HOUR_MS)
            self._notes = {at: noted - 26 * _HOUR_MS for at, noted in self._notes.items()}
            self.world.judge()

    def _alone(self, begin: Callable[[], None]) -> None:
        if not self.problems:
            begin()
        while self.network.actors and not self.problems:
            self._step()

    def _judge_end(self) -> None:
        """No key is left that nothing names, and the format is 1 again."""
        self.world.look()
        for node in self._living():
            fields = [name for name in node.seen.fields if name == "g" or name[:2] in PIN_FIELDS]
            if fields or node.seen.fields.get("f", "1") != "1":
                self._counters["orphans"] += 1
                format_ = node.seen.fields.get("f")
                self.problems.append(f"{node.name}: in the end format {format_}, {fields}")
        named = {keys.segment(n.id, one.ident) for n in self._living() for one in n.seen.all}
        for name in sorted(one.decode() for one in self.world.ask(("KEYS", "*"))[0]):
            if ("}:d:" in name or "}:s:" in name) and name not in named:
                if self.world.ask(("PTTL", name)) == [-1]:
                    self._counters["orphans"] += 1
                    self.problems.append(f"{name} is of no manifest and never expires")

    def _new_client(self) -> Client:
        return Client(self._config, clock=StepClock(), connect=self.network.connect)

    def _partition(self, node: Node) -> PartitionClient:
        kind = FormatTwo if node.format == 2 else UidClient
        return kind(self._new_client(), node.id, versions_to_retain=_RETAINED)
