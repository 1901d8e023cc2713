"""Runs the fuzz of values from a seed on: `python -m tests.spark.fuzz_values --help`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import redis_state
from tests.spark.fuzz_values import campaign
from tests.spark.fuzz_values.ways_out import Findings
from tests.spark.streams import FORMAT, Streams
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import application

_PARTS = ("objects", "forms", "operators")

Part = Callable[[Sequence[int]], Findings]


def main() -> int:
    """Run what the arguments ask for; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog=campaign.COMMAND, description=__doc__)
    parser.add_argument("--part", choices=_PARTS, help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--schemas", type=int, default=campaign.SCHEMAS, help="how many")
    parser.add_argument("--moved", action="store_true", help="migrate each query there and back")
    parser.add_argument("--shrink", action="store_true", help="halve the seeds that fail")
    asked = parser.parse_args()
    seeds = range(asked.seed, asked.seed + asked.schemas)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    found = Findings()
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        parts = _parts(server.url, Path(folder), moved=asked.moved)
        for part in [asked.part] if asked.part else _PARTS:
            for some in campaign.groups(seeds):
                one = parts[part](some)
                found.add(_shrunk(parts[part], some, one) if asked.shrink and one.faults else one)
                print(f"{part}: {some[-1]} of {seeds[-1]}, {len(found.faults)} faults", flush=True)
    return _tell(found)


def _parts(url: str, folder: Path, *, moved: bool) -> dict[str, Part]:
    settings = {"spark.sql.shuffle.partitions": "2", FORMAT: "1", "spark.driver.memory": "3g",
                "spark.sql.session.timeZone": "UTC"}  # fmt: skip

    @lru_cache(None)
    def streams() -> Streams:
        builder = application("fuzz of values", folder, settings, master="local[2]")
        spark = redis_state.configure(builder, url=url, deadline="3s", versions_to_retain=20)
        session = spark.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        return Streams(session, folder)

    return {
        "objects": lambda seeds: campaign.objects(url, seeds),
        "forms": lambda seeds: campaign.forms(streams(), url, seeds),
        "operators": lambda seeds: campaign.operators(streams(), url, seeds, moved=moved),
    }


def _shrunk(run: Part, seeds: Sequence[int], found: Findings) -> Findings:
    """The faults of the half that still has some, halved as long as one has."""
    if len(seeds) == 1:
        return found
    middle = len(seeds) // 2
    for half in (seeds[:middle], seeds[middle:]):
        one = run(half)
        if one.faults:
            return _shrunk(run, half, one)
    return found


def _tell(found: Findings) -> int:
    for way, count in sorted(found.compared.items()):
        refused = sum(n for name, n in found.refused.items() if name.startswith(way + ":"))
        print(f"{way}: {count:,} compared, {refused:,} refused by name")
    for fault in found.faults:
        print(f"FAILED {fault}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
