"""Many schedules, and every mutant, on as many servers as there are cores."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context

from tests.faults.oracle.mutants import MUTANTS
from tests.faults.oracle.runner import Failure, Runner
from tests.support.redis_server import RedisServer

MUTANT_SEEDS = 400
"""A mutant has to be found by one of so many schedules."""

_AT_ONCE = 25

FORBIDDEN = ("wrong", "false lost", "false fenced", "orphans", "hangs")
"""Counters that must be zero."""

REQUIRED = {
    "resent and already there": "publish: ALREADY",
    "fenced by epoch": "publish: FENCED epoch",
    "fenced by opened": "publish: FENCED opened",
    "replaced after it was read": "acquire: FENCED replaced",
    "unregistered run kept from going back": "acquire: FENCED unregistered",
    "incomplete": "publish: INCOMPLETE",
    "reopen": "publish: REOPEN",
    "late chunk of a published segment": "stage: PUBLISHED",
    "snapshot finished by another": "snapshot: EXISTS",
    "snapshot of a version that was left": "snapshot: STALE",
    "reader restarted by maintenance": "segment replaced while it was read",
    "scripts flushed": "scripts flushed",
    "rewinds": "rewinds",
    "fail-overs": "fail-overs",
    "keys destroyed": "destroyed",
}
"""What a run has to meet, and the counter that says so."""


@dataclass
class Result:
    """What schedules met, and those that broke a rule."""

    counters: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def complaints(self) -> list[str]:
        """Why the run does not pass; empty if it does."""
        found = [str(failure) for failure in self.failures]
        found += [f"{name}: {self.counters[name]}" for name in FORBIDDEN if self.counters[name]]
        return found + [
            f"no schedule met '{name}'" for name, key in REQUIRED.items() if not self.counters[key]
        ]


@dataclass(frozen=True)
class Verdict:
    """Whether a mutant was found; `failure` is how."""

    name: str
    failure: Failure | None


def schedules(seeds: Iterable[int], tell: Callable[[int], None] = lambda _n: None) -> Result:
    """Run schedules; `tell` hears after each group how many are done."""
    result = Result()
    done = 0
    with _pool() as pool:
        for counters, failures in pool.map(_some_schedules, _groups(seeds)):
            result.counters.update(counters)
            result.failures += failures
            done = result.counters["schedules"]
            tell(done)
    return result


def mutants(names: Sequence[str], seeds: int = MUTANT_SEEDS) -> Iterator[Verdict]:
    """Run schedules on each of these mutants until one breaks a rule."""
    with _pool() as pool:
        yield from pool.map(_one_mutant, names, [seeds] * len(names))


_server: RedisServer


def _pool() -> ProcessPoolExecutor:
    # A forked server process would belong to two parents.
    return ProcessPoolExecutor(
        os.cpu_count() or 1, mp_context=get_context("spawn"), initializer=_start
    )


def _start() -> None:
    global _server
    _server = RedisServer(unix_socket=True).start()
    # The process pool ends its processes without unwinding them.
    from multiprocessing.util import Finalize

    Finalize(None, _server.stop, exitpriority=10)


def _groups(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while group := list(islice(rest, _AT_ONCE)):
        yield group


def _some_schedules(seeds: list[int]) -> tuple[Counter[str], list[Failure]]:
    runner = Runner(_server.url, _server.socket)
    failures = [failure for seed in seeds if (failure := runner.run(seed)) is not None]
    runner.close()
    return runner.counters, failures


def _one_mutant(name: str, seeds: int) -> Verdict:
    (mutant,) = (one for one in MUTANTS if one.name == name)
    runner = Runner(_server.url, _server.socket)
    try:
        with mutant.patch():
            for seed in range(1, seeds + 1):
                failure = runner.run(seed)
                if failure is not None:
                    return Verdict(name, failure)
    finally:
        runner.close()
    return Verdict(name, None)
