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
