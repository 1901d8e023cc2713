"""Judges what the scripts of the server answer, whoever asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from redis_state.backend.script import Command
from redis_state.ids import PartitionId, Pin
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.keyspace import Keyspace
from tests.faults.oracle.timeline import Timeline
from tests.faults.oracle.wire import Ran, scripts_in

_LEAVE_BLOCKS = ("OK", "ALREADY", "TAKEN", "REOPEN")


class Watch:
    """Called after every delivery with its replies.

    Attributes:
        unregistered: Runs of zombies that no driver registered.
        reader_is_slow: Whether somebody has opened a version and takes minutes to read it.
        also: Called with each script that ran, after all else.
    """

    def __init__(self, dice: Dice, counters: Counter[str], keyspace: Keyspace) -> None:
        self.unregistered: set[str] = set()
        self.reader_is_slow = False
        self.also: Callable[[Ran], None] | None = None
        self._dice = dice
        self._counters = counters
        self._keyspace = keyspace
        self._holder = ""
        self._timeline: Timeline

    def begin(self, timeline: Timeline, partition: PartitionId) -> None:
        """Attributes all further replies to this partition."""
        self._timeline = timeline
        self._partition = partition

    def __call__(self, commands: Sequence[Command], replies: list[Any]) -> None:
        for ran in scripts_in(commands, replies):
            self._counters[f"{ran.name}: {ran.outcome}"] += 1
            if ran.name == "acquire":
                self._acquired(ran)
            elif ran.name == "open":
                self._opened(ran)
                self.reader_is_slow |= self._dice.one_in(10 if ran.args[0] else 3)
            elif ran.name in ("publish", "snapshot"):
                names = ran.keys[1:] if ran.name == "publish" else ran.keys[-1:]
                left = any(map(self._keyspace.holds, names))
                if ran.word not in _LEAVE_BLOCKS and left:
                    said = f"{ran.name} answered {ran.outcome}"
                    self._timeline.problem(f"{said} and left its blocks")
            elif ran.name in ("abort", "orphan") and not self._timeline.destroyed:
                self._cleaned_up(ran)
            if self.also is not None:
                self.also(ran)

    def _opened(self, ran: Ran) -> None:
        if ran.word != "OK":
            return
        pin, run = Pin(int(ran.reply[1]), ran.reply[2]), ran.args[0]
        self._timeline.served(run, pin)
        if run and ran.reply[3] == "1":
            self._timeline.opened(run, pin)
            if run != self._holder:
                _, self._holder = self._keyspace.opened(self._partition)

    def _acquired(self, ran: Ran) -> None:
        if ran.word == "OK":
            if ran.args[0] in self.unregistered:
                self._took_over(ran)
            self._holder = ran.args[0]
            self._timeline.acquired.add(ran.args[0])
            self._timeline.taken_at(int(ran.args[3]))
        elif ran.outcome == "FENCED unregistered":
            self._unregistered(ran)

    def _unregistered(self, ran: Ran) -> None:
        """Checks an unregistered run, which in format 2 may continue from the newest log."""
        run, version, uid = ran.args[0], int(ran.args[3]), ran.args[4]
        log = self._timeline.log
        opened, holder = self._keyspace.opened(self._partition)
        if holder in {one.run_id for one in self._timeline.drivers.lost}:
            return  # Whom to believe, that one or what was logged beside it, a driver has to say.
        if (
            run == self._timeline.run.run_id
            and (version, Pin(version, uid)) == (log.newest, log.pin(version))
            and opened <= version
            and not (holder in self.unregistered or self._timeline.destroyed)
        ):
            self._counters["false fenced"] += 1
            self._timeline.problem(f"{run} may not go on from {log.pin(version)}")

    def _took_over(self, ran: Ran) -> None:
        """A zombie took the partition from the driver's run: it has to go on from where that is."""
        timeline, format_ = self._timeline, int(ran.args[7])
        pin = Pin(int(ran.args[3]), ran.args[4])
        if timeline.destroyed or self._holder != timeline.run.run_id or timeline.run.format == 1:
            return
        left = pin != timeline.log.pin(pin.version) and timeline.writers[pin.uid] != timeline.run
        if format_ == 1 or left:
            self._counters["wrong"] += 1
            timeline.problem(f"a zombie of format {format_} took {pin} along")

    def _cleaned_up(self, ran: Ran) -> None:
        if ran.name == "abort" and not self._keyspace.holds(ran.keys[1]):
            if self._keyspace.names_blocks(ran.keys[0], ran.args[0]):
                self._timeline.problem("abort dropped what is published")
        elif ran.word == "OK" and ran.name == "orphan":
            self._counters["orphans"] += 1
            self._timeline.problem(f"{ran.keys[1]} is of no manifest and never expired")
