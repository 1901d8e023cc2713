"""Round trips to a Redis server."""

from __future__ import annotations

import statistics
import time

import redis

_PINGS = 200


def median_ping_ms(client: redis.Redis) -> float:
    """Median time of a `PING` on a warm connection."""
    client.ping()
    times = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        client.ping()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3
