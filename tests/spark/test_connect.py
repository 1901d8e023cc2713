"""Spark Connect: the session is on the other side of gRPC, the provider on the server's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240  # for a machine that is busy with other work


SEEN = [[["a", 0], ["b", 0]], [["a", 0], ["b", 0], ["b", 1], ["c", 0]]]


def run(job: str, server: RedisServer, folder: Path, *words: str) -> dict[str, Any]:
    """The last line that a script prints."""
    settings = {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # the server takes a free port
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(job)), str(folder), server.url, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **settings},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["session"] == "pyspark.sql.connect.session"
    return found


@pytest.mark.compatibility("Spark Connect", "aggregation, redis_state.transform_with_state")
def test_a_connect_session_keeps_its_state_in_redis(
    shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    found = run("connect_job.py", shared_redis_server, tmp_path, "counts", "in the worker")
    assert [run["rows"] for run in found["counts"]] == [
        [["a", 2], ["b", 1]],
        [["a", 2], ["b", 2], ["c", 1]],
    ]
    assert all(run["written"] > 0 for run in found["counts"])
    assert [run["rows"] for run in found["in the worker"]] == SEEN


def test_connect_session_runs_batches_without_rows_and_refuses_by_name(
    shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    found = run("connect_job.py", shared_redis_server, tmp_path, "limits")
    assert found["filtered"] == [["kept", 0], ["kept", 1]]
    assert "Over Spark Connect, foreachBatch evaluates it outside of" in found["foreachBatch"]
    assert ["comes from 2 calls" in one for one in found["watermarks"]] == [1, 0, 1]
    assert "only some of the united streams have a watermark" in found["watermarks"][1]


@pytest.mark.long
@pytest.mark.compatibility(
    "Spark Connect",
    "transformWithStateInPandas",
    refused={
        "4.0": (
            "'GroupedData' object has no attribute 'transformWithStateInPandas'",
            "its Connect client has no transformWithStateInPandas",
        )
    },
)
def test_sparks_processor_runs_over_connect(
    shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    found = run("connect_job.py", shared_redis_server, tmp_path, "processor")
    assert [run["rows"] for run in found["processor"]] == SEEN
    assert all(run["written"] > 0 for run in found["processor"])


@pytest.mark.compatibility("Spark Connect", "data source redis_state, lookup, readStream")
def test_a_connect_session_reads_the_state_of_another_query(
    shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    found = run("connect_reader_job.py", shared_redis_server, tmp_path)
    assert found["table"] == [["a", 2], ["b", 2], ["c", 1]]
    assert found["looked up"] == found["looked up in a stream"] == [["b", 2], ["z", None]]
    assert found["changes"] == [
        [0, "initial", "a", 2],
        [0, "initial", "b", 1],
        [1, "put", "b", 2],
        [1, "put", "c", 1],
    ]
