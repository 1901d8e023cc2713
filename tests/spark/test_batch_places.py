"""Partitions of Python's stores stay with the executors that have their state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.places_job import BATCHES, PARTITIONS
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]


def test_next_batch_is_scheduled_on_the_worker_with_the_state(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.places_job", str(tmp_path), redis_server.url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=240,
        check=True,
    )
    batches = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [batch["seen"] for batch in batches] == [100 * (n + 1) for n in range(BATCHES)]
    first, *later = [batch["workers"] for batch in batches]
    assert len(first) == PARTITIONS
    assert later == [first] * (BATCHES - 1)
