"""Forks of a schedule: a query with processes of its own, and a store of Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import redis_state
from redis_state.errors import RedisStateError
from redis_state.ids import PartitionId, StoreId
from tests.faults.system.python_stores import PythonStores
from tests.faults.system.query import Query, Then
from tests.faults.system.world import PARTITIONS, World, rows_of

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_ALONE_MAX = 200
_RUNS_MAX = 8

Read = list[tuple[str, int]]
"""Sorted rows of all partitions."""


def gen_in(folder: Path) -> str | None:
    """The id of the checkpoint, if its marker is there."""
    try:
        return str(json.loads((folder / "state" / "_redis_state").read_text())["gen"])
    except (OSError, ValueError):
        return None


def token_in(folder: Path, batch: int) -> int:
    """The token of a batch, as the offset log has it."""
    return int((folder / "offsets" / str(batch)).read_text().splitlines()[-1])


def rows_at(tokens: list[int], version: int) -> Read:
    """Rows of both partitions in a version."""
    rows = (rows_of(tokens[:version], number) for number in range(PARTITIONS))
    return sorted(pair for of in rows for pair in of.items())


def read_version(url: str, gen: str, version: int | None, uids: list[str] | None = None) -> Read:
    """Rows of a query of Spark, read live; by default those of its newest confirmed version."""
    with redis_state.connect(url) as reader:
        found = reader.query(gen).operator().items(version, uids=uids)
        return sorted((key["k"], value["v"]) for key, value in found)


def read_kept(url: str, gen: str, name: str) -> Read:
    """Rows of a kept version; in a store of Python keys and values are no columns."""
    with redis_state.connect(url) as reader:
        found = list(reader.query(gen).operator().items(at=name))
    return sorted((k["k"], v["v"]) if isinstance(k, Mapping) else (k, v) for k, v in found)


class ForkedQuery(Query):
    """A fork of a query: the schedule's executors work for it beside its parent.

    Attributes:
        gen: Id of its checkpoint.
        of: Id of the checkpoint that pins segments for it; empty once none does.
        begun: Version with which it began.
        words: The command that made it.
    """

    def __init__(self, play: Schedule, parent: Query, folder: Path, gen: str, of: str) -> None:
        world = World(play.dice)
        super().__init__(play.lab, play.dice, folder, world, parent.format)
        world.problems = play.world.problems
        self.play, self.gen, self.of = play, gen, of
        self.executors, self.processes = play.executors, play.processes
        self.unloads_on_commit = play.unloads_on_commit
        self.tells_progress = True
        self.label = f"{folder.name}-"
        self.begun = 0
        self.words: list[str] = []

    def begins(self, tokens: list[int], logged: list[list[str]]) -> None:
        """The batches before the first that it runs itself."""
        self.begun = len(logged)
        self.world.begins(tokens, logged)

    def is_free(self, process: str) -> bool:
        """Returns whether no thread of the process is held."""
        return self.play.is_free(process)

    def ask(
        self,
        process: str,
        thread: str,
        words: tuple[object, ...],
        then: Then,
        *,
        may_hold: bool = False,  # noqa: ARG002  # nothing of a fork is held
    ) -> None:
        """Runs a command on a thread, which is not held."""
        self.play.ask(process, thread, words, then)

    def kill(self, process: str) -> None:
        """Nothing of it happens any more."""
        self.play.kill(process)

    def confirmed(self) -> None:
        """Its drivers keep no versions."""

    # ---- its runs ---------------------------------------------------------------------------

    def go_on(self, steps: int) -> None:
        """Some steps of its drivers and tasks; a driver starts where none is alive."""
        for _ in range(steps):
            if self.world.problems:
                return
            if not any(job.alive for job in self.jobs):
                self.start_job()
            ready = self.steps()
            if not ready:
                return
            self.dice.choice(ready)()

    def second_start(self) -> None:
        """Another driver beside a living one."""
        if sum(job.alive for job in self.jobs) == 1 and len(self.jobs) < _RUNS_MAX:
            self.start_job()
            self.lab.counters["second starts of forks"] += 1

    def stop(self) -> None:
        """Every run is stopped, and every provider of it."""
        while self.play.held:
            self.play.proceed(next(iter(self.play.held)))
        for job in self.jobs:
            if job.alive:
                self.end_job(job, politely=job.phase != "start")
        self.work.end_all()

    def alone(self, batches: int = 1) -> None:
        """A run that has the query to itself gets on."""
        self.stop()
        if self.world.problems:
            return
        job = self.start_job()
        for _ in range(_ALONE_MAX):
            if job.batches_done >= batches or self.world.problems:
                break
            self.advance_job(job)
            while self.play.held:
                self.play.proceed(next(iter(self.play.held)))
        else:
            self.wrong(f"{job.name}, alone, does not get on: {job}", "false errors")
        self.lab.counters["runs of forks, alone"] += 1

    # ---- what it has to find ----------------------------------------------------------------

    def read(self) -> None:
        """A reader in Python reads a version that the logs name, or the newest confirmed one."""
        newest = len(self.world.logged)
        version = None if self.dice.one_in(3) else max(self.world.oldest, newest - 1)
        if version is None and self.world.unwritten:
            version = newest
        uids = self._uids(version) if version and self.format == 2 else None
        known = [version] if version else range(min(self.begun, newest), newest + 1)
        try:
            got = read_version(self.lab.url, self.gen, version, uids)
        except RedisStateError as error:
            self.wrong(f"reading version {version}: {error}", "false lost")
            return
        self.lab.counters["reads of forks"] += 1
        parts = [[self.world.rows(one, number) for one in known] for number in range(PARTITIONS)]
        if got not in [sorted([*a.items(), *b.items()]) for a in parts[0] for b in parts[1]]:
            self.wrong(f"it reads as {got} in version {version}, not of {parts}", "wrong")

    def _uids(self, version: int) -> list[str]:
        entry = (self.folder / "commits" / str(version - 1)).read_text().splitlines()[1]
        return [str(one[0]) for one in json.loads(entry)["stateUniqueIds"]["0"]]

    def is_told(self, *, must_be: bool) -> None:
        """Starts a run whose state may be lost: a task is told, or loads the right rows."""
        self.stop()
        self.may_be_lost = True
        job = self.start_job()
        for _ in range(_ALONE_MAX):
            if job.failures or job.batches_done or self.world.problems:
                break
            self.advance_job(job)
        if must_be and not job.failures:
            self.wrong("a run went on from nothing", "wrong")
        self.stop()

    def wrong(self, text: str, counter: str) -> None:
        self.lab.counters[counter] += 1
        self.world.problem(f"{self.folder.name}: {text}")

    @property
    def ids(self) -> list[PartitionId]:
        """Its partitions."""
        return [PartitionId(StoreId(self.gen, 0), number) for number in range(PARTITIONS)]


class ForkedStore(PythonStores):
    """A fork of a store of Python, by its own name.

    Attributes:
        of: Id of the checkpoint that pins segments for it; empty once none does.
        words: The command that made it.
    """

    def __init__(self, play: Schedule, parent: PythonStores, name: str, version: int) -> None:
        super().__init__(play)
        self._name = name
        self._rows, self._version = parent.history[version], version
        self.history = {version: self._rows}
        self.of = ""
        self.words: list[str] = []

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self._name

    @property
    def ids(self) -> list[PartitionId]:
        """Its partitions."""
        return [PartitionId(StoreId(self.gen() or "", 0), 0)]


Fork = ForkedQuery | ForkedStore
