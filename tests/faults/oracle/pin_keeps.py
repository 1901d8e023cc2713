"""Kept versions of a schedule of pins: made, read, renewed and dropped."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.backend.script import script
from redis_state.errors import RedisStateError
from redis_state.protocol import SegmentGoneError
from redis_state.protocol.pins import KEEP, held_commands, pin_all, read_held, unpin_all
from redis_state.store.local.loading import Loader
from redis_state.store.partition_store import PartitionReadStore
from tests.faults.oracle.pin_steps import Naming, drop_name, name_of
from tests.faults.oracle.pin_world import DAY_MS, Node, Pinned

if TYPE_CHECKING:
    from tests.faults.oracle.pin_schedule import PinSchedule

_KEEPS_MAX = 3
_NAME = "before"


@dataclass(eq=False)
class Task:
    """Work of an actor.

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


class Keeps:
    """Kept versions of all checkpoints.

    Args:
        schedule: The schedule that they belong to.
    """

    def __init__(self, schedule: PinSchedule) -> None:
        self._schedule = schedule
        self._world, self._dice = schedule.world, schedule.dice
        self._calls = 0

    def give_name(self, node: Node) -> None:
        """Two calls with one name, or one that drops it."""
        seen = node.seen
        opened = max(1, seen.number("o"))
        if not node.newest:
            return
        drops = self._dice.one_in(4)
        for _ in range(1 if drops else self._dice.between(1, 2)):
            self._calls += 1
            version = self._dice.between(max(1, seen.number("w")), opened)
            self._start_naming(node, _NAME, version, f"{self._calls:08x}", drops=drops)

    def _start_naming(self, node: Node, name: str, version: int, call: str, *, drops: bool) -> None:
        is_cut = self._dice.one_in(4)

        def body() -> None:
            client = self._schedule.new_client()
            with suppress(RedisStateError):
                if drops:
                    drop_name(client, node.id, name)
                    return
                naming = Naming(client, node.id, name, call, version)
                disturbed = node.disturbed
                if is_cut:
                    pin_all(client, [node.id], naming.owner, version, kind=KEEP)
                elif naming.run() and node.disturbed == disturbed and node.life == "live":
                    self._schedule.counters["names given"] += 1
                    self._given(node, naming)

        self._schedule.start(Task(node, "naming", disturbed=node.disturbed), body)

    def _given(self, node: Node, naming: Naming) -> None:
        query, field = keys.query(node.gen), f"keep:{naming.name}"
        (raw,) = self._world.ask(("HGET", query, field))
        if raw is not None and json.loads(raw)["owner"] == naming.owner:
            self._world.names[node.gen, naming.name] = naming.owner
            self._world.look()
            self._world.judge()

    def end_names(self, node: Node) -> None:
        """Drops the names of a checkpoint past all faults."""
        drop_name(self._schedule.client, node.id, _NAME)

    def make(self, node: Node) -> None:
        seen = node.seen
        version = self._dice.between(max(1, seen.number("w")), max(1, seen.number("l")))
        owner = f"keep.{self._dice.below(_KEEPS_MAX)}"
        if not node.newest:
            return
        if (node.gen, owner) in self._world.keeps:
            version = self._world.keeps[node.gen, owner].version
        ttl_ms = self._dice.choice([0, DAY_MS])

        def body() -> None:
            with suppress(RedisStateError):
                client = self._schedule.new_client()
                pin_all(client, [node.id], owner, version, kind=KEEP, ttl_ms=ttl_ms)

        self._schedule.start(Task(node, "keep", disturbed=node.disturbed), body)

    def renew_expired(self, node: Node) -> None:
        """Keeps expired versions once more before maintenance ends their pins."""
        now_ms = time_ms(self._world.ask(("TIME",))[0])
        for owner, pin in node.seen.pins.items():
            is_expired = (
                pin.kind == KEEP
                and not name_of(owner)
                and 0 < pin.expires <= now_ms
                and node.life == "live"
            )
            if is_expired and self._dice.one_in(4):
                args = (owner, KEEP, str(pin.version), "", "0")
                self._schedule.network.exchange([script("pin").by_text([node.meta], *args)])

    def use(self) -> None:
        """Reads a kept version, or drops it."""
        kept = [(at, pin) for at, pin in self._world.keeps.items() if not name_of(at[1])]
        if not kept:
            return
        (gen, owner), pin = self._dice.choice(kept)
        node = self._world.of(gen)
        if node is None or node.life != "live":
            return
        drops, copies = self._dice.one_in(3), self._dice.one_in(2)

        def body() -> None:
            client = self._schedule.new_client()
            if drops:
                if copies:
                    self._world.copy(node)
                unpin_all(client, [node.id], owner)
            elif self._world.keeps.get((gen, owner)) == pin:
                self._read(node, client, owner, pin)

        self._schedule.start(Task(node, "reading of a keep", disturbed=node.disturbed), body)
        if drops:
            self._schedule.maintain(node)

    def _read(self, node: Node, client: Client, owner: str, pin: Pinned) -> None:
        (reply,) = client.call("reading", held_commands([node.id], owner))
        opened = None
        with suppress(RedisStateError):
            opened = read_held(node.id, reply)
        is_kept = self._world.keeps.get((node.gen, owner)) == pin and node.life == "live"
        if opened is None:
            if is_kept:
                self._world.problems.append(f"{node.name}: {owner} cannot be read: {reply}")
            return
        try:
            local = Loader(self._schedule.partition(node), where=owner)._load(opened, None)
        except SegmentGoneError as error:
            if self._world.keeps.get((node.gen, owner)) == pin and node.life == "live":
                self._world.problems.append(f"{node.name}: {error} of {owner} is gone")
            return
        provider = self._schedule.provider(node, self._schedule.runs[node], keeps=True)
        store = PartitionReadStore(provider._partition, provider._codec, local)
        self._schedule.counters["kept versions read"] += 1
        self._schedule.compare(owner, opened.pin, dict(store.iterator()))
