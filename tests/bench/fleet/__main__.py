"""`python -m tests.bench.fleet [--quick]`: many queries on one server.

The stores are real Python stores of a few rows, in two processes, without queries of Spark. The
server is measured while they rest, while each runs a batch a second, and while they run as many as
they can; then with a neighbour that writes much, with a thousand queries in all views, during
upkeep, and when all start again at once. In the end as many providers of the JVM adapter, in
another process, run batches. Clients and server share the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from redis_state.maintain import PassControl, Policy
from redis_state.maintain.rotation import TURNS
from redis_state.maintain.service import Job, Service
from tests.bench.fleet.neighbour import MIB, Way, neighbour, victim
from tests.bench.fleet.providers import Providers, providing
from tests.bench.fleet.watchers import client_of, clone_queries, seconds_of_views
from tests.bench.fleet.workers import ROWS, UPDATES, Fleet, Server, Work, Workers, working
from tests.bench.page import add_write_option, show
from tests.support.redis_server import RedisServer

VIEW_S_MAX = 1.0
NEIGHBOUR_MAX = 2.0
UPKEEP_PERCENT_MAX = 0.1
ROUNDS = 4
_WARM_UP_MAX = 30  # batches, in which the JVM compiles its code
_UPKEEP_EVERY_S = 60
_UPKEEP_PARTITIONS = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run.

    Attributes:
        viewed: Queries in all views and during upkeep.
        seconds: Seconds of each measurement of stores.
        megabytes_s: Rate of the neighbour.
    """

    fleet: Fleet
    viewed: int
    seconds: float
    megabytes_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """Line of the table; `aim` is empty where nothing is aimed at."""

    title: str
    found: str
    client: str = ""
    aim: str = ""

    def __str__(self) -> str:
        return f"| {self.title} | {self.found} | {self.client} | {self.aim} |"


class Bench:
    """The measurements of one run."""

    def __init__(self, server: RedisServer, sizes: Sizes, folder: Path) -> None:
        self._redis = server
        self._client = server.client(socket_timeout=60)
        self._server = Server(self._client)
        self._sizes = sizes
        self._folder = folder

    def lines(self) -> Iterator[Line]:
        """Yields the lines, while the fleet runs."""
        fleet, seconds = self._sizes.fleet, self._sizes.seconds
        with working(self._redis.url, fleet) as workers:
            _told("filling")
            workers.run("fill", fleet.versions)
            used = self._server.used()
            yield Line(f"memory of the server, {fleet.stores:,} stores", f"{used / MIB:,.0f} MiB")
            _told("idle")
            cpu_s = self._server.cpu_s()
            rest = workers.run("idle", seconds)
            share = (self._server.cpu_s() - cpu_s) / seconds
            yield Line("idle: CPU of the server", f"{share:.2%} of a core", _cores(rest))
            yield from self._batches(workers)
            _told("neighbour")
            yield from self._neighbour()
            _told("fail-over")
            yield from self._restart(workers)
        _told("views")
        count = clone_queries(self._client, self._sizes.viewed)
        yield from self._views(count)
        _told("upkeep")
        yield from self._upkeep()
        yield from self._providers()

    def _providers(self) -> Iterator[Line]:
        """Yields lines of as many providers in one JVM, on the same server."""
        fleet = self._sizes.fleet
        with providing(self._redis.url, fleet, self._folder / "providers") as providers:
            _told("filling providers")
            providers.run("fill", min(fleet.versions, _WARM_UP_MAX))
            yield from self._batches(providers)

    def _batches(self, workers: Workers | Providers) -> Iterator[Line]:
        fleet, seconds = self._sizes.fleet, self._sizes.seconds
        of = " of the JVM" if isinstance(workers, Providers) else ""
        steps = (("each second", "a batch a second"), ("saturate", "as many as can be"))
        for what, title in ((what, f"{title}{of}") for what, title in steps):
            _told(title)
            cpu_s = self._server.cpu_s()
            work = workers.run(what, seconds)
            busy = (self._server.cpu_s() - cpu_s) / work.passed_s
            rate = len(work.seconds) / work.passed_s
            each_us = busy / rate * 1e6
            late = f", {work.late:,} not in their second" if work.late else ""
            yield Line(f"{title}: commits a second", f"{rate:,.0f}{late}", _cores(work))
            yield Line(
                f"{title}: open + commit of a store",
                f"p50 {work.quantile_ms(0.5):.1f} ms, p99 {work.quantile_ms(0.99):.1f} ms",
            )
            alone = f"{each_us:.0f} µs a commit, so {1e6 / each_us:,.0f} would fill it"
            yield Line(f"{title}: CPU of the server", f"{busy:.1%} of a core: {alone}")
        yield Line(f"stores{of}", f"{fleet.queries:,} queries × {fleet.partitions} partitions")

    def _neighbour(self) -> Iterator[Line]:
        """Yields medians of rounds, in which each way of a neighbour has its turn.

        A neighbour on another server of the machine takes the same cores, and nothing else.
        """
        seconds, rate = self._sizes.seconds / ROUNDS, self._sizes.megabytes_s
        here, folder = self._redis.url, self._folder / "another"
        folder.mkdir()
        with RedisServer(folder=folder) as another:
            turns = {"without a neighbour": None} | {
                f"beside one that stages {rate:.0f} MB/s in {way.value}": (here, way) for way in Way
            }
            turns["beside scripts of 64 KiB on another server"] = another.url, Way.SCRIPTS
            works: dict[str, list[Work]] = {title: [] for title in turns}
            for _ in range(ROUNDS):
                for title, turn in turns.items():
                    with ExitStack() as stack:
                        if turn is not None:
                            url, way = turn
                            stack.enter_context(neighbour(url, megabytes_s=rate, way=way))
                        works[title].append(victim(here, seconds))
        quiet = _middle(works["without a neighbour"], 0.99)
        for title, found in works.items():
            p50, p99 = _middle(found, 0.5), _middle(found, 0.99)
            is_ours = turns[title] in ((here, Way.SCRIPTS), (here, Way.TRANSACTIONS))
            yield Line(
                f"a small batch {title}",
                f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {p99 / quiet:.1f} ×",
                aim=_aim(NEIGHBOUR_MAX, p99 / quiet, "×") if is_ours else "",
            )

    def _restart(self, workers: Workers) -> Iterator[Line]:
        self._redis.shutdown()
        began_s = time.perf_counter()
        self._redis.restart()
        loaded_s = time.perf_counter() - began_s
        cpu_s = self._server.cpu_s()
        work = workers.run("restart", 1)
        busy_s = self._server.cpu_s() - cpu_s
        yield Line("the server is back with its data", f"{loaded_s:.1f} s")
        yield Line(
            "all stores start again: until each has opened and committed",
            f"{work.passed_s:.1f} s, p99 of one {work.quantile_ms(0.99):.1f} ms, "
            f"{busy_s:.2f} s of the server",
            _cores(work),
        )

    def _views(self, count: int) -> Iterator[Line]:
        for title, found in seconds_of_views(self._redis.url, self._folder / "dashboard.log"):
            middle = statistics.median(found)
            yield Line(
                f"{title}, {count:,} queries",
                f"{middle:.2f} s, longest {max(found):.2f} s",
                aim=_aim(VIEW_S_MAX, middle, "s"),
            )

    def _upkeep(self) -> Iterator[Line]:
        with client_of(self._redis.url) as client:
            service = Service(
                client,
                Job(Policy("fleet", again=False)),
                control=PassControl(),
                wait=lambda _: True,
            )
            for _ in range(2):
                service.run_pass()  # adds snapshots, and drops what they replace
            whole = Service(
                client, Job(Policy("fleet")), control=PassControl(), wait=lambda _: True
            )
            yield from self._passes("everything, as in the first pass", [whole])
            yield from self._passes("a tenth in turn", [service] * TURNS)

    def _passes(self, title: str, services: list[Service]) -> Iterator[Line]:
        commands, cpu_s = self._server.commands(), self._server.cpu_s()
        own_s, began_s = time.process_time(), time.perf_counter()
        reports = [service.run_pass() for service in services]
        passes = len(services)
        passed_s = (time.perf_counter() - began_s) / passes
        cpu_s = (self._server.cpu_s() - cpu_s) / passes
        own_s = (time.process_time() - own_s) / passes
        commands = (self._server.commands() - commands) // passes
        partitions = reports[0].partitions
        verified = sum(report.verified for report in reports) // passes
        thousand = _UPKEEP_PARTITIONS / partitions / _UPKEEP_EVERY_S
        percent = cpu_s * thousand * 100
        yield Line(
            f"a pass of upkeep over {partitions:,} idle partitions: {title}",
            f"{commands:,} commands, {verified:,} of {reports[0].named:,} segments verified, "
            f"{passed_s:.2f} s",
            f"{own_s * thousand:.2%} of a core for 1,000 partitions",
        )
        yield Line(
            "… CPU of the server, for 1,000 partitions and a pass a minute",
            f"{percent:.3f} % of a core",
            aim=_aim(UPKEEP_PERCENT_MAX, percent, "%") if passes > 1 else "",
        )


