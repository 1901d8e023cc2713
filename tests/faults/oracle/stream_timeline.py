"""Certain facts about a streaming query whose tasks begin its batches.

What a batch does follows from its entry in the offset log, so the logs alone say what each version
has to hold. Versions count from 0; the batch that goes on from version `at` is `first + at`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis_state.batches.streams import JoinedBatch, StreamPlan
from redis_state.errors import Kind, RedisStateError
from redis_state.ids import Pin
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.drivers import Drivers
from tests.faults.oracle.runs import Run

_ALWAYS_ALLOWED = (Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN)


@dataclass(frozen=True)
class Entry:
    """An entry of the offset log.

    Attributes:
        stamp: Another one for each entry, also of one batch that is planned again after a rewind.
        times: The newest event time in each partition; 0 where no row comes.
        planned: The time that Spark planned the batch for. The clock of a driver may stand or step
            back, so it says nothing of the order; entries of one batch differ.
    """

    stamp: int
    times: tuple[int, ...]
    planned: int


@dataclass(frozen=True)
class Start:
    """A start of the query.

    Attributes:
        plan: Of the call that its DataFrame comes from.
        app: The application: the numbers of its task attempts rise.
    """

    run: Run
    plan: StreamPlan
    app: int

    @property
    def rank(self) -> tuple[int, int]:
        """Rank of a start: of two starts the one with the greater rank continues."""
        return self.plan.number, self.run.number


@dataclass(eq=False)
class StreamTask:
    """An attempt of a task.

    Attributes:
        chain: The entries of the batches before it.
        rows_of: The entry that its rows come from.
        frame: Id of the frame that it evaluates.
        kept: Whether that is the frame of an earlier batch or start, which the driver kept.
        refused: What it has to be told if it is of no start of this query; empty for all others.
        alone: Whether no other writer did anything while it ran.
    """

    name: str
    start: Start
    at: int
    partition: int
    chain: Sequence[Entry]
    rows_of: Entry
    frame: str
    kept: bool = False
    refused: str = ""
    alone: bool = False


@dataclass
class StreamTimeline:
    """The logs, what is in the partitions, and what every answer is judged by.

    Attributes:
        delay_ms: Of the watermark; ``None`` without one.
        entries: The offset log, by version.
        planned_of: How often each version was planned.
        logged: The newest version of the commit log.
        wanted: The partitions that a run evaluates of a version: not all of them behind a limit.
        done: Those of which its driver has heard that they committed.
        joined: Starts that were given an epoch, with it.
        holders: The start that took each partition last.
        present: Rows and writers of the versions that are there, by partition and version.
        written: Those that ever were there.
        begun: Runs that began each version, the last one last; `newest` is the newest version.
        frames: The frame that each run has of each version, with its entry.
        shown: Frames that the script let in.
        times: When each of them began, as the server told it first.
        rewound: Whether a user took back the logs.
        destroyed: Whether a server lost data; then a loss may be told, but nothing wrong served.
        forked: Whether a partition went back in time or lost its manifest.
        forgot: Whether the hash of the query went back in time.
    """

    partitions: int
    first: int
    delay_ms: int | None
    counters: Counter[str]
    entries: dict[int, Entry] = field(default_factory=dict)
    planned_of: Counter[int] = field(default_factory=Counter)
    logged: int = 0
    drivers: Drivers = field(default_factory=Drivers)
    starts: dict[str, Start] = field(default_factory=dict)
    wanted: dict[tuple[Run, int], frozenset[int]] = field(default_factory=dict)
    done: dict[tuple[Run, int], set[int]] = field(default_factory=dict)
    joined: dict[Start, int] = field(default_factory=dict)
    holders: dict[int, Start] = field(default_factory=dict)
    present: dict[tuple[int, int], tuple[bytes, Run]] = field(default_factory=dict)
    written: set[tuple[int, int]] = field(default_factory=set)
    begun: dict[int, list[Run]] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    frames: dict[tuple[Run, int], tuple[str, Entry]] = field(default_factory=dict)
    newest: int | None = None
    times: dict[int, int] = field(default_factory=dict)
    contents: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    rewound: bool = False
    destroyed: bool = False
    forked: bool = False
    forgot: bool = False
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Something happened that must never happen."""
        self.problems.append(text)

    def wrong(self, text: str) -> None:
        """State was served or written that must not be."""
        self.counters["wrong"] += 1
        self.problem(text)

    # ---- what the logs say -------------------------------------------------------------------

    def chain(self, at: int) -> list[Entry]:
        """The entries that make up a version."""
        return [self.entries[before] for before in range(at)]

    def entry_at(self, at: int, dice: Dice) -> Entry:
        """The entry of a batch in the offset log, which is written now if it is not there.

        The clock of the driver stands and steps back, but one batch has a time only once.
        """
        if at not in self.entries:
            times = [
                0 if dice.one_in(3) else dice.between(1, 90) + 40 * at
                for _ in range(self.partitions)
            ]
            planned = 1000 + dice.below(8) + 10 * self.planned_of[at]
            self.planned_of[at] += 1
            stamp = 1000 + self.planned_of.total()
            self.entries[at] = Entry(stamp, tuple(times), planned)
        return self.entries[at]

    def frame_of(self, run: Run, at: int, entry: Entry) -> str:
        """The frame that a run has of a batch: Spark draws its id when it plans the batch."""
        name = f"{len(self.frames) + 1:016x}"
        return self.frames.setdefault((run, at), (name, entry))[0]

    def stale_frames(self, run: Run, at: int) -> list[tuple[str, Entry]]:
        """Frames of other batches or starts that tasks have shown, with their entries."""
        return [one for of, one in self.frames.items() if of != (run, at) and one[0] in self.shown]

    def watermark(self, chain: Sequence[Entry]) -> int:
        """Returns the watermark of the batch that continues from these."""
        if self.delay_ms is None:
            return 0
        return max([0, *(max(entry.times) - self.delay_ms for entry in chain)])

    def rows(self, chain: Sequence[Entry]) -> bytes:
        """Expected value of a partition after these batches."""
        return b"".join(b"%d " % entry.stamp for entry in chain)

    def times_of(self, chain: Sequence[Entry]) -> bytes:
        """The times and watermarks of these batches, as a partition holds them."""
        return b"".join(
            b"%d:%d " % (self.times.get(at, -1), self.watermark(chain[:at]))
            for at in range(len(chain))
        )

    def is_over(self, start: Start) -> bool:
        """Returns whether a newer start has joined."""
        return any(other.rank > start.rank for other in self.joined)

    # ---- what tasks are told -----------------------------------------------------------------

    def was_joined(self, task: StreamTask, joined: JoinedBatch) -> None:
        """Judge the batch that a task has joined."""
        self.counters["batches joined by tasks"] += 1
        if task.refused and not self.forgot:
            self.wrong(f"{task.name}: was not told that {task.refused}")
        if task.kept and task.frame in self.shown and not self.forgot:
            self.wrong(f"{task.name}: a frame of another batch was let in")
        if joined.version != task.at:
            self.wrong(f"{task.name}: goes on from version {joined.version}")
        if joined.watermark_ms != self.watermark(task.chain) and not self._may_differ:
            self.wrong(f"{task.name}: the watermark is {joined.watermark_ms}")
        if joined.began_ms != self.times.get(task.at) and not self.forgot:
            self.wrong(f"{task.name}: the batch began at another time, too")

    @property
    def _may_differ(self) -> bool:
        """Returns whether a fail-over may have brought back what a rewind left."""
        return self.forked and self.rewound

    def loaded(self, task: StreamTask, pin: Pin, rows: bytes, times: bytes) -> None:
        """Judge what a task reads."""
        self.counters["loads compared"] += 1
        if pin.version and self.contents.get(pin.uid) != (rows, times):
            self.wrong(f"{task.name}: {pin} reads as {rows!r}, it is {self.contents.get(pin.uid)}")
        self.compare(task.name, task.chain, rows, times)

    def compare(self, who: str, chain: Sequence[Entry], rows: bytes, times: bytes) -> None:
        """Judge rows by the log."""
        if rows != self.rows(chain) and not self._may_differ:
            self.wrong(f"{who}: reads {rows!r}, by the log it is {self.rows(chain)!r}")
        if times != self.times_of(chain) and not (self._may_differ or self.forgot):
            self.wrong(f"{who}: has the times {times!r}, the batches had {self.times_of(chain)!r}")

    def heard_of(self, task: StreamTask) -> bool:
        """A task told its driver that it committed; whether its batch is done by that."""
        self.counters["commits"] += 1
        key = task.start.run, task.at
        if task.start.run not in self.drivers:
            return False
        self.done.setdefault(key, set()).add(task.partition)
        return self.done[key] >= self.wanted[key]

    def logs(self, start: Start, at: int) -> None:
        """A driver writes the entry of a batch into the commit log."""
        if self.drivers.ends_batch(start.run, at + 1, self.logged):
            self.logged = at + 1
            if len(self.wanted[start.run, at]) < self.partitions:
                self.counters["batches behind a limit"] += 1

    # ---- what the scripts answered -----------------------------------------------------------

    def was_registered(self, start: Start, epoch: int) -> None:
        """Judge that a start was let in."""
        if self.is_over(start):
            self.wrong(f"run {start.run.number} joined after a newer start had")
        known = self.joined.get(start)
        if known is None:
            self.counters["starts by tasks"] += 1
            if any(epoch <= other for other in self.joined.values()):
                self.wrong(f"run {start.run.number} has no greater epoch than those before")
        elif known != epoch:
            self.wrong(f"run {start.run.number} has another epoch than before")
        self.joined[start] = epoch

    def was_begun(self, start: Start, at: int, began_ms: int) -> None:
        """Judge that a batch began, or that it had."""
        runs = self.begun.setdefault(at, [])
        if start.run not in runs[-1:]:
            if at != (0 if self.newest is None else self.newest) and at - 1 != self.newest:
                self.wrong(f"version {at} was begun, the newest is {self.newest}")
            every = range(self.partitions)
            lacking = [one for one in every if at and (one, at) not in self.written]
            if lacking and not self.destroyed:
                self.wrong(f"version {at} was begun over partitions {lacking} without it")
            self.counters["batches begun again" if runs else "batches begun by tasks"] += 1
            runs.append(start.run)
            self.newest = at
        if self.times.setdefault(at, began_ms) != began_ms:
            self.wrong(f"version {at} was begun at another time, too")

    def was_taken(self, start: Start, partition: int, version: int) -> None:
        """A start holds a partition, and what was above its version is dropped."""
        if self.holders.get(partition) != start:
            self.holders[partition] = start
            for at in [one for one in self.present if one[0] == partition and one[1] > version]:
                del self.present[at]

    def was_published(self, start: Start, partition: int, version: int, uid: str) -> None:
        """Judge a commit."""
        holder = self.holders.get(partition)
        if holder is not None and holder.rank > start.rank and not self.destroyed:
            self.wrong(f"run {start.run.number} published after a newer start took the partition")
        self.present[partition, version] = self.contents[uid][0], start.run
        self.written.add((partition, version))

    # ---- failures ----------------------------------------------------------------------------

    def failed(self, task: StreamTask, error: BaseException) -> None:
        """Judge the failure of a task."""
        if not isinstance(error, RedisStateError):
            where = "".join(traceback.format_tb(error.__traceback__, limit=-2))
            self.problem(f"{task.name}: {type(error).__name__}: {error}\n{where}")
            return
        self.counters[str(error.kind)] += 1
        if error.kind in _ALWAYS_ALLOWED:
            return
        if error.kind is Kind.FENCED:
            if task.alone and not (self.is_over(task.start) or self.destroyed):
                self.counters["false fenced"] += 1
                self.problem(f"{task.name}: nobody was in its way: {error}")
        elif error.kind in (Kind.STATE_LOST, Kind.VERSION_EXPIRED):
            self._missing(task, error)
        elif not self._is_told_rightly(task, str(error)):
            self.problem(f"{task.name}: {error}")

    def _missing(self, task: StreamTask, error: RedisStateError) -> None:
        there = [self.present.get((one, task.at)) for one in range(self.partitions)]
        rows = self.rows(task.chain)
        lacks = task.at > 0 and any(one is None or one[0] != rows for one in there)
        fair = self.destroyed or self.is_over(task.start) or lacks
        if task.alone and not fair:
            self.counters["false lost"] += 1
            self.problem(f"{task.name}: every partition has it: {error}")

    def _is_told_rightly(self, task: StreamTask, text: str) -> bool:
        if task.refused and task.refused in text:
            self.counters["strangers refused"] += 1
            return True
        if "the DataFrame belongs to" in text:
            self.counters["kept frames refused"] += task.kept
            # A server that forgot a kept frame takes it for the batch's own, if it comes first.
            return task.kept or self.forgot
        if "newest batch is" in text:
            return self.newest is None or task.at not in (self.newest, self.newest + 1)
        return False
