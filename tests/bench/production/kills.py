"""An executor is killed, and the next batch has to open its partitions elsewhere."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from tests.bench.production.lanes import Lane, Lanes
from tests.bench.workloads import PROVIDERS
from tests.faults.processes import EXECUTOR, descendants, kill, named
from tests.support.waiting import wait_until

_EXECUTORS = 2
_SETTLING = 3
"""Batches after a kill until every lane is in memory again."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill.

    Attributes:
        seconds: From the kill until the next batch was done.
        partitions: How many of the lane's partitions the executor held.
    """

    seconds: float
    partitions: int


def measure_kills(spark: SparkSession, lanes: Lanes, times: int) -> dict[str, list[Recovery]]:
    """Kills, for each provider in turns, the executor that holds most of its partitions."""
    found: dict[str, list[Recovery]] = {name: [] for name in PROVIDERS}
    for turn in range(times):
        order = list(PROVIDERS)
        for provider in order[turn % len(order) :] + order[: turn % len(order)]:
            found[provider].append(_recovery(spark, lanes, lanes.all[provider]))
            print(
                f"\r\033[Kkilled executors: turn {turn + 1} of {times}, {provider}",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print(file=sys.stderr)
    return found


def _recovery(spark: SparkSession, lanes: Lanes, lane: Lane) -> Recovery:
    (executor, partitions), *_ = Counter(lane.executors()).most_common(1)
    kill(_pid_of(executor))
    batch = lanes.feed(first=lane.provider)[lane.provider]
    wait_until(lambda: _executors(spark) == _EXECUTORS, "the new executor")
    for _ in range(_SETTLING):
        lanes.feed()
    return Recovery(batch.wall_ms / 1e3, partitions)


def _executors(spark: SparkSession) -> int:
    """Live executors; Spark counts the driver with them."""
    context = spark.sparkContext._jsc
    return int(context.sc().getExecutorMemoryStatus().size()) - 1


def _pid_of(executor: str) -> int:
    for pid in named(descendants(os.getpid()), EXECUTOR):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if words[words.index("--executor-id") + 1] == executor:
            return pid
    raise RuntimeError(f"executor {executor} has no process")
