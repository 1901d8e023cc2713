"""Figures of queries at Spark's own endpoint for Prometheus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


def names_of_the_page() -> set[str]:
    """The first cells of its table, with the number of an operator."""
    _, _, section = (ROOT / "docs" / "metrics.md").read_text("utf-8").partition("## In Spark")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    return {name.replace("<n>", "0") for name in names}


def test_sparks_endpoint_has_the_metrics_of_a_running_query(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.gauges_job", str(tmp_path), redis_server.url],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    during, after, twins = map(json.loads, done.stdout.splitlines())
    assert after == {}, "the query has ended"
    end = "_batch_Value"
    first, second = sorted(name.removesuffix(end) for name in twins if name.endswith(end))
    assert first == "metrics_job_driver_redisState_twin"
    assert re.fullmatch(f"{first}_[0-9a-f]{{8}}", second)
    head = "metrics_job_driver_redisState_counts_of_events_"
    of_query = {
        name.removeprefix(head).removesuffix("_Value"): value
        for name, value in during.items()
        if name.endswith("_Value")
    }
    assert set(of_query) == {name.replace(".", "_") for name in names_of_the_page()}
    assert of_query["batch"] == 1
    assert of_query["operator0_rows"] == of_query["operator0_rowsWritten"] == 5
    assert of_query["operator0_bytesSent"] > 0
