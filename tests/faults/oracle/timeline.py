"""Certain facts about a running schedule, kept in plain dicts."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis_state.errors import Kind, RedisStateError
from redis_state.ids import Pin
from tests.faults.oracle.drivers import Drivers
from tests.faults.oracle.runs import Run

Rows = Mapping[str, list[int]]

RETAINED = 2
"""Versions below the opened one that every run of a schedule wants to keep."""

_ALWAYS_ALLOWED = (Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN)


@dataclass(frozen=True)
class Log:
    """The driver's commit log.

    Attributes:
        newest: The newest version in it.
        owners: The run that logged each version.
        uids: Its attempt, where the run had format 2.
    """

    newest: int = 0
    owners: Mapping[int, Run] = field(default_factory=dict)
    uids: Mapping[int, str] = field(default_factory=dict)

    def up_to(self, newest: int) -> Log:
        """Returns the log without newer entries."""
        newest = min(newest, self.newest)
        owners = {at: by for at, by in self.owners.items() if at <= newest}
        return Log(newest, owners, {at: uid for at, uid in self.uids.items() if at <= newest})

    def plus(self, run: Run, uid: str) -> Log:
        """Returns the log with one more version."""
        at = self.newest + 1
        uids = {**self.uids, at: uid} if run.format == 2 else self.uids
        return Log(at, {**self.owners, at: run}, uids)

    def pin(self, version: int) -> Pin | None:
        """The attempt of a version, where the log says it."""
        return Pin(version, self.uids[version]) if version in self.uids else None


@dataclass
class Timeline:
    """The driver's view, the content of each attempt, and what every load is judged by.

    Attributes:
        run: The run that logged the newest version or, before one has, the newest run.
        contents: What each attempt wrote, noted before it was sent.
        forked_rows: What the copies of a forked process write, each as the same attempt, until one
            of them is known to have got through.
        writers: The run of each attempt.
        log: What the driver counts on.
        drivers: Who lives, and what they logged.
        confirmed: Attempts of each version that a living driver's run has told it of.
        twins: Runs that wrote a logged version beside the run that logged it.
        opened_by: Which runs have opened which versions.
        fair_twins: Attempts of twins that were served while their logger had not opened its own.
        attempts: Those of all runs.
        ever_logged: Those of format 2 that were in the log at some time.
        started: Runs that began with a driver.
        rewound_from: The log before a rewind that may still be given up.
        rewound_by: The number of the first run that began with that rewind.
        destroyed: Whether a server lost data; then a loss may be told, but nothing wrong served.
        forked: Whether a server went back in time or lost the manifest: format 1 cannot tell one
            timeline from another then.
    """

    run: Run
    counters: Counter[str]
    contents: dict[str, Rows] = field(default_factory=dict)
    forked_rows: dict[str, list[Rows]] = field(default_factory=dict)
    writers: dict[str, Run] = field(default_factory=dict)
    log: Log = field(default_factory=Log)
    drivers: Drivers = field(default_factory=Drivers)
    confirmed: dict[tuple[Run, int], list[str]] = field(default_factory=dict)
    twins: dict[int, set[Run]] = field(default_factory=dict)
    opened_by: set[tuple[str, int]] = field(default_factory=set)
    fair_twins: set[str] = field(default_factory=set)
    attempts: list[Pin] = field(default_factory=list)
    ever_logged: list[Pin] = field(default_factory=list)
    parents: dict[tuple[Run, int], str] = field(default_factory=dict)
    acquired: set[str] = field(default_factory=set)
    committed: dict[Run, dict[int, int]] = field(default_factory=dict)
    started_max: int = 0
    started: list[Run] = field(default_factory=list)
    rewound_from: Log | None = None
    rewound_by: int = 0
    destroyed: bool = False
    forked: bool = False
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drivers.start(self.run, 0)
        self.started.append(self.run)

    def problem(self, text: str) -> None:
        """Something happened that must never happen."""
        self.problems.append(text)

    @property
    def logged(self) -> int:
        """The newest version that the driver counts on."""
        return self.log.newest

    def loaded(
        self,
        who: str,
        pin: Pin,
        rows: Rows,
        *,
        asked: Pin | None,
        logged_in: Run | None,
        seen: Rows | None = None,
    ) -> None:
        """Judge what a load gave.

        Args:
            asked: The attempt that was asked for, in format 2.
            logged_in: The run whose attempt this has to be; ``None`` if any attempt may be read.
            seen: What a writer has to see of the version, if some of its rows expire in the next.
        """
        self.counters["loads compared"] += 1
        if asked is not None:
            self.counters["loads by uid"] += 1
            if pin != asked:
                self._wrong(f"{who}: asked for {asked}, was given {pin}")
        self._got_through(pin.uid, rows)
        wanted = {} if pin.version == 0 else self.contents.get(pin.uid)
        wanted = wanted if seen is None else seen
        if wanted is None:
            self._wrong(f"{who}: version {pin.version} is of an attempt that nobody made")
        elif rows != wanted:
            self._wrong(f"{who}: {pin} reads as {rows}, the model has {wanted}")
        elif logged_in is not None and pin.version > 0 and not self.forked:
            writer = self.writers[pin.uid]
            if writer != logged_in and pin.uid not in self.fair_twins:
                self._wrong(
                    f"{who}: version {pin.version} is run {writer.number}'s, "
                    f"the driver logged that of run {logged_in.number}"
                )

    def found_by_version(self, task: Task, pin: Pin, went_on_with: Pin) -> None:
        """Judge what a version is without a uid, below the one that the driver logged last."""
        if task.seen_by == self.run and not self.destroyed:
            self.counters["loads by version in format 2"] += 1
            if pin != went_on_with:
                self._wrong(f"{task.name}: it is {pin}, the query went on with {went_on_with}")

    def _wrong(self, text: str) -> None:
        self.counters["wrong"] += 1
        self.problem(text)

    def was_committed(self, run: Run, parent: Pin, *, begun: int) -> None:
        """Judge the success of a commit.

        Args:
            begun: How many commits had succeeded before this one was first sent.
        """
        self.counters["commits"] += 1
        # What no driver registered has no number: it may be the newest by right. What stands beside
        # an attempt of a newer run is read by nobody else unless the driver logs it.
        newer = [
            at
            for other, ats in self.committed.items()
            for version, at in ats.items()
            if 0 < run.number < other.number
            and other not in self.drivers.lost
            and version != parent.version + 1
        ]
        if not self.destroyed and any(at <= begun for at in newer):
            self._wrong(f"run {run.number} committed after a newer run had")
        self.committed.setdefault(run, {}).setdefault(parent.version + 1, self.commits)
        first = self.parents.setdefault((run, parent.version), parent.uid)
        if first != parent.uid and not self.destroyed:
            self._wrong(f"attempts of run {run.number} went on from two copies of {parent.version}")

    def acknowledged(self, pin: Pin, rows: Rows) -> None:
        """Judge the rows of an attempt that was told that it is committed."""
        self._got_through(pin.uid, rows)
        if self.contents[pin.uid] != rows:
            self._wrong(f"{pin} was acknowledged twice, with other rows")

    def _got_through(self, uid: str, rows: Rows) -> None:
        if rows in self.forked_rows.get(uid, ()):
            self.contents[uid] = rows
            del self.forked_rows[uid]

    @property
    def commits(self) -> int:
        """Number of successful commits so far."""
        return self.counters["commits"]

    def failed(self, task: Task, error: BaseException) -> None:
        """Judge the failure of a task or reader."""
        if not isinstance(error, RedisStateError):
            where = "".join(traceback.format_tb(error.__traceback__, limit=-2))
            self.problem(f"{task.name}: {type(error).__name__}: {error}\n{where}")
            return
        self.counters[str(error.kind)] += 1
        if error.kind in _ALWAYS_ALLOWED:
            return
        if error.kind is Kind.FENCED:
            self._fenced(task, error)
        elif error.kind in (Kind.STATE_LOST, Kind.VERSION_EXPIRED):
            self._missing(task, error)
        else:
            self.problem(f"{task.name}: {error}")

    def _fenced(self, task: Task, error: RedisStateError) -> None:
        if task.alone and self.current(task) and not self.destroyed and not task.overtaken:
            if not self._is_behind_a_start_that_lost(task):
                self.counters["false fenced"] += 1
                self.problem(f"{task.name}: nobody was in its way: {error}")
        elif self._is_ousted(task) and "another run holds" in str(error):
            self.counters["false fenced"] += 1
            self.problem(f"{task.name}: its driver logged the version: {error}")

    def _is_behind_a_start_that_lost(self, task: Task) -> bool:
        """True if no driver registered the task's run, and a start has lost its batch."""
        return task.run is not None and not task.run.by_driver and bool(self.drivers.lost)

    def _is_ousted(self, task: Task) -> bool:
        """Returns whether the task belongs to a living driver that logged the newest version."""
        return (
            task.run is not None
            and task.run == self.log.owners.get(self.logged)
            and task.run in self.drivers
            and self.current(task)
            and not (self.destroyed or task.overtaken or self.fair_twins)
        )

    def _missing(self, task: Task, error: RedisStateError) -> None:
        if self.destroyed or not self.current(task):
            return
        expired = error.kind is Kind.VERSION_EXPIRED
        if expired and task.version < self.started_max - RETAINED and not self._holds(task):
            return
        self.counters["false lost"] += 1
        self.problem(f"{task.name}: the driver counts on it: {error}")

    def _holds(self, task: Task) -> bool:
        return task.run is not None and task.run.run_id in self.acquired

    def current(self, task: Task) -> bool:
        """Returns whether the driver has relied on the task's attempt ever since the task started.

        It counts on what it logged, and on all attempts of the next version: it may log any.
        """
        if not task.counted_on or task.seen_by not in self.drivers:
            return False
        if task.version == self.logged:
            return task.asked == self.log.pin(task.version)
        return task.asked is not None and task.asked.uid in self.next_attempts

    @property
    def next_attempts(self) -> Sequence[str]:
        """Attempts that a driver may log next."""
        version = self.logged + 1
        return [uid for run in self.drivers for uid in self.confirmed.get((run, version), ())]

    def left(self, opened: int) -> list[Pin]:
        """Logged attempts of timelines that were left, which nothing has gone past yet."""
        return [
            pin
            for pin in self.ever_logged
            if pin.version >= opened and pin != self.log.pin(pin.version)
        ]

    def came_too_late(self, run: Run, holder: str) -> bool:
        """Returns whether a later start took the partition first; this run then never can."""
        later = [one for one in self.started if one.run_id == holder and one.number > run.number]
        return bool(later) and run.run_id not in self.acquired

    def heard_of(self, run: Run, pin: Pin) -> None:
        """A task told its driver, if that still lives, of an attempt that it committed."""
        self.attempts.append(pin)
        if run in self.drivers:
            self.confirmed.setdefault((run, pin.version), []).append(pin.uid)

    def logs(self, run: Run, pin: Pin) -> None:
        """A driver has heard that every task of a batch committed."""
        behind = run in self.drivers
        if self.drivers.ends_batch(run, pin.version, self.logged):
            self.run = run
            self.twins[pin.version] = self.drivers.beside(run, pin.version)
            self.log = self.log.plus(run, pin.uid)
            if run.format == 2:
                self.ever_logged.append(pin)
        elif behind and run not in self.drivers:
            self.counters["batches that another driver had logged"] += 1

    def second_start(self, run: Run) -> None:
        """A driver starts while another one lives."""
        self.counters["second starts"] += 1
        self.started.append(run)
        self.drivers.start(run, self.logged)

    def lose(self, run: Run) -> None:
        """A driver is no more, while another one may live."""
        self.drivers.end(run)
        if run == self.run and self.drivers.alive:
            self.run = next(iter(self.drivers))

    def opened(self, run_id: str, pin: Pin) -> None:
        """A run pinned a version."""
        self.opened_by.add((run_id, pin.version))

    def served(self, run_id: str, pin: Pin) -> None:
        """Somebody was told that this is a version.

        In format 1 nobody but their tasks can say which of two drivers logged it, before one of
        them goes on.
        """
        logger, writer = self.log.owners.get(pin.version), self.writers.get(pin.uid)
        if logger is None or logger.format != 1 or writer not in self.twins.get(pin.version, ()):
            return
        if run_id != logger.run_id and (logger.run_id, pin.version) not in self.opened_by:
            self.counters["attempts of a twin"] += 1
            self.fair_twins.add(pin.uid)

    def taken_at(self, version: int) -> None:
        """A run took the partition: beyond its version no log can be put back any more."""
        if version == self.logged:
            self.rewound_from = None
        elif self.rewound_from is not None:
            self.rewound_from = self.rewound_from.up_to(version)

    def restart(self, run: Run, back: int) -> None:
        """A new run begins at the newest logged version, or at an earlier one."""
        self.run = run
        self.started.append(run)
        self.confirmed.clear()
        target = max(0, self.logged - back)
        if target < self.logged:
            self.counters["rewinds"] += 1
            if self.rewound_from is None or self.rewound_from.newest < self.logged:
                self.rewound_from, self.rewound_by = self.log, run.number
            self.log = self.log.up_to(target)
            self.drivers.rewind(target)
        self.drivers.alive.clear()
        self.drivers.start(run, target)


@dataclass(eq=False)
class Task:
    """A task of a run, or a reader.

    Attributes:
        run: ``None`` for a reader.
        seen_by: The run that was current when it started.
        counted_on: Whether its version was the newest logged one then.
        asked: The attempt that it was told to open, in format 2.
        alone: Whether no other writer did anything while it ran.
        overtaken: Whether an unregistered run is in its way, or its own may not go back.
    """

    name: str
    version: int
    run: Run | None
    seen_by: Run
    counted_on: bool
    asked: Pin | None = None
    alone: bool = False
    overtaken: bool = False
