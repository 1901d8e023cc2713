"""Timers of a million keys in one partition, without queries: `TimerBench` and its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis_state
from tests.bench.pairs import LANES, LIMIT, TINY_LIMIT, row
from tools.jvm import ROOT, java_command

NAME = "timers alone"
TIMERS, TIMERS_QUICK = 1_000_000, 100_000
BATCHES, BATCHES_QUICK = 20, 7
EXPIRED = 100
_LIMIT_S = 900


def measure(folder: Path, *, quick: bool) -> list[str]:
    """Lines of the table.

    Raises:
        subprocess.CalledProcessError: It failed, or the providers disagree; its output is shown.
    """
    timers, batches = (TIMERS_QUICK, BATCHES_QUICK) if quick else (TIMERS, BATCHES)
    with redis_state.EmbeddedRedis() as server:
        command = java_command("spark-4.3", ROOT / ".venv" / "pyspark-jars", heap="6g")
        command += [
            "org.apache.spark.sql.redisstate.bench.TimerBench",
            *(server.url, str(folder / "timers")),
            *map(str, (timers, EXPIRED, batches)),
        ]
        print(f"{NAME}: {timers:,}", file=sys.stderr)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=True
        )
    lanes = json.loads(done.stdout.splitlines()[-1])
    title = f"{NAME}, {timers:,} registered, {EXPIRED} fire and {EXPIRED} are set: whole batch, ms"
    return [
        _row(title, lanes, "batchNs", limit=LIMIT),
        _row(f"… the scan of the first {EXPIRED}, ms", lanes, "scanNs"),
        _row("… open + commit, ms", lanes, "openCommitNs", limit=TINY_LIMIT),
        _row(f"… new executor: open, and the first {EXPIRED}, ms", lanes, "loadNs"),
    ]


def _row(title: str, lanes: dict[str, Any], series: str, limit: float | None = None) -> str:
    ours, theirs = ([nanos / 1e6 for nanos in lanes[name][series]] for name in LANES)
    return row(title, ours, theirs, limit)
