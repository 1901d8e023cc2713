"""What is known for certain while a schedule runs, kept in plain dicts."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from redis_state.errors import Kind, RedisStateError
from redis_state.ids import Pin

Rows = Mapping[str, list[int]]

RETAINED = 2
"""Versions below the opened one that every run of a schedule wants to keep."""

_ALWAYS_ALLOWED = (Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN)


@dataclass(frozen=True)
class Run:
    """A run of the query.

    Attributes:
        number: Later runs have greater ones.
        by_driver: Whether it was registered before its tasks started.
    """

    number: int
    run_id: str
    by_driver: bool


@dataclass
class Timeline:
    """The driver's view, the content of each attempt, and what every load is judged by.

    Attributes:
        contents: What each attempt wrote, noted before it was sent.
        writers: The run of each attempt.
        owners: The run in which the driver logged each version.
        logged: The newest version that the driver counts on.
        destroyed: Whether a server lost data; then a loss may be told, but nothing wrong served.
        forked: Whether a server went back in time or lost the manifest: format 1 cannot tell one
            timeline from another then.
    """

    run: Run
    counters: Counter[str]
    contents: dict[str, Rows] = field(default_factory=dict)
    writers: dict[str, Run] = field(default_factory=dict)
    owners: dict[int, Run] = field(default_factory=dict)
    parents: dict[tuple[Run, int], str] = field(default_factory=dict)
    acquired: set[str] = field(default_factory=set)
    committed: dict[Run, int] = field(default_factory=dict)
    logged: int = 0
    started_max: int = 0
    rewound_from: tuple[int, dict[int, Run]] | None = None
    destroyed: bool = False
    forked: bool = False
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Something happened that must never happen."""
        self.problems.append(text)

    def loaded(self, who: str, pin: Pin, rows: Rows, *, logged_in: Run | None) -> None:
        """Judge what a load gave.

        Args:
            logged_in: The run whose attempt this has to be; ``None`` if any attempt may be read.
        """
        self.counters["loads compared"] += 1
        wanted = {} if pin.version == 0 else self.contents.get(pin.uid)
        if wanted is None:
            self._wrong(f"{who}: version {pin.version} is of an attempt that nobody made")
        elif rows != wanted:
            self._wrong(f"{who}: {pin} reads as {rows}, the model has {wanted}")
        elif logged_in is not None and pin.version > 0 and not self.forked:
            writer = self.writers[pin.uid]
            if writer != logged_in:
                self._wrong(
                    f"{who}: version {pin.version} is run {writer.number}'s, "
                    f"the driver logged that of run {logged_in.number}"
                )

    def _wrong(self, text: str) -> None:
        self.counters["wrong"] += 1
        self.problem(text)

    def was_committed(self, run: Run, parent: Pin, *, begun: int) -> None:
        """Judge the success of a commit.

        Args:
            begun: How many commits had succeeded before this one was first sent.
        """
        self.counters["commits"] += 1
        newer = [at for other, at in self.committed.items() if other.number > run.number]
        if not self.destroyed and any(at <= begun for at in newer):
            self._wrong(f"run {run.number} committed after a newer run had")
        self.committed[run] = self.commits
        first = self.parents.setdefault((run, parent.version), parent.uid)
        if first != parent.uid and not self.destroyed:
            self._wrong(f"attempts of run {run.number} went on from two copies of {parent.version}")

    @property
    def commits(self) -> int:
        """How many commits succeeded so far."""
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
        below = task.run is not None and not task.run.by_driver
        if task.alone and self.current(task) and not self.destroyed and not below:
            self.counters["false fenced"] += 1
            self.problem(f"{task.name}: nobody was in its way: {error}")

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
        """Whether the driver has counted on what a task was asked for since it started."""
        return task.counted_on and task.seen_by == self.run and task.version == self.logged

    def log(self, run: Run, version: int) -> None:
        """The driver has heard that every task of a batch committed."""
        if run == self.run and version == self.logged + 1:
            self.logged = version
            self.owners[version] = run

    def restart(self, run: Run, back: int) -> None:
        """A new run begins at the newest logged version, or at an earlier one."""
        self.run = run
        target = max(0, self.logged - back)
        if target < self.logged:
            self.counters["rewinds"] += 1
            if self.rewound_from is None or self.rewound_from[0] < self.logged:
                self.rewound_from = self.logged, dict(self.owners)
            self.logged = target
            self.owners = {at: by for at, by in self.owners.items() if at <= target}


@dataclass(eq=False)
class Task:
    """A task of a run, or a reader.

    Attributes:
        run: ``None`` for a reader.
        seen_by: The run that was current when it started.
        counted_on: Whether its version was the newest logged one then.
        alone: Whether no other writer did anything while it ran.
    """

    name: str
    version: int
    run: Run | None
    seen_by: Run
    counted_on: bool
    alone: bool = False
