"""Judges what scripts answer to the tasks of a streaming query, whoever asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from redis_state import keys
from redis_state.backend.script import Command
from tests.faults.oracle.stream_timeline import StreamTimeline
from tests.faults.oracle.wire import Ran, scripts_in


class StreamWatch:
    """Called after every delivery with its replies."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._timeline: StreamTimeline
        self._places: dict[Any, int] = {}

    def begin(self, timeline: StreamTimeline, places: Sequence[Any]) -> None:
        """Attributes all further replies to these partitions."""
        self._timeline = timeline
        self._places = {keys.meta(id_): id_.partition for id_ in places}

    def __call__(self, commands: Sequence[Command], replies: list[Any]) -> None:
        for ran in scripts_in(commands, replies):
            self._counters[f"{ran.name}: {ran.outcome}"] += 1
            if ran.name == "join":
                self._joined(ran)
            elif ran.name == "acquire" and ran.word == "OK":
                self._taken(ran)
            elif ran.name == "publish" and ran.word == "OK":
                self._published(ran)

    def _joined(self, ran: Ran) -> None:
        if ran.word not in ("OK", "BEGIN"):
            return
        timeline = self._timeline
        start = timeline.starts.get(ran.args[2])
        if start is None:
            if not timeline.forgot:
                timeline.wrong(f"run {ran.args[2]}, which is none of the query, has joined")
            return
        at = int(ran.args[5]) - timeline.first
        timeline.was_registered(start, int(ran.reply[1]))
        timeline.shown.add(ran.args[11])
        if ran.word == "OK":
            timeline.was_begun(start, at, int(ran.reply[2]))

    def _taken(self, ran: Ran) -> None:
        start = self._timeline.starts[ran.args[0]]
        self._timeline.was_taken(start, self._places[ran.keys[0]], int(ran.args[3]))

    def _published(self, ran: Ran) -> None:
        start, version = self._timeline.starts[ran.args[0]], int(ran.args[2]) + 1
        self._timeline.was_published(start, self._places[ran.keys[0]], version, ran.args[4])
