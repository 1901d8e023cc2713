"""The capacity plan against real stores on a real server, until retention has set in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redis_state.status.capacity import Workload, plan
from tests.support.capacity import Row, fixed_width, measure, noise, text
from tests.support.redis_server import RedisServer

OFF_MAX = 0.2
# Stores that no executor serves send no heartbeats, and have no entries in a registry.
UNSERVED = {"_INSTANCE_BYTES": 0, "_HEARTBEAT_BYTES": 0, "_REGISTRY_BYTES": 0}


def work(
    rows: int, updates: int, *, retained: int = 10, each_minute: int = 4, partitions: int = 2
) -> Workload:
    return Workload(
        rows,
        0,
        updates,
        each_minute,
        versions_to_retain=retained,
        partitions=partitions,
        ordered=True,
    )


@pytest.mark.parametrize(
    ("row", "workload", "batches"),
    [
        pytest.param(fixed_width, work(20_000, 200), 120, id="numbers, one row of 100 changes"),
        pytest.param(fixed_width, work(10_000, 1_000), 120, id="numbers, one row of 10 changes"),
        pytest.param(fixed_width, work(2_000, 2), 240, id="numbers, one row a store and batch"),
        pytest.param(
            fixed_width, work(2_000, 40, retained=20, each_minute=6), 240, id="small state, long"
        ),
        pytest.param(text, work(5_000, 250), 120, id="words"),
        pytest.param(
            text,
            work(5_000, 1_500, retained=5, each_minute=2, partitions=1),
            80,
            id="words, most of the state changes",
        ),
        pytest.param(noise, work(4_000, 40, retained=20, each_minute=2), 160, id="random bytes"),
    ],
)
def test_memory_and_network_of_stores_are_within_20_percent(
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    row: Callable[[int, int], Row],
    workload: Workload,
    batches: int,
) -> None:
    for name, value in UNSERVED.items():
        monkeypatch.setattr(f"redis_state.status.capacity.{name}", value)
    found, as_measured = measure(redis_server.url, workload, row, batches=batches)
    planned = plan(as_measured)
    batches_s = workload.batches_per_minute / 60
    pairs = {
        "memory": (planned.memory_bytes, found.memory),
        "received": (planned.network_in_bytes_s / batches_s, found.received),
        "sent": (planned.network_out_bytes_s / batches_s, found.sent),
    }
    off = {name: one / real - 1 for name, (one, real) in pairs.items()}
    assert all(abs(one) <= OFF_MAX for one in off.values()), off
