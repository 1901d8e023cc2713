"""Judges what the scripts of pins answer, whoever asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from redis_state import keys
from redis_state.backend.replies import time_ms
from redis_state.backend.script import Command
from redis_state.protocol.pins import KEEP
from tests.faults.oracle.pin_steps import name_of
from tests.faults.oracle.pin_world import DAY_MS, Node, Seen, World
from tests.faults.oracle.wire import Ran, scripts_in

_QUIET = ("open", "held", "register", "describe", "stage", "abort")


class PinWatch:
    """Called after every delivery with its replies.

    Attributes:
        sent: Calls that brought blocks of a segment or published it, by its key.
        usable: Forks whose command is done, and whose driver has not begun.
        planned: The checkpoint whose manifest was read whole last, as maintenance does.
    """

    def __init__(self, world: World, counters: Counter[str]) -> None:
        self._world = world
        self._counters = counters
        self.sent: dict[str, list[Ran]] = {}
        self.usable: list[Node] = []
        self.planned: Node | None = None

    def __call__(self, commands: Sequence[Command], replies: list[Any]) -> None:
        all_ran = list(scripts_in(commands, replies))
        aside = {keys.segment(n.id, ident) for n in self._world.nodes for ident in n.seen.aside}
        changed = any(one[0] == "PERSIST" for one in commands)
        for node in self._world.nodes:
            if commands[0] == ("HGETALL", node.meta):
                self.planned = node
        for ran in all_ran:
            self._counters[f"{ran.name}: {ran.outcome}"] += 1
            if ran.name in ("publish", "snapshot", "stage"):
                self.sent.setdefault(ran.keys[1], []).append(ran)
            changed |= ran.name not in _QUIET
            changed |= ran.name in ("stage", "abort") and ran.keys[1] in aside
        if not changed or self._world.problems:
            return
        before = {node.meta: node.seen for node in self._world.nodes}
        self._world.look()
        for ran in all_ran:
            if ran.word != "OK":
                continue
            if ran.name == "forget":
                name = ran.args[0].removeprefix("keep:")
                self._world.names = {
                    (gen, other): owner
                    for (gen, other), owner in self._world.names.items()
                    if (keys.query(gen), other) != (ran.keys[0], name)
                }
            for node in self._world.nodes:
                if node.meta == ran.keys[0]:
                    self._happened(node, ran, before[node.meta])
        for node in self._world.nodes:
            is_done = node.life == "new" and ("PERSIST", node.query) in commands
            if is_done and self._world.ask(("PTTL", node.query)) == [-1]:
                node.life = "live"
                self._counters["forks"] += 1
                self.usable.append(node)
        self._world.judge()

    def _happened(self, node: Node, ran: Ran, before: Seen) -> None:
        if ran.name == "pin":
            owner = ran.args[0]
            pin = node.seen.pins[owner]
            chain = self._world.chain(node, pin.version, pin.uid)
            if owner not in before.pins and list(pin.idents) != chain:
                self._world.problems.append(f"{node.name}: {pin} is not of {chain}")
            if pin.kind == KEEP:
                self._world.keeps[node.gen, owner] = pin
        elif ran.name == "unpin":
            self._counters["pins of no name that ended"] += bool(
                name_of(ran.args[0]) and ran.args[1]
            )
            self._unpinned(node, ran, before)
        elif ran.name == "purge":
            self._purged(node, ran, before)
        elif ran.name == "recall":
            self._counters["recalls"] += 1
            if ran.reply[2] != "0":
                self._world.problems.append(f"{node.name}: {ran.reply[2]} segments are incomplete")
            node.life, node.copied = "live", None
            self._world.ask(("PERSIST", node.query))

    def _unpinned(self, node: Node, ran: Ran, before: Seen) -> None:
        owner, expires = ran.args[0], ran.args[1]
        self._world.keeps.pop((node.gen, owner), None)
        pin = before.pins[owner]
        if (
            pin.kind == KEEP
            and expires
            and not name_of(owner)
            and not 0 < pin.expires <= self._now_ms()
        ):
            self._world.problems.append(f"{node.name}: {pin} of {owner} was ended before its time")

    def _purged(self, node: Node, ran: Ran, before: Seen) -> None:
        now_ms = self._now_ms()
        alive = [who for who, pin in before.pins.items() if not 0 < pin.expires <= now_ms]
        if alive and ran.args[2] != "1":
            self._world.problems.append(f"{node.name} was purged, though {alive} pin it")
        self._counters["purges"] += 1
        self._counters["purges by force"] += bool(alive)
        node.life, node.copied = "purged", None
        node.disturbed += 1
        self._world.ask(("PEXPIRE", node.query, str(DAY_MS)))

    def _now_ms(self) -> int:
        return time_ms(self._world.ask(("TIME",))[0])
