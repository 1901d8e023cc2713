"""Price of one option: two queries with the same rows take turns, one with it and one without.

Their states have to be equal before a figure is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tests.bench.__main__ import session
from tests.bench.map_partitions import tree_cpu_s
from tests.bench.page import add_write_option, show
from tests.bench.pairs import LIMIT, row
from tests.bench.workloads import PARTITIONS, Lane, Workload
from tests.spark.streams import PREFIX
from tests.support.redis_server import RedisServer

_WITH, _WITHOUT = "with", "without"
_NAMES = (_WITH, _WITHOUT)


@dataclass(slots=True)
class _Side:
    """Batches of one query: time, and CPU of driver, JVM, workers and server."""

    whole_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OptionPrice:
    """A benchmark of one option.

    Attributes:
        program: Module that is run.
        description: Help of the program.
        option: Name without its prefix.
        value: Value that the query has which pays for it.
        quick: Workload of ``--quick``.
        lines: Returns further lines of the table, from what both queries left in Redis.
    """

    program: str
    description: str | None
    option: str
    value: str
    full: Workload
    quick: Workload
    lines: Callable[[RedisServer], list[str]]

    def main(self) -> int:
        """Runs the benchmark and prints its figures."""
        parser = argparse.ArgumentParser(prog=self.program, description=self.description)
        parser.add_argument(
            "--quick",
            action="store_true",
            help=f"{self.quick.keys:,} keys instead of {self.full.keys:,}",
        )
        parser.add_argument(
            "--pairs",
            type=int,
            metavar="N",
            help=f"pairs of batches to measure (default: {self.full.measured}): a price of a few "
            "percent needs some hundred",
        )
        add_write_option(parser)
        options = parser.parse_args()
        work = self.quick if options.quick else self.full
        if options.pairs is not None:
            work = replace(work, measured=options.pairs)
        sides, lines = self._measured(work)
        command = f"python -m {self.program}{' --quick' if options.quick else ''}"
        text = "\n".join([_head(command, work), "", *_table(sides), *lines, ""])
        show(text, command, options.write)
        return 0

    def _measured(self, work: Workload) -> tuple[Mapping[str, _Side], list[str]]:
        rng = random.Random(5)
        sides = {name: _Side() for name in _NAMES}
        with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
            spark = session(server.url, Path(folder))
            try:
                lanes = self._lanes(spark, Path(folder), work)
                for number in range(work.warm_up + work.measured):
                    start = rng.randrange(work.keys)
                    for name in rng.sample(_NAMES, len(_NAMES)):
                        cpu_s = tree_cpu_s()
                        batch = lanes[name].feed(start, work.updates)
                        if number >= work.warm_up:
                            sides[name].whole_ms.append(batch.trigger_ms)
                            sides[name].cpu_ms.append((tree_cpu_s() - cpu_s) * 1000)
                    print(f"\rbatch {number + 1}", end="", file=sys.stderr)
                print(file=sys.stderr)
                if len({str(lane.state()) for lane in lanes.values()}) != 1:
                    raise SystemExit("the states differ, so no figure is printed")
                lines = self.lines(server)
                for lane in lanes.values():
                    lane.close()
            finally:
                spark.stop()
        return sides, lines

    def _lanes(self, spark: SparkSession, folder: Path, work: Workload) -> dict[str, Lane]:
        """Starts both queries, each filled by one batch."""
        lanes = {}
        for name in _NAMES:
            if name == _WITH:
                spark.conf.set(PREFIX + self.option, self.value)
            lanes[name] = Lane(spark, folder / name, "redis", work)
            spark.conf.unset(PREFIX + self.option)
            lanes[name].feed(0, work.keys)
        return lanes


def _head(command: str, work: Workload) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    return (
        f"`{command}` on {machine}, {date.today().isoformat()}: {work.keys:,} keys in {PARTITIONS} "
        f"partitions, {work.measured} pairs of batches of {work.updates:,} changes; the load of "
        f"the machine was {os.getloadavg()[0]:.1f}."
    )


def _table(sides: Mapping[str, _Side]) -> list[str]:
    with_, without = sides[_WITH], sides[_WITHOUT]
    return [
        "| figure | with | without | found | aim |",
        "|---|---|---|---|---|",
        row("whole batch, ms", with_.whole_ms, without.whole_ms, LIMIT),
        row("CPU of a batch, all processes, ms", with_.cpu_ms, without.cpu_ms, LIMIT),
    ]
