"""One schedule of purges and recalls beside programs that start, run batches and list stores."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.backend.transport import Transport
from redis_state.errors import Kind, RedisStateError
from redis_state.ids import DEFAULT_STORE, PartitionId, StoreId
from redis_state.maintain.recall import expire, recall
from redis_state.protocol import (
    NamedStore,
    confirm_checkpoint,
    register_run,
    renew_checkpoint,
)
from redis_state.protocol.runs import PURGED_FIELD, keep_checkpoint
from redis_state.recovery.query_state import stores_of
from tests.contract.query_scene import Batches, Processors, Store
from tests.faults.oracle.clock import StepClock
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.network import Actor, Network
from tests.faults.oracle.wire import scripts_in

_STEPS = 260
_ACTORS_MAX = 4
_REST_EVERY = 45
_SLEEP_MAX = 30
_OPERATOR = 0
_PARTITIONS = 2
_RETAINED = 5
_UNKNOWN = (Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN)
_SETTING = "setting batches to where they are"
_MARK = PURGED_FIELD.encode()


@dataclass(frozen=True)
class Seen:
    """Contents of a query's hash after a delivery.

    Attributes:
        lasts: Whether the hash has no expiry.
    """

    fields: Mapping[bytes, bytes] = field(default_factory=dict)
    lasts: bool = True

    @property
    def purged(self) -> bool:
        """True if the query is marked as purged."""
        return _MARK in self.fields


@dataclass(eq=False)
class Checkpoint:
    """A store and what happened to it.

    Attributes:
        logged: Number of batches that are done.
        settled: Whether the last purge or recall went to its end.
        tears: How many programs ended between two steps, which nobody carries on.
        torn: Whether what one of them left may still be there.
        unlisted: Whether it may be that nobody has listed it.
        set_back: Whether the next batch needs a start: frames of before are known.
    """

    store: Store
    gen: str
    logged: int = 0
    settled: bool = True
    tears: int = 0
    torn: bool = False
    unlisted: bool = False
    set_back: bool = False
    seen: Seen = field(default_factory=Seen)

    @property
    def query(self) -> str:
        """Key of the registry."""
        return keys.query(self.gen)

    @property
    def entries(self) -> set[str]:
        """Its fields in the list of checkpoints."""
        return {self.gen, f"{self.gen}:{_OPERATOR}:{DEFAULT_STORE}"}


@dataclass(eq=False)
class Deed:
    """Operation of one actor.

    Attributes:
        of: ``batch``, ``purge``, ``recall`` or the name of another way to write the registry.
        met: Whether the checkpoint was marked as purged at any time since the start.
        tears: Tears of the checkpoint when the operation began.
    """

    at: Checkpoint
    of: str
    met: bool
    tears: int


class PurgeSchedule:
    """Runs on a server that holds nothing else.

    Args:
        seed: Decides everything but times.
    """

    def __init__(self, seed: int, server: Transport, url: str, counters: Counter[str]) -> None:
        self._dice = Dice(seed)
        self._server = server
        self._counters = counters
        self._config = options.parse(
            {"url": url, "versionsToRetain": _RETAINED, "deadline": "1s", "connectionsMax": 2}
        )
        # A request that comes late would purge what was called back long ago.
        self.network = Network(self._dice, server, counters, self._watch, late=False)
        self._client = Client(self._config, clock=StepClock(), connect=self.network.connect)
        self._server.exchange([("FLUSHDB",)])
        self.problems: list[str] = []
        self._deeds: dict[Actor, Deed] = {}
        self._rests = False
        self._all: list[Checkpoint] = []
        for kind in (Processors, Batches):
            store = kind(self._client, self._config, partitions=_PARTITIONS)
            store.start()
            store.run(0, "1000", _text)
            made = Checkpoint(store, store.gen, logged=1)
            self._look([made])
            self._all.append(made)

    def run(self) -> None:
        """Until everybody is done, or something went wrong."""
        for step in range(_STEPS):
            if len(self.network.actors) < _ACTORS_MAX and self._dice.one_in(3):
                self._start_something()
            self._step()
            if self._rests or step % _REST_EVERY == _REST_EVERY - 1:
                self._rest()
                self._race(self._dice.choice(self._all))
            if self.problems:
                return
        self._rest()
        self._end()

    # ---- what goes on --------------------------------------------------------------------------

    def _step(self) -> None:
        actor = self.network.step()
        deed = None if actor is None else self._deeds.pop(actor, None)
        if actor is None or deed is None:
            return
        error = actor.failure
        at = deed.at
        if error is not None and not isinstance(error, RedisStateError):
            self.problems.append(f"{deed.of}: {type(error).__name__}: {error}")
        elif error is not None or actor.killed:
            self._ended_badly(deed, error)
        elif deed.of in ("purge", "recall"):
            at.settled = True
            self._counters["recalls" if deed.of == "recall" else "purges"] += 1
            # What programs that slept do then is not made up for by others.
            self._rests = deed.of == "recall" and self._dice.one_in(2)
        elif deed.of == "listing":
            at.unlisted = False
        if error is None and not actor.killed and not self._busy(at):
            # It took the entry off, or made it anew.
            at.torn &= deed.of not in ("purge", "batch") or deed.tears < at.tears

    def _ended_badly(self, deed: Deed, error: RedisStateError | None) -> None:
        if error is None or error.kind in _UNKNOWN:
            if deed.of not in ("purge", "recall"):
                deed.at.torn = True
                deed.at.tears += 1
        elif deed.met and "purged" in str(error):
            self._counters["refused by a purge's name"] += 1
        elif error.kind is not Kind.FENCED:
            self.problems.append(f"{deed.of}: {error}")

    def _busy(self, at: Checkpoint) -> bool:
        return any(one.at is at for one in self._deeds.values())

    def _rest(self) -> None:
        self._rests = False
        while self.network.actors and not self.problems:
            self._step()
        if not self.problems:
            for at in self._all:
                self._judge(at)

    def _start_something(self) -> None:
        at = self._dice.choice(self._all)
        chance = self._dice.below(10)
        under_way = {one.of for one in self._deeds.values() if one.at is at}
        if chance < 4:
            if not under_way & {"batch", _SETTING}:
                self._go(at, "batch", lambda: self._batch(at))
        elif chance < 7:
            if not under_way & {"purge", "recall"}:
                self._administer(at)
        else:
            self._stray(at, alone="batch" not in under_way)

    def _administer(self, at: Checkpoint) -> None:
        back = at.seen.purged and not self._dice.one_in(4)
        at.settled = False
        if back:
            self._go(at, "recall", lambda: recall(self._client, at.gen))
        else:
            self._go(at, "purge", lambda: expire(self._client, at.gen))

    def _race(self, at: Checkpoint) -> None:
        """A purge, called back at once or not, beside an entry into the list, and nobody else."""
        if at.seen.purged or self.problems:
            return
        back = self._dice.one_in(2)

        def administer() -> None:
            expire(self._client, at.gen)
            if back:
                recall(self._client, at.gen)

        if self._dice.one_in(2):
            # As before its first batch.
            at.unlisted = True
            self._server.exchange([("HDEL", keys.checkpoints(), *at.entries)])
        lister = self._go(at, "listing", lambda: _list(self._client, at))
        for _ in range(self._dice.below(4)):
            self._step()
        at.settled = False
        admin = self._go(at, "recall" if back else "purge", administer)
        # Now the one, now the other sleeps.
        while self._busy(at) and not self.problems:
            admin.slow = not admin.slow
            lister.slow = not admin.slow
            for _ in range(self._dice.between(1, _SLEEP_MAX if lister.slow else 3)):
                self._step()
        self._rest()

    def _stray(self, at: Checkpoint, *, alone: bool) -> None:
        """Writes the registry in another way, as a start or a process that still runs does.

        Args:
            alone: No batch is under way; batches are set back while none is.
        """
        client, run = self._client, uuid.uuid4().hex
        ways: dict[str, Callable[[], object]] = {
            "registration by a driver": lambda: register_run(client, at.gen, run, by_driver=True),
            "registration by a task": lambda: register_run(client, at.gen, run, by_driver=False),
            "listing": lambda: _list(client, at),
            "renewal": lambda: renew_checkpoint(client, at.gen, keep_ms=0),
            "keeping": lambda: keep_checkpoint(client, at.gen, attempted="keeping a checkpoint"),
        }
        if alone:
            ways[_SETTING] = lambda: _set_batches(client, at)
        # Two exchanges with the list of checkpoints between them: what a purge may meet.
        name = "listing" if self._dice.one_in(2) else self._dice.choice(list(ways))
        self._go(at, name, ways[name])

    def _go(self, at: Checkpoint, of: str, body: Callable[[], object]) -> Actor:
        def does() -> None:
            body()

        actor = self.network.start(f"{of} of {type(at.store).__name__}", does, writes=True)
        self._deeds[actor] = Deed(at, of, at.seen.purged, at.tears)
        return actor

    def _batch(self, at: Checkpoint) -> None:
        if at.set_back or self._dice.one_in(2):
            at.store.start()
            at.set_back = False
        self._run(at)

    def _run(self, at: Checkpoint) -> None:
        at.store.run(at.logged, str(1000 + at.logged), _text)
        at.logged += 1
        self._counters["loads compared"] += 1
        self._counters["commits"] += 1
        if at.store.written != (wanted := at.store.expected(at.logged, _text)):
            self._counters["wrong"] += 1
            self.problems.append(f"wrote {at.store.written}, not {wanted}")

    # ---- what is judged ------------------------------------------------------------------------

    def _watch(self, commands: Sequence[Command], replies: list[Any]) -> None:
        for ran in scripts_in(commands, replies):
            self._counters[f"{ran.name}: {ran.outcome}"] += 1
        before = [at.seen for at in self._all]
        self._look(self._all)
        current = self.network.current
        deed = None if current is None else self._deeds.get(current)
        for at, was in zip(self._all, before, strict=True):
            for one in self._deeds.values():
                one.met |= one.at is at and (was.purged or at.seen.purged)
            own = deed is None or (deed.at is at and deed.of in ("purge", "recall"))
            if deed is not None and was.purged and was != at.seen and not own:
                self.problems.append(f"{deed.of} changed the registry of a purged checkpoint")

    def _look(self, some: Sequence[Checkpoint]) -> None:
        asked: list[Command] = [
            command for at in some for command in (("HGETALL", at.query), ("PTTL", at.query))
        ]
        found = self._server.exchange(asked) if asked else []
        for at, fields, left_ms in zip(some, found[::2], found[1::2], strict=True):
            at.seen = Seen(dict(fields), left_ms == -1)

    def _judge(self, at: Checkpoint) -> None:
        """Nobody does anything."""
        if not at.settled:
            return
        (listed,) = self._server.exchange([("HKEYS", keys.checkpoints())])
        found = {name.decode() for name in listed if name.startswith(at.gen.encode())}
        who = type(at.store).__name__
        if at.seen.purged:
            if at.seen.lasts:
                self.problems.append(f"{who}: a purged checkpoint never expires")
            if found and not at.torn:
                self.problems.append(f"{who}: a purged checkpoint is listed")
            return
        if not at.seen.lasts:
            self.problems.append(f"{who}: a checkpoint in use expires")
        if found != at.entries and not (at.torn or at.unlisted):
            self.problems.append(f"{who}: listed as {found}, not as {at.entries}")
        for number in range(_PARTITIONS):
            self._judge_partition(
                PartitionId(StoreId(at.gen, _OPERATOR, DEFAULT_STORE, ""), number)
            )

    def _judge_partition(self, id_: PartitionId) -> None:
        meta = keys.meta(id_)
        fields, left_ms = self._server.exchange([("HKEYS", meta), ("PTTL", meta)])
        names = [keys.segment(id_, one.decode()) for one in fields if one[:2] in (b"d:", b"s:")]
        lefts = self._server.exchange([("PTTL", name) for name in names]) if names else []
        if [left_ms, *lefts] != [-1] * (1 + len(names)):
            self._counters["orphans"] += 1
            self.problems.append(f"{meta} or what it names expires: {[left_ms, *lefts]}")

    def _end(self) -> None:
        """Alone and without faults everything works."""
        self.network.faults = False
        for at in self._all:
            if self.problems:
                return
            if at.seen.purged:
                recall(self._client, at.gen)
                at.settled = True
            at.store.start()
            self._run(at)
            at.torn = at.unlisted = False
            self._judge(at)


def _text(batch: int) -> str:
    return f"b{batch}"


def _list(client: Client, at: Checkpoint) -> None:
    store = NamedStore(at.store.name, _OPERATOR, DEFAULT_STORE, _PARTITIONS)
    confirm_checkpoint(client, at.gen, store)


def _set_batches(client: Client, at: Checkpoint) -> None:
    at.set_back = True
    for one in stores_of(client, at.gen, tenant=""):
        one.set_to(client, one.newest, tenant="", word="elsewhere")
