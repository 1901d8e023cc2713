"""Many schedules, and every mutant, on as many servers as there are cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count, islice
from multiprocessing import current_process, get_context
from typing import Any

from tests.faults.campaign import Campaign, Group, Result, Verdict
from tests.faults.oracle.mutants import MUTANTS
from tests.faults.oracle.runner import Runner
from tests.faults.oracle.seeds import played
from tests.support.redis_server import RedisServer

_MUTANT_SEEDS = 1600
_AT_ONCE = 25

_FORBIDDEN = ("wrong", "false lost", "false fenced", "orphans", "hangs")

_REQUIRED = {
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
    "plan of retention overtaken": "retain: STALE",
    "scripts flushed": "scripts flushed",
    "rewinds": "rewinds",
    "second starts": "second starts",
    "batches that another driver had logged": "batches that another driver had logged",
    "looks at the log": "acquire: UNSURE",
    "fail-overs": "fail-overs",
    "keys destroyed": "destroyed",
    "loads by uid": "loads by uid",
    "batches logged by one of several attempts": "choices",
    "snapshots of attempts": "snapshots of attempts",
    "queries gone over to format 2": "switches",
    "processes forked amid an attempt": "forks",
    "kept from committing as another's attempt": "publish: TAKEN",
    "loads of rows with a time to live": "timed loads",
    "loads that hid expired rows": "expired rows hidden",
    "batches run again at their time": "batches run again at their time",
    "previews read": "previews read",
    "previews over those of other attempts": "preview: OTHER",
    "previews after the commit": "preview: ENDED",
    "committed parts of a batch that runs": "previewed: NEXT",
    "starts of a query by its tasks": "starts by tasks",
    "batches begun by tasks": "batches begun by tasks",
    "batches begun again by a later start": "batches begun again",
    "tasks of earlier starts sent away": "join: FENCED",
    "tasks of other queries, or with another layout, sent away": "strangers refused",
    "kept frames refused": "kept frames refused",
    "batches refused over missing versions": "batches refused over missing versions",
    "queries forgotten before their first batch": "queries forgotten",
    "purges beside programs that run": "purges",
    "recalls": "recalls",
    "programs refused by a purge's name": "refused by a purge's name",
    "versions kept or forked": "pin: OK",
    "kept versions read": "kept versions read",
    "versions that got a name": "names given",
    "pins without a name that ended": "pins of no name that ended",
    "forks": "forks",
    "forks of forks": "forks of forks",
    "forks that name their parent no more": "detach: OK",
    "pins that ended": "unpin: OK",
    "purges refused over pins": "purge: PINNED",
    "purges by force": "purges by force",
    "late chunks and aborts of what was set aside": "late: known segment",
    "late commits and snapshots of what was set aside": "late: again",
    "sweeps of an older release": "late: orphan",
    "days that went by": "days",
    "segments moved into files": "segments moved",
    "segments read from files": "segments read from files",
    "files that closed slowly": "files that closed slowly",
    "segments brought back": "segments brought back",
    "older versions read": "older versions read",
    "late calls of moved segments": "late calls of moved segments",
    "places refused by a condemned file, or by what is gone": "place: GONE",
    "files condemned by a sweep": "files condemned",
    "files deleted": "files deleted",
    "copies made": "copies made",
    "copies removed": "copies removed",
    "files of copies deleted": "files of copies deleted",
    "partitions restored from a copy": "partitions restored from a copy",
    "walks of copies": "walks of copies",
    "blocks refused above a share": "stage: ROOM",
    "deltas refused above a share": "publish: ROOM",
    "hot runs entered": "hotrun: OK",
    "loads by a hot run": "loads by a hot run",
    "hot runs damaged": "hot runs damaged",
}
_server: RedisServer


@contextmanager
def _workers(jobs: int | None) -> Iterator[Any]:
    """Yields a `map` function: of a process pool, or of this process for a single job."""
    global _server
    if jobs == 1:
        with RedisServer(unix_socket=True) as _server:
            yield map
        return
    # A forked server process would belong to two parents.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    global _server
    _stay_on_one_core()
    _server = RedisServer(unix_socket=True).start()
    # The process pool ends its processes without unwinding them.
    from multiprocessing.util import Finalize

    Finalize(None, _server.stop, exitpriority=10)


def _stay_on_one_core() -> None:
    """Server and client take turns all the time: to wake another core each time cost a fifth."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        cores = sorted(os.sched_getaffinity(0))
        (number,) = current_process()._identity[-1:]  # of the pool
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _some_schedules(seeds: list[int]) -> Group:
    runner = Runner(_server.url, _server.socket)
    failures = [failure for seed in seeds if (failure := runner.run(seed)) is not None]
    runner.close()
    return Group(seeds, Result(runner.counters, failures))


def one_mutant(name: str) -> Verdict:
    """Plays schedules of the mutant's kind, from the first seed on, until one finds it."""
    (of,) = (one.of for one in MUTANTS if one.name == name)
    return played_on(name, islice((seed for seed in count(1) if played(seed) == of), _MUTANT_SEEDS))


def played_on(name: str, seeds: Iterable[int]) -> Verdict:
    """Plays schedules on a mutant, in a worker, until one finds it."""
    (mutant,) = (one for one in MUTANTS if one.name == name)
    runner = Runner(_server.url, _server.socket)
    try:
        with mutant.patch():
            for seed in seeds:
                failure = runner.run(seed)
                if failure is not None:
                    return Verdict(name, failure)
    finally:
        runner.close()
    return Verdict(name, None)


ORACLE = Campaign(
    command="python -m tests.faults.oracle",
    code=("redis_state", "tests/faults/oracle"),
    headline=("commits", "loads compared"),
    forbidden=_FORBIDDEN,
    required=_REQUIRED,
    mutants=MUTANTS,
    mutant_seeds=_MUTANT_SEEDS,
    at_once=_AT_ONCE,
    workers=_workers,
    some_schedules=_some_schedules,
    one_mutant=one_mutant,
)
