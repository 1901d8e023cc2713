"""Spark Connect: the session is on the other side of gRPC, the provider on the server's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240  # for a machine that is busy with other work


@pytest.mark.compatibility(
    "Spark Connect",
    "aggregation, transformWithStateInPandas",
    refused={
        "4.0": (
            "'GroupedData' object has no attribute 'transformWithStateInPandas'",
            "its Connect client has no transformWithStateInPandas",
        )
    },
)
def test_a_connect_session_keeps_its_state_in_redis(
    shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    job = str(Path(__file__).with_name("connect_job.py"))
    settings = {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # the server takes a free port
    }
    done = subprocess.run(
        [sys.executable, job, str(tmp_path), shared_redis_server.url],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **settings},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["session"] == "pyspark.sql.connect.session"
    assert [run["rows"] for run in found["counts"]] == [
        [["a", 2], ["b", 1]],
        [["a", 2], ["b", 2], ["c", 1]],
    ]
    first = [["a", 0], ["b", 0]]
    for name in ("processor", "in the worker"):
        assert [run["rows"] for run in found[name]] == [
            first,
            sorted([*first, ["b", 1], ["c", 0]]),
        ]
    assert found["live"] == [[["a", 2], ["b", 2], ["c", 1]], [["b", 2], ["z", None]]]
    assert all(run["written"] > 0 for run in found["counts"] + found["processor"])