def _middle(works: list[Work], part: float) -> float:
    return statistics.median(work.quantile_ms(part) for work in works)


def _cores(work: Work) -> str:
    return f"{work.cpu_s / work.passed_s:.1%} of a core" if work.passed_s else ""


def _aim(most: float, found: float, unit: str) -> str:
    return f"≤ {most:g} {unit} {'reached' if found <= most else '**missed**'}"


def _told(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> int:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="tests.bench.fleet", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute: fewer of everything")
    parser.add_argument("--queries", type=int, help="queries that run (250, quick: 25)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of a query (4)")
    parser.add_argument("--versions", type=int, help="batches before (100, quick: 10)")
    parser.add_argument("--viewed", type=int, help="queries in all views (1,000, quick: 100)")
    parser.add_argument("--seconds", type=float, help="seconds of each measurement (20, quick: 4)")
    parser.add_argument("--megabytes", type=float, default=100, help="MB/s of the neighbour (100)")
    add_write_option(parser)
    asked = parser.parse_args()
    quick = asked.quick
    queries = asked.queries or (25 if quick else 250)
    sizes = Sizes(
        Fleet(queries, asked.partitions, asked.versions or (10 if quick else 100)),
        viewed=asked.viewed or (100 if quick else 1_000),
        seconds=asked.seconds or (4 if quick else 20),
        megabytes_s=asked.megabytes,
    )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "redis"
        data.mkdir()
        with RedisServer(folder=data) as server:
            lines = [str(line) for line in Bench(server, sizes, Path(folder)).lines()]
    command = f"python -m tests.bench.fleet{' --quick' if quick else ''}"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = (
        f"`{command}` on {machine}, {date.today().isoformat()}; {queries:,} queries of "
        f"{asked.partitions} partitions with {ROWS} rows each, {UPDATES} of them changed by a "
        f"batch, after {sizes.fleet.versions} batches; clients and server share the machine, whose "
        f"load was {os.getloadavg()[0]:.1f}."
    )
    table = ["| figure | found | CPU of the clients | aim |", "|---|---|---|---|"]
    show("\n".join([head, "", *table, *lines, ""]), command, asked.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
