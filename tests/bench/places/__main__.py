"""`python -m tests.bench.places [--rows N | --quick] [--only WORD]`: a state larger than Redis.

Queries with the same rows take turns in random order: one has all of its state in Redis. Others
have `redisMemory` at a twentieth, with the rest in a folder of this machine, or in one that takes
20 ms a request, with and without `localDisk`. One is on RocksDB. Their states have to be equal
before a figure is printed, and Redis has to stay below the bound.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession

from tests.bench.__main__ import session
from tests.bench.page import add_write_option, show
from tests.bench.places.accesses import HOT, SKEWED, UNIFORM, Access, Keys, new_keys
from tests.bench.places.lanes import (
    BOUND_PART,
    PLACES,
    SCHEME,
    SLOW_CLASS,
    Batch,
    Lane,
    Shape,
    be_slow,
    copy_classes,
    least_bound,
)
from tests.bench.places.report import Measured, Sizes, report
from tests.spark.streams import PREFIX
from tests.support.memory_sampler import MemorySampler
from tests.support.redis_server import RedisServer

FULL_ROWS, QUICK_ROWS = 2_000_000, 400_000
UPDATED_PART = 400
REQUEST_MS = 20
_ROW_BYTES, _TEXT_BYTES = 9, 68
_LOCAL_BYTES_MIN = 16 << 20
_FILES = 60


def main() -> int:
    """Runs the benchmark and prints its figures."""
    parser = argparse.ArgumentParser(prog="tests.bench.places", description=__doc__)
    parser.add_argument("--rows", type=int, default=FULL_ROWS, help="rows of the state")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows")
    parser.add_argument("--only", metavar="WORD", help="accesses with this word in their title")
    add_write_option(parser)
    options = parser.parse_args()
    rows = QUICK_ROWS if options.quick else options.rows
    command = "python -m tests.bench.places"
    if options.quick:
        command += " --quick"
    elif rows != FULL_ROWS:
        command += f" --rows {rows}"
    if options.only:
        command += f" --only {options.only}"
    began = time.monotonic()
    sizes = Sizes(rows=rows, updates=max(200, rows // UPDATED_PART), texts=_texts(rows))
    measured = _measure(sizes, options.only or "")
    if not measured:
        parser.error(f"no access has '{options.only}' in its title")
    show(report(command, sizes, measured), command, options.write)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def _texts(rows: int) -> int:
    """Number of random texts of a row: with fewer a twentieth would be below the least bound."""
    lacking = BOUND_PART * least_bound() * 5 // 4 - _ROW_BYTES * rows
    return max(0, -(-lacking // (_TEXT_BYTES * rows)))


def _measure(sizes: Sizes, only: str) -> list[Measured]:
    planned = {
        shape: [access for access in accesses if only in access.title]
        for shape, accesses in (
            (Shape(is_distinct=False, texts=sizes.texts), (HOT, SKEWED, UNIFORM)),
            (Shape(is_distinct=True, texts=sizes.texts), (new_keys(),)),
        )
    }
    if not any(planned.values()):
        return []
    state_bytes = sizes.rows * (_ROW_BYTES + _TEXT_BYTES * sizes.texts)
    # An executor that holds a quarter of what its queries have.
    sizes.local_bytes = max(_LOCAL_BYTES_MIN, state_bytes * (len(PLACES) - 1) // 4)
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        RedisServer() as server,
    ):
        folder = Path(scratch)
        minor = ".".join(pyspark.__version__.split(".")[:2])
        more = {
            "spark.driver.extraClassPath": str(copy_classes(minor, folder)),
            f"spark.hadoop.fs.{SCHEME}.impl": SLOW_CLASS,
            f"{PREFIX}localMemory": f"{sizes.local_bytes}b",
        }
        spark = session(server.url, folder, more)
        try:
            bench = _Bench(spark, server, folder, sizes)
            return [
                one
                for shape, accesses in planned.items()
                if accesses
                for one in bench.run(shape, accesses)
            ]
        finally:
            spark.stop()


class _Bench:
    """Runs queries of one shape after those of another, on one server and one Spark."""

    def __init__(
        self, spark: SparkSession, server: RedisServer, folder: Path, sizes: Sizes
    ) -> None:
        self._spark, self._server, self._folder, self._sizes = spark, server, folder, sizes
        self._order = random.Random(5)
        self._dice = np.random.default_rng(5)

    def run(self, shape: Shape, accesses: Sequence[Access]) -> list[Measured]:
        """Measures all accesses on the queries of one shape."""
        folder = self._folder / ("distinct" if shape.is_distinct else "counts")
        client = self._server.client()
        lanes = [Lane(self._spark, folder / p.name, p, shape, client) for p in PLACES]
        be_slow(self._spark, 0)
        _say("filling")
        # A batch with a bound has to be smaller than the share of a partition.
        step = -(-self._sizes.rows // _FILES)
        first = [
            self._file(np.arange(at, min(at + step, self._sizes.rows)), f"first-{at}")
            for at in range(0, self._sizes.rows, step)
        ]
        all_in_redis, *others = lanes
        all_in_redis.fill(first)
        whole = all_in_redis.used()
        bound = max(least_bound(), whole // BOUND_PART)
        for lane in others:
            lane.bound = bound
            lane.fill(first)
        measured = []
        for number, access in enumerate(accesses):
            measured.append(self._access(access, lanes, whole, bound, is_first=number == 0))
        be_slow(self._spark, 0)
        if len({lane.digest() for lane in lanes}) != 1:
            raise SystemExit("the states differ, so no figure is printed")
        for lane in lanes:
            lane.close()
        return measured

    def _access(
        self, access: Access, lanes: Sequence[Lane], whole: int, bound: int, *, is_first: bool
    ) -> Measured:
        found = Measured(access, whole=whole, bound=bound)
        be_slow(self._spark, 0)
        for number in range(access.warm_up):
            self._round(access, lanes)
            _say(f"{access.title}: warm-up {number + 1}")
            if is_first and number == 0:
                for lane in lanes:
                    if lane.place.is_bounded:
                        lane.wait_for_room()
        be_slow(self._spark, REQUEST_MS)
        with ExitStack() as stack:
            for lane in lanes:
                if lane.place.is_bounded:
                    sampler = MemorySampler(self._server.url, lane.prefix)
                    found.samplers[lane.place.name] = stack.enter_context(sampler)
            before = {lane.place.name: lane.files() for lane in lanes}
            for number in range(access.measured):
                for name, batch in self._round(access, lanes).items():
                    found.batches.setdefault(name, []).append(batch)
                _say(f"{access.title}: batch {number + 1}")
        found.written = {lane.place.name: lane.files() - before[lane.place.name] for lane in lanes}
        for number in range(access.restarts):
            for name, batch in self._round(access, lanes, restart=True).items():
                found.first.setdefault(name, []).append(batch.ms)
            _say(f"{access.title}: restart {number + 1}")
        for name, sampler in found.samplers.items():
            if sampler.peak > bound:
                raise SystemExit(f"{name} had {sampler.peak:,} bytes in Redis, above {bound:,}")
        return found

    def _round(
        self, access: Access, lanes: Sequence[Lane], *, restart: bool = False
    ) -> dict[str, Batch]:
        file = self._file(access.draw(self._dice, self._sizes.rows, self._sizes.updates))
        batches = {}
        for lane in self._order.sample(list(lanes), len(lanes)):
            if restart:
                lane.restart()
            batches[lane.place.name] = lane.feed(file)
        return batches

    def _file(self, keys: Keys, name: str = "batch") -> Path:
        path = self._folder / f"{name}.parquet"
        values = self._dice.integers(0, 1 << 40, len(keys))
        pq.write_table(pa.table({"k": keys, "v": values}), path)
        return path


def _say(what: str) -> None:
    print(f"\r{what:60}", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
