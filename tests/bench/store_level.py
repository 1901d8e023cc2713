"""The stores without queries: three providers in one JVM, and what the server pays per row."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tools.jvm import ROOT, java_command

PARTITIONS = 4
RAW_BYTES = 56
_TICK_S = 0.01
_LIMIT_S = 3600
_FIELDS_PER_CALL = 1000


@dataclass(frozen=True, slots=True)
class StoreWork:
    """`keys` rows in four partitions; each batch changes `updates` random ones.

    Attributes:
        warm_up: Batches before the measured ones.
    """

    name: str
    keys: int
    updates: int
    warm_up: int
    batches: int

    @property
    def tiny(self) -> bool:
        """True if a batch changes so little that fixed costs dominate."""
        return self.updates < self.keys / 50


@dataclass(frozen=True, slots=True)
class StoreResult:
    """Figures of one workload.

    Attributes:
        lanes: What `StoreBench` printed, by provider.
        batch_rows: Rows that the measured batches of a lane committed.
        snapshot_bytes: Server memory of the newest snapshot of every partition.
        field_cpu_us: Server CPU of a row when each row is one field of a hash.
    """

    work: StoreWork
    lanes: dict[str, dict[str, Any]]
    batch_rows: int
    snapshot_bytes: int
    field_cpu_us: float

    def series(self, provider: str, of: Callable[[dict[str, Any]], list[float]]) -> list[float]:
        return of(self.lanes[provider])


def measure(url: str, folder: Path, work: StoreWork) -> StoreResult:
    """Runs the JVM program on an empty database of the server.

    Raises:
        subprocess.CalledProcessError: It failed, or the providers disagree; its output is shown.
    """
    with redis.Redis.from_url(url) as server:
        pid = server.info("server")["process_id"]
        command = java_command("spark-4.3", ROOT / ".venv" / "pyspark-jars", heap="6g")
        command += [
            "org.apache.spark.sql.redisstate.bench.StoreBench",
            *(url, str(pid), str(folder)),
            *map(str, (work.keys, work.updates, work.warm_up, work.batches)),
        ]
        print(f"stores, {work.name}", file=sys.stderr)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=True
        )
        lanes = json.loads(done.stdout.splitlines()[-1])
        return StoreResult(
            work=work,
            lanes=lanes,
            batch_rows=work.updates * work.batches,
            snapshot_bytes=_newest_snapshots(server),
            field_cpu_us=_one_field_per_row(server, work),
        )


def _newest_snapshots(server: redis.Redis) -> int:
    newest: dict[bytes, tuple[int, bytes]] = {}
    for key in server.scan_iter(match="*:s:*", count=1000):
        partition, version, _ = key.rsplit(b":", 2)
        newest[partition] = max(newest.get(partition, (-1, b"")), (int(version), key))
    sizes = [server.memory_usage(key, samples=0) for _, key in newest.values()]
    return sum(size for size in sizes if size is not None)


def _one_field_per_row(server: redis.Redis, work: StoreWork) -> float:
    """Writes the rows as plain `HSET`s of one field each, in pipelines; returns CPU in µs a row."""
    rows = min(work.keys, 200_000)
    pack = struct.Struct("<qqqqq").pack
    before = _cpu_s(server)
    for start in range(0, rows, _FIELDS_PER_CALL):
        pipeline = server.pipeline(transaction=False)
        for number in range(start, start + _FIELDS_PER_CALL):
            key = struct.pack("<qq", 0, number)
            pipeline.hset(f"bench:{number % PARTITIONS}", key, pack(0, number, 1, 0, 0))
        pipeline.execute()
    cost = (_cpu_s(server) - before) * 1e6 / rows
    server.unlink(*[f"bench:{number}" for number in range(PARTITIONS)])
    return cost


def _cpu_s(server: redis.Redis) -> float:
    info = server.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def open_and_commit_ms(lane: dict[str, Any]) -> list[float]:
    """Per store, our provider's and Spark's own alike."""
    pairs = zip(lane["openNs"], lane["commitNs"], strict=True)
    return [(opened + committed) / 1e6 / PARTITIONS for opened, committed in pairs]


def first_open_and_commit_ms(lane: dict[str, Any]) -> list[float]:
    """Milliseconds of `open` and `commit` in the first batches, while no code is compiled yet."""
    return [nanos / 1e6 / PARTITIONS for nanos in lane["firstNs"]]


def update_us(lane: dict[str, Any], rows: int) -> list[float]:
    """Returns the time of a row: one get and one put."""
    return [nanos / 1e3 / rows for nanos in lane["updateNs"]]


def cpu_us(result: StoreResult, provider: str) -> float:
    """Returns the CPU time of a changed row: the JVM with its threads, and the server."""
    lane = result.lanes[provider]
    nanos = int(lane["cpuNs"]) + int(lane["serverTicks"]) * _TICK_S * 1e9
    return nanos / 1e3 / result.batch_rows


def server_cpu_us(result: StoreResult) -> float:
    """Returns the CPU time of a changed row on the server alone."""
    ticks = int(result.lanes["redis"]["serverTicks"])
    return ticks * _TICK_S * 1e6 / result.batch_rows
