"""Batches of the lanes in turns, with what they asked of the two servers."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

from tests.bench.production.cluster import Cluster, bucket_of
from tests.bench.production.lanes import Batch, Lanes
from tests.bench.workloads import PROVIDERS

Requests = dict[str, dict[str, int]]
"""Requests to the object store by provider and kind."""


@dataclass(frozen=True, slots=True)
class RedisUse:
    """Memory, CPU and network that Redis used during some batches.

    Attributes:
        memory_bytes: Of the server in the end, with what it retains.
        network_bytes: Both directions.
    """

    memory_bytes: int
    cpu_s: float
    network_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured batches of each provider in one setting.

    Attributes:
        placement: Number of partitions that each executor held.
    """

    query: str
    partitions: int
    redis_ms: float
    batches: dict[str, list[Batch]]
    requests: Requests
    placement: dict[str, list[int]]
    redis: RedisUse

    @property
    def count(self) -> int:
        return len(self.batches["redis"])

    def trigger_ms(self) -> dict[str, list[float]]:
        """Series of whole batches."""
        return {name: [one.trigger_ms for one in all_] for name, all_ in self.batches.items()}


def warm_up(lanes: Lanes, batches: int) -> None:
    """Runs batches that are not measured."""
    for _ in range(batches):
        lanes.feed()
        _progress(lanes, "warm-up")


def measure(place: Cluster, lanes: Lanes, redis_ms: float, count: int) -> Measured:
    """Runs `count` batches of every lane.

    Raises:
        SystemExit: The outputs differ, or there was none.
    """
    place.redis_link.set_round_trip(redis_ms)
    before, used = requests(place), _redis(place)
    rows = lanes.output_rows
    batches: dict[str, list[Batch]] = {name: [] for name in PROVIDERS}
    for _ in range(count):
        for name, batch in lanes.feed().items():
            batches[name].append(batch)
        _progress(lanes, f"Redis at {redis_ms:g} ms")
    print(file=sys.stderr)
    if lanes.output_rows == rows:
        raise SystemExit(f"{lanes.name}: nothing was given out, so nothing was compared")
    after, use = requests(place), _redis(place)
    return Measured(
        query=lanes.query,
        partitions=lanes.partitions,
        redis_ms=redis_ms,
        batches=batches,
        requests=_difference(after, before),
        placement={
            name: sorted(Counter(lane.executors()).values(), reverse=True)
            for name, lane in lanes.all.items()
        },
        redis=RedisUse(
            memory_bytes=use.memory_bytes,
            cpu_s=use.cpu_s - used.cpu_s,
            network_bytes=use.network_bytes - used.network_bytes,
        ),
    )


def requests(place: Cluster) -> Requests:
    """Requests so far."""
    by_bucket = place.object_proxy.report()["requests"]
    return {name: by_bucket.get(bucket_of(name), {}) for name in PROVIDERS}


def _difference(after: Requests, before: Requests) -> Requests:
    return {
        name: {kind: count - before[name].get(kind, 0) for kind, count in kinds.items()}
        for name, kinds in after.items()
    }


def _redis(place: Cluster) -> RedisUse:
    info = place.direct.info()
    assert isinstance(info, dict)
    return RedisUse(
        memory_bytes=int(info["used_memory"]),
        cpu_s=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
        network_bytes=int(info["total_net_input_bytes"]) + int(info["total_net_output_bytes"]),
    )


def _progress(lanes: Lanes, what: str) -> None:
    print(f"\r\033[K{lanes.name}, {what}: batch {lanes.fed}", end="", file=sys.stderr, flush=True)
