"""Calls that arrive again, keys that expire, and maintenance of an older release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis_state import keys
from redis_state.backend.script import script
from tests.faults.oracle.pin_world import DAY_MS, Node

if TYPE_CHECKING:
    from tests.faults.oracle.pin_schedule import PinSchedule

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


class LateCalls:
    """Accidents of segments.

    Args:
        schedule: The schedule that they happen in.
    """

    def __init__(self, schedule: PinSchedule) -> None:
        self._schedule = schedule
        self._world, self._dice = schedule.world, schedule.dice

    def repeat(self, node: Node) -> None:
        """A call arrives again, long after its segment was published, or set aside."""
        aside = [keys.segment(node.id, ident) for ident in node.seen.aside]
        known = [one for one in aside if one in self._schedule.watch.sent]
        key = self._dice.choice(known) if known else ""
        if not key or node.life != "live":
            return
        ident = key[len(node.meta) - 1 :]
        what = self._dice.choice(["stage", "abort", "again", "again", "orphan"])
        self._schedule.counters[
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
            all_ran = self._schedule.watch.sent[key]
            ran = self._dice.choice([one for one in all_ran if one.name != "stage"] or all_ran)
            command = script(ran.name).by_text(ran.keys, *ran.args)
        self._schedule.network.exchange([command])

    def expire_one(self) -> None:
        """A key of a segment that nobody publishes, or that was dropped, expires."""
        live = [one.meta[:-1].encode() for one in self._world.nodes if one.life == "live"]
        all_names = self._world.ask(("KEYS", "*"))[0]
        names = sorted(n for n in all_names if n.startswith((*live,)) and n[-2:] != b":m")
        lefts = self._world.ask(*(("PTTL", name) for name in names))
        due = [name for name, left in zip(names, lefts, strict=True) if 0 < left <= 2 * DAY_MS]
        if due:
            self._schedule.counters["expired"] += 1
            self._world.ask(("DEL", self._dice.choice(due)))
