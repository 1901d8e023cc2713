"""The end of a schedule of pins: alone and without faults everything works, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.script import script
from redis_state.protocol.pins import unpin_all
from tests.faults.oracle.pin_steps import name_of
from tests.faults.oracle.pin_world import DAY_MS, PIN_FIELDS, Node

if TYPE_CHECKING:
    from tests.faults.oracle.pin_schedule import PinSchedule

RETAINED = 2
"""Versions below the opened one that every run of a schedule wants to keep."""

_ROUNDS_MAX = 10
_ROUND_MS = 26 * 3_600_000


class PinEnding:
    """Final checks of a schedule of pins.

    Args:
        schedule: One that has run.
    """

    def __init__(self, schedule: PinSchedule) -> None:
        self._schedule = schedule
        self._world, self._network = schedule.world, schedule.network
        self._counters, self._dice = schedule.counters, schedule.dice

    def _quiet(self) -> None:
        """Everybody comes to an end, and nothing goes wrong from here on."""
        self._network.faults = False
        self._network.end()
        self._schedule.tasks.clear()
        self._network.flush()
        for node in self._world.nodes:
            if node.life == "purged":
                self._schedule.recall(node)
        self._schedule.begin_forks()

    def run(self) -> None:
        """Alone and without faults everything works, and nothing is left over."""
        self._quiet()
        parents = {one.parent for one in self._living()}
        leaving = [
            one
            for one in self._living()
            if one.parent and one not in parents and self._dice.one_in(2)
        ]
        for number in range(_ROUNDS_MAX):
            if number == 1:
                for node in self._living():
                    self._schedule.keeps.end_names(node)
                for gen, owner in sorted(self._world.keeps):
                    at = self._world.of(gen)
                    if at is not None and at.life == "live" and not name_of(owner):
                        unpin_all(self._schedule.client, [at.id], owner)
            self._round(leaving if number == 2 else [])
            if self._world.problems:
                return
            if number > 1 and not any(n.seen.has_pins for n in self._living()):
                break
        self._judge_end()

    def _living(self) -> list[Node]:
        return [one for one in self._world.nodes if one.life == "live"]

    def _round(self, leaving: Sequence[Node]) -> None:
        for node in self._living():
            if node in leaving:
                command = script("purge").by_text([node.meta], str(DAY_MS), node.gen, "1")
                self._network.exchange([command])
                continue
            if node.newest < node.seen.number("w"):
                self._schedule.resync(node)  # retention was faster than a rewind
            else:
                self._schedule.restart(node, 0)
            newest = node.newest
            for _ in range(RETAINED + 1):
                self._alone(partial(self._schedule.attempt, node, alone=True))
            if not self._world.problems and node.newest != newest + RETAINED + 1:
                found = f"its driver got from {newest} to {node.newest}"
                self._world.problems.append(f"{node.name}: {found}")
            self._alone(partial(self._schedule.maintain, node, alone=True))
        if not self._world.problems:
            self._world.pass_by(_ROUND_MS)
            self._schedule.age_notes(_ROUND_MS)
            self._world.judge()

    def _alone(self, begin: Callable[[], None]) -> None:
        if not self._world.problems:
            begin()
        while self._network.actors and not self._world.problems:
            self._schedule.step()

    def _judge_end(self) -> None:
        """No key is left that nothing names, and the format is 1 again."""
        self._world.look()
        for node in self._living():
            fields = [name for name in node.seen.fields if name == "g" or name[:2] in PIN_FIELDS]
            if fields or node.seen.fields.get("f", "1") != "1":
                self._counters["orphans"] += 1
                format_ = node.seen.fields.get("f")
                self._world.problems.append(f"{node.name}: in the end format {format_}, {fields}")
        there = [node for node in self._world.nodes if node.life != "gone"]
        named = {keys.segment(n.id, one.ident) for n in there for one in n.seen.all}
        for name in sorted(one.decode() for one in self._world.ask(("KEYS", "*"))[0]):
            is_segment = "}:d:" in name or "}:s:" in name
            if is_segment and name not in named and self._world.ask(("PTTL", name)) == [-1]:
                self._counters["orphans"] += 1
                self._world.problems.append(f"{name} is of no manifest and never expires")
