"""`python -m tests.bench.beside [--quick]`: what readers cost a writer that commits beside them.

One process commits a batch of Python stores five times a second, as a query with a trigger does,
and times each. Another one does nothing, reads keys at a pace, by the state itself or by a live
view, follows the changes, or computes for as long as such reads do, without a server: they take
turns, in random order, so that other work of the machine meets all of them. The last one tells what
a busy neighbour costs on this machine, and so what of the reads is the server's part.

A turn begins with batches that are not measured, since who reads all the time knows most blocks;
the snapshots that maintenance makes in the middle of it are new to it, as they are then.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

import redis_state
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.reader import OperatorState
from redis_state.store.provider import StateStoreProvider
from tests.bench.page import add_write_option, show
from tests.bench.ratio import ratio

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NAME = "orders"
PARTITIONS = 4
KEYS = 100_000
UPDATES = 2_000
INTERVAL_S = 0.2
READS_A_SECOND = 1_000
LOOK_S = 0.1
WARM_BATCHES = 5
NOTHING, READS, LIVE, CHANGES, BUSY = "nothing", "reads", "live", "changes", "busy"
TITLES = (
    (READS, NOTHING, f"{READS_A_SECOND:,} reads a second", "nothing"),
    (READS, BUSY, f"{READS_A_SECOND:,} reads a second", "as much computing, and no reads"),
    (LIVE, NOTHING, f"{READS_A_SECOND:,} reads a second of a live view", "nothing"),
    (CHANGES, NOTHING, "a follower of the changes", "nothing"),
)
LIMIT = 1.05
ENOUGH = 0.95
"""Of the reads that are wanted, at least so many have to be done."""


def beside(url: str, pipe: Connection[Any, Any]) -> None:
    """The other process: does what it is told until it is told something else."""
    read_cpu_s = 0.0
    with redis_state.connect(url) as reader:
        query = reader.query(NAME)
        state, live = query.operator(), query.live_view().operator()
        while (task := pipe.recv()) is not None:
            steps = {
                NOTHING: _nothing(),
                READS: _reads(state),
                LIVE: _reads(live),
                CHANGES: _changes(state),
                BUSY: _busy(read_cpu_s),
            }[task]
            next(steps)
            pipe.send(None)
            began, cpu_s, count = time.perf_counter(), time.process_time(), 0
            while not pipe.poll():
                count += next(steps)
            pipe.recv()
            if task == READS:
                read_cpu_s = (time.process_time() - cpu_s) / max(1, count)
            pipe.send((count, time.perf_counter() - began))


def _nothing() -> Iterator[int]:
    while True:
        yield 0
        time.sleep(0.001)


def _reads(state: OperatorState) -> Iterator[int]:
    rng = random.Random(7)
    for _ in _paced():
        state.get(rng.randrange(KEYS))
        yield 1


def _busy(cpu_s: float) -> Iterator[int]:
    # All that it does counts, its pace too, as it did when the reads were measured.
    began = time.process_time()
    for number, _ in enumerate(_paced(), 1):
        while time.process_time() < began + number * cpu_s:
            pass
        yield 1


def _paced() -> Iterator[None]:
    began = time.perf_counter()
    for number in itertools.count():
        ahead = began + number / READS_A_SECOND - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        yield


def _changes(state: OperatorState) -> Iterator[int]:
    (newest,) = itertools.islice(state.changes(since="start"), 1)
    token = newest.token
    yield 0
    while True:
        time.sleep(LOOK_S)
        rows = 0
        for batch in state.changes(since=token):
            rows += sum(1 for _ in batch)
            token = batch.token
        yield rows


class Writer:
    """Commits a version of all partitions at a time."""

    def __init__(self, url: str) -> None:
        self._providers = [
            StateStoreProvider(StateStoreProviderId(StateStoreId(NAME, 0, n), "run"), config=url)
            for n in range(PARTITIONS)
        ]
        self._rng = random.Random(7)
        self._version = 0
        self._commit(range(KEYS))
        self._next_s = 0.0

    def batch(self) -> float:
        """Seconds of one batch, which begins when its time has come."""
        keys = self._rng.sample(range(KEYS), UPDATES)
        time.sleep(max(0.0, self._next_s - time.perf_counter()))
        self._next_s = time.perf_counter() + INTERVAL_S
        began = time.perf_counter()
        self._commit(keys)
        return time.perf_counter() - began

    def maintain(self) -> None:
        """Runs maintenance between two rounds, which keeps the chains of deltas short."""
        for provider in self._providers:
            provider.do_maintenance()

    def _commit(self, keys: Any) -> None:
        for number, provider in enumerate(self._providers):
            store = provider.get_store(self._version)
            for key in keys:
                if key % PARTITIONS == number:
                    store.put(key, {"version": self._version, "key": key})
            store.commit()
        self._version += 1


def measured(url: str, rounds: int, batches: int) -> tuple[dict[str, list[float]], float]:
    """Milliseconds of a batch, the median of each round, and the reads a second that were done."""
    writer = Writer(url)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    other = spawn.Process(target=beside, args=(url, there), daemon=True)
    other.start()
    found: dict[str, list[float]] = {NOTHING: [], READS: [], LIVE: [], CHANGES: [], BUSY: []}
    rates = []
    rng = random.Random(1)

    def turn(task: str) -> tuple[float, float]:
        """Milliseconds of a batch beside the task, and what was done of it in a second."""
        here.send(task)
        here.recv()
        for _ in range(WARM_BATCHES):
            writer.batch()
        times = [writer.batch() for _ in range(batches // 2)]
        writer.maintain()
        times += [writer.batch() for _ in range(batches - len(times))]
        here.send(None)
        count, passed = here.recv()
        return statistics.median(times) * 1000, count / passed

    try:
        turn(READS)  # tells how long reads compute
        for _ in range(rounds):
            for task in rng.sample(list(found), len(found)):
                batch_ms, rate = turn(task)
                found[task].append(batch_ms)
                if task in (READS, LIVE):
                    rates.append(rate)
        here.send(None)
        other.join(timeout=60)
    finally:
        other.kill()
    return found, statistics.median(rates)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.beside", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 30")
    add_write_option(parser)
    options = parser.parse_args()
    rounds, batches = (5, 5) if options.quick else (30, 10)
    command = f"python -m tests.bench.beside{' --quick' if options.quick else ''}"
    with redis_state.EmbeddedRedis() as embedded:
        found, rate = measured(embedded.url, rounds, batches)
    lines = []
    for task, other, title, against in TITLES:
        made = ratio(found[task], found[other])
        assert made is not None
        verdict = "reached" if made.point <= LIMIT else "**missed**"
        if task in (READS, LIVE) and rate < ENOUGH * READS_A_SECOND:
            verdict = "not measured: the machine did not do as many reads"
        ours, theirs = statistics.median(found[task]), statistics.median(found[other])
        lines.append(
            f"| {title} | {ours:.2f} | {against} | {theirs:.2f} | {made} | ≤ {LIMIT:g} {verdict} |"
        )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = (
        f"`{command}` on {machine}, {date.today().isoformat()}: a writer of {UPDATES:,} updates a "
        f"batch in {KEYS:,} keys and {PARTITIONS} partitions, a batch each {INTERVAL_S:g} s, "
        f"medians of {rounds} rounds of {batches} batches; {rate:,.0f} reads a second were done, a "
        f"look at the changes each {LOOK_S:g} s; the load of the machine was "
        f"{os.getloadavg()[0]:.1f}."
    )
    table = [
        "| beside the writer | ms a batch | against | ms a batch | ratio | aim |",
        "|---|---|---|---|---|---|",
    ]
    show("\n".join([head, "", *table, *lines]), command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
