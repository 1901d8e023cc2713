"""Speculative copies of stateful tasks, on executors of their own, in checkpoint format 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import redis_state
from redis_state import keys
from redis_state.ids import PartitionId, StoreId
from tests.faults.test_executor_kill import ROOT, descendants, expected, kill, rows_of
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 4
LIMIT_S = 280
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}


def run(folder: Path, server: RedisServer) -> None:
    options = [
        word for name, value in SPECULATION.items() for word in ("--conf", f"{name}={value}")
    ]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    program = [sys.executable, str(Path(__file__).with_name("speculation_job.py"))]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*program, str(folder), server.url, str(BATCHES)],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYSPARK_SUBMIT_ARGS": " ".join([*options, "pyspark-shell"]),
            },
            stdout=output,
            stderr=output,
        )
        try:
            status = process.wait(LIMIT_S)
        finally:
            for pid in [*descendants(process.pid), process.pid]:
                kill(pid)
            process.wait(10)
    assert status == 0, log.read_text(errors="replace")[-4000:]


def test_both_attempts_are_there_and_the_logged_one_counts(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    (tmp_path / "input").mkdir()
    for batch in range(BATCHES):
        path = tmp_path / "input" / f"{batch:05d}.json"
        path.write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows_of(batch)))
        os.utime(path, (1_000_000_000 + batch,) * 2)
    run(tmp_path, redis_server)
    outputs = map(json.loads, (tmp_path / "output.jsonl").read_text().splitlines())
    assert {output["batch"]: output["rows"] for output in outputs} == {
        batch: expected(batch + 1) for batch in range(BATCHES)
    }
    commit = (tmp_path / "checkpoint" / "commits" / str(BATCHES - 1)).read_text().splitlines()
    logged = [ids[0] for ids in json.loads(commit[1])["stateUniqueIds"]["0"]]
    with redis_state.connect(redis_server.url) as reader:
        (info,) = reader.queries()
        late = PartitionId(StoreId(info.gen, 0, "default", ""), 1)
        (names,) = reader.client.call("looking at a manifest", [("HKEYS", keys.meta(late))])
        prefix = f"d:{BATCHES}:".encode()
        attempts = {name[len(prefix) :].decode() for name in names if name.startswith(prefix)}
        assert logged[1] in attempts
        assert len(attempts) > 1, "no copy committed beside the first attempt"
        state = reader.query(info.gen).operator()
        read = sorted(
            [key["k"], value["sum"], value["count"]]
            for key, value in state.items(version=BATCHES, uids=logged)
        )
    assert read == expected(BATCHES)
