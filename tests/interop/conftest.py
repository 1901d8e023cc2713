"""The session of the Spark tests, and a reader of what its queries keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import redis_state
from redis_state.live import Reader
from tests.spark.conftest import spark, streams
from tests.support.redis_server import RedisServer

__all__ = ["reader", "spark", "streams"]


@pytest.fixture
def reader(shared_redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(shared_redis_server.url, deadline="5s") as reader:
        yield reader
