"""Many schedules over whole processes, and every mutant, on as many JVMs as there are cores."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.faults.campaign import Campaign, Failure, Group, Result, Verdict
from tests.faults.system.lab import Lab
from tests.faults.system.mutants import MUTANTS
from tests.faults.system.schedule import Schedule

_MUTANT_SEEDS = 1200
_AT_ONCE = 20
# What a killed process leaves in the JVM that plays it (its class loader, idle threads) adds up.
_PLAYED_MAX = 2000

_FORBIDDEN = (
    "wrong",
    "false lost",
    "false errors",
    "second identities",
    "not shown as alive",
    "taken in use",
    "used in a forked process",
    "failed aborts",
    "staged keys left",
    "connections left",
    "memory left",
    "keys left",
    "problems of maintain",
    "listed after a purge",
    "rules of pins broken",
)

_REQUIRED = (
    "starts beside a living run",
    "runs ended by Spark's logs",
    "runs ended by the fence",
    "drivers ended",
    "processes killed",
    "speculative tasks",
    "late tasks of ended runs",
    "aborts on an interrupted thread",
    "aborts of staged rows",
    "rows read again for lack of memory",
    "held between two steps of a file",
    "providers unloaded",
    "maintenance by Spark",
    "maintenance by Python",
    "searches for vanished checkpoints",
    "long runs ended before a search",
    "purges while a task lists the query",
    "purge of a query in use",
    "rewind of a query in use",
    "restore of a query in use",
    "purge of Python's in use",
    "rewinds",
    "restores",
    "state readers",
    "reads by Python",
    "reads of what was published last",
    "signs of life looked at",
    "time went by",
    "folders moved",
    "commits by Python",
    "siblings of Python",
    "runs of Python that were overtaken",
    "forks with an open store",
    "losses told to Python",
    "vanished checkpoints called back",
    "batches of processors",
    "starts of a processor",
    "stale frames refused",
    "rewind of a processor",
    "rewinds cut off",
    "rewinds undone",
    "import of a processor",
    "imports over 0 partitions of 2",
    "imports over 1 partitions of 2",
    "imports over 2 partitions of 2",
    "losses mended by what doctor printed",
    "processors called back",
    "losses told to a processor",
    "forks of a query",
    "forks of a store of Python",
    "forks of forks",
    "forks of an older batch",
    "forks killed",
    "forks cut off from the server",
    "forks given up",
    "others go on amid forks",
    "a day amid forks",
    "forks pinned anew before maintenance ends their pins",
    "forks go on",
    "reads of forks",
    "second starts of forks",
    "rewinds of a fork",
    "rewinds below the beginning of a fork",
    "purges refused for pins",
    "parents purged by force",
    "forks purged and called back",
    "forks purged for good",
    "forks called back",
    "losses told to forks",
    "forks detached",
    "detaches killed",
    "detaches cut off from the server",
    "detaches given up",
    "detaches refused for pins",
    "others go on amid detaches",
    "pins of detached forks ended",
    "replays",
    "kept versions",
    "versions kept by a driver",
    "keeps behind all tasks of a batch",
    "keeps killed",
    "keeps cut off from the server",
    "keeps given up",
    "keeps with the same name",
    "names given anew before removing a name",
    "names given anew before ending a pin",
    "keeps of a query that goes on",
    "reads of kept versions",
    "reads of expired names",
    "kept versions dropped",
    "drops killed",
    "checks of all pins",
    "pins of kept versions compared",
    "checks that no pin is left",
)


class Runner:
    """Schedules on one JVM, one after the other."""

    def __init__(self, mutant: str | None = None) -> None:
        self._mutant = mutant
        self._lab: Lab | None = None
        self._played = 0

    def run(self, seed: int, result: Result) -> Failure | None:
        """Play a seed, and count it."""
        if self._lab is None or self._played == _PLAYED_MAX:
            self.close()
            self._lab, self._played = Lab(self._mutant), 0
        lab = self._lab
        self._played += 1
        lab.counters.clear()
        try:
            problems = Schedule(lab, seed).play()
        except Exception as error:  # noqa: BLE001  # told with its seed; the next has a new JVM
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            problems = [f"{type(error).__name__}: {error} ({where})"]
            self.close()
        result.counters.update(lab.counters)
        result.counters["schedules"] += 1
        if not problems:
            return None
        result.failures.append(Failure(seed, tuple(problems)))
        return result.failures[-1]

    def close(self) -> None:
        """End the JVM and its server."""
        if self._lab is not None:
            self._lab.close()
        self._lab = None


@contextmanager
def _workers(jobs: int | None) -> Iterator[Any]:
    if jobs == 1:
        try:
            yield map
        finally:
            _end()
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


_runner = Runner()


def _start() -> None:
    # The process pool ends its processes without unwinding them.
    from multiprocessing.util import Finalize

    Finalize(None, _end, exitpriority=10)


def _end() -> None:
    _runner.close()


def _some_schedules(seeds: list[int]) -> Group:
    result = Result()
    for seed in seeds:
        _runner.run(seed, result)
    return Group(seeds, result)


def _one_mutant(name: str) -> Verdict:
    (mutant,) = (one for one in MUTANTS if one.name == name)
    with mutant.applied() as folder:
        runner = Runner(folder)
        try:
            for seed in range(1, _MUTANT_SEEDS + 1):
                failure = runner.run(seed, Result())
                if failure is not None:
                    return Verdict(name, failure)
        finally:
            runner.close()
    return Verdict(name, None)


SYSTEM = Campaign(
    command="python -m tests.faults.system",
    code=("redis_state", "jvm-adapter", "tests/faults/oracle", "tests/faults/system"),
    headline=("batches", "commits", "loads compared"),
    forbidden=_FORBIDDEN,
    required={name: name for name in _REQUIRED},
    mutants=MUTANTS,
    mutant_seeds=_MUTANT_SEEDS,
    at_once=_AT_ONCE,
    workers=_workers,
    some_schedules=_some_schedules,
    one_mutant=_one_mutant,
)
