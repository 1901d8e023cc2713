"""Fixtures of the contract tests, unless a file has its own: stores, and a planted query."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state import config
from redis_state.clock import SYSTEM, Clock
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from tests.contract.planting import Planted
from tests.contract.store_model import ModelProvider, World
from tests.contract.store_support import new_providers
from tests.support.redis_server import RedisServer

NewProvider = Callable[..., Any]


@pytest.fixture(params=["model", "redis"])
def new_provider(
    request: pytest.FixtureRequest, shared_redis_server: RedisServer
) -> Iterator[NewProvider]:
    """Makes providers of one checkpoint, as processes of the runs that are named."""
    if request.param == "redis":
        with new_providers(shared_redis_server.url) as new:
            yield new
        return
    world: World = {}
    name = uuid.uuid4().hex

    def new_model(*, run: str = "run-1", **options: Any) -> ModelProvider:
        id_ = StateStoreProviderId(StateStoreId(name, 0, 0), run)
        return ModelProvider(id_, world, **options)

    yield new_model


@pytest.fixture
def new_families(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    """Makes providers of versions with many families."""
    with new_providers(shared_redis_server.url) as made:
        yield lambda **given: made(families=True, **given)


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    """A query in an empty server; nothing is registered yet."""
    return Planted(redis_server.client())


@pytest.fixture
def clock() -> Clock:
    """Clock of the reader; some tests override this fixture."""
    return SYSTEM


@pytest.fixture
def reader(redis_server: RedisServer, clock: Clock) -> Iterator[Reader]:
    """Reads the server of the test."""
    options = config.parse({"url": redis_server.url, "deadline": "5s"})
    with Reader(options, clock=clock) as reader:
        yield reader
