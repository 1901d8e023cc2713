"""Processes that keep the stores of a fleet, and a server whose use is measured."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import resource
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import redis

from redis_state import stores
from redis_state.codec import RAW
from redis_state.ids import StateStoreId, StateStoreProviderId

WORKERS = 2  # more would share the same cores
ROWS = 100
UPDATES = 5
_VALUE_BYTES = 24
_LATE_S = 120


@dataclass(frozen=True, slots=True)
class Fleet:
    """Queries of one server.

    Attributes:
        versions: Batches that each store commits before anything is measured.
    """

    queries: int
    partitions: int
    versions: int

    @property
    def stores(self) -> int:
        """Number of stores of all queries."""
        return self.queries * self.partitions


@dataclass(slots=True)
class Work:
    """Batches of some workers.

    Attributes:
        seconds: Seconds from opening to the end of the commit, of each batch of a store.
        late: Batches of the plan that were not run in their second.
        cpu_s: Processor time of the workers.
        passed_s: Longest time of a worker.
    """

    seconds: list[float] = field(default_factory=list)
    late: int = 0
    cpu_s: float = 0.0
    passed_s: float = 0.0

    def add(self, other: Work) -> None:
        """Adds the batches of another worker, which ran beside it."""
        self.seconds += other.seconds
        self.late += other.late
        self.cpu_s += other.cpu_s
        self.passed_s = max(self.passed_s, other.passed_s)

    def quantile_ms(self, part: float) -> float:
        """Milliseconds of a batch that this part of all batches do not exceed."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(len(self.seconds) * part))] * 1e3


class Server:
    """Counters of a server.

    Args:
        client: A connection that nobody else uses.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def cpu_s(self) -> float:
        """Processor time so far."""
        found = self.client.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    def commands(self) -> int:
        """Commands so far, those of scripts included."""
        return int(self.client.info("stats")["total_commands_processed"])

    def used(self) -> int:
        """Bytes that it holds."""
        return int(self.client.info("memory")["used_memory"])


class Workers:
    """Processes that share the stores of a fleet."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def run(self, what: str, how_much: float) -> Work:
        """Runs batches in all workers at once: see `_STEPS`.

        Raises:
            EOFError: A worker has ended.
        """
        for pipe in self._pipes:
            pipe.send((what, how_much))
        work = Work()
        for pipe in self._pipes:
            work.add(pipe.recv())
        return work


@contextmanager
def working(url: str, fleet: Fleet) -> Iterator[Workers]:
    """Starts the workers; they end with the block."""
    context = multiprocessing.get_context("spawn")
    every = list(itertools.product(range(fleet.queries), range(fleet.partitions)))
    with ExitStack() as stack:
        pipes = []
        for number in range(WORKERS):
            here, there = context.Pipe()
            own = every[number::WORKERS]
            process = context.Process(target=_serve, args=(there, url, own), daemon=True)
            process.start()
            # The worker has this side alone: its end is seen here.
            there.close()
            stack.callback(process.join, _LATE_S)
            pipes.append(stack.enter_context(here))
        yield Workers(pipes)


class _Stores:
    """The stores of one process, each at its newest version."""

    def __init__(self, url: str, own: Sequence[tuple[int, int]]) -> None:
        self._url = url
        self._ids = [
            StateStoreProviderId(StateStoreId(f"query {query}", 0, partition), str(uuid.uuid4()))
            for query, partition in own
        ]
        self._versions = [0] * len(own)
        self._chance = random.Random(len(own))

    def commit(self, number: int) -> float:
        """Runs a batch of a store; returns its seconds."""
        version = self._versions[number]
        rows = range(ROWS) if version == 0 else self._chance.sample(range(ROWS), UPDATES)
        changed = [(b"key %08d" % row, self._chance.randbytes(_VALUE_BYTES)) for row in rows]
        began_s = time.perf_counter()
        store = stores.get(self._ids[number], version, url=self._url, codec=RAW)
        for key, value in changed:
            store.put(key, value)
        store.commit()
        self._versions[number] = version + 1
        return time.perf_counter() - began_s

    def fill(self, batches: float) -> Work:
        """Runs so many batches of each store."""
        return Work([self.commit(n) for _ in range(int(batches)) for n in range(len(self._ids))])

    def idle(self, seconds: float) -> Work:
        """Runs no batch for so long; heartbeats and maintenance go on."""
        time.sleep(seconds)
        return Work()

    def each_second(self, seconds: float) -> Work:
        """Runs a batch of each store in each second, evenly spread."""
        work, step = Work(), 1 / len(self._ids)
        began_s = time.perf_counter()
        for turn in range(int(seconds)):
            for number in range(len(self._ids)):
                due_s = began_s + turn + number * step
                wait_s = due_s - time.perf_counter()
                if wait_s > 0:
                    time.sleep(wait_s)
                elif wait_s < -1:
                    work.late += 1
                    continue
                work.seconds.append(self.commit(number))
        return work

    def saturate(self, seconds: float) -> Work:
        """Runs one batch after the other for so long."""
        work, end_s = Work(), time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < end_s:
            work.seconds.append(self.commit(number))
            number = (number + 1) % len(self._ids)
        return work

    def restart(self, _: float) -> Work:
        """Forgets all stores, as a new process has none, and runs a batch of each."""
        stores.stop()
        self._ids = [StateStoreProviderId(id_.store_id, str(uuid.uuid4())) for id_ in self._ids]
        return self.fill(1)


_STEPS = {
    "fill": _Stores.fill,
    "idle": _Stores.idle,
    "each second": _Stores.each_second,
    "saturate": _Stores.saturate,
    "restart": _Stores.restart,
}


def _serve(pipe: Connection, url: str, own: Sequence[tuple[int, int]]) -> None:
    kept = _Stores(url, own)
    # The bench closes its side at the end.
    with suppress(EOFError):
        while True:
            what, how_much = pipe.recv()
            began_s, cpu_s = time.perf_counter(), _cpu_s()
            work = _STEPS[what](kept, how_much)
            work.passed_s = time.perf_counter() - began_s
            work.cpu_s = _cpu_s() - cpu_s
            pipe.send(work)
    stores.stop()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
