"""Servers of each topology, started for one test, and clients of the package's own on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state import config
from redis_state.backend.client import Client
from redis_state.clock import SYSTEM
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import SentinelSet

Connect = Callable[..., Client]


class ActsOnSleep:
    """A clock on which time passes only while somebody waits."""

    def __init__(self, act: Callable[[int], object] | None = None) -> None:
        self.sleeps = 0
        self._now_s = 0.0
        self._act = act

    def monotonic_s(self) -> float:
        return self._now_s

    def wall_ms(self) -> int:
        return int(self._now_s * 1000)

    def sleep_s(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.001)
        self.sleeps += 1
        if self._act is not None:
            self._act(self.sleeps)


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """Two masters without replicas: slots can be moved."""
    with RedisCluster(masters=2) as started:
        yield started


@pytest.fixture
def sentinels() -> Iterator[SentinelSet]:
    """A master, a replica, a sentinel."""
    with SentinelSet() as started:
        yield started


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients from options; all are closed after the test."""
    clients: list[Client] = []

    def make(*, clock: Any = SYSTEM, **options: Any) -> Client:
        client = Client(
            config.parse({"deadline": "60s", "socketTimeout": "2s", **options}), clock=clock
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
