"""The Python store in many processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.contract.store_worker import BATCHES, CONFIRMED_MIN, ROWS
from tests.support.redis_server import RedisServer

PARTITIONS = 8
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240


def run_all(commands: list[list[str]]) -> list[Any]:
    """Runs the workers concurrently and returns what each prints."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store_worker", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        printed = [worker.communicate(timeout=LIMIT_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for worker, (_, errors) in zip(workers, printed, strict=True):
        assert worker.returncode == 0, errors
    return [json.loads(out) for out, _ in printed]


def test_processes_write_a_partition_each(shared_redis_server: RedisServer) -> None:
    url, name = shared_redis_server.url, uuid.uuid4().hex
    found = run_all([["fill", url, name, str(partition)] for partition in range(PARTITIONS)])
    assert found == [[BATCHES]] * PARTITIONS
    for partition in range(PARTITIONS):
        id_ = StateStoreProviderId(StateStoreId(name, 0, partition), "reader")
        provider = StateStoreProvider(id_, config=url, expect_existing=True)
        assert provider.latest() == BATCHES
        rows = dict(provider.get_read_store(BATCHES).iterator())
        assert rows == dict.fromkeys(range(ROWS), BATCHES * (partition + 1))
        provider.close()


def test_competing_processes_never_corrupt_a_partition(shared_redis_server: RedisServer) -> None:
    url, name = shared_redis_server.url, uuid.uuid4().hex
    certain = run_all([["fight", url, name, who] for who in ("ann", "bob")])
    assert [len(entries) for entries in certain] == [CONFIRMED_MIN] * 2
    id_ = StateStoreProviderId(StateStoreId(name, 0, 0), "reader")
    provider = StateStoreProvider(id_, config=url)
    newest = provider.latest()
    assert newest is not None
    logs = [provider.get_read_store(version).get("log") or [] for version in range(newest + 1)]
    provider.close()
    for version, log in enumerate(logs):
        assert len(log) == version, "each version has one writer, who read the one before"
        assert logs[-1][:version] == log
    for entries in certain:
        assert [entry for entry in logs[-1] if entry in entries] == entries
