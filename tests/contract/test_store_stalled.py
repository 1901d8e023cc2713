"""A server that hangs while it is sent more than its connection's buffers hold."""

from __future__ import annotations

import random

import pytest

from redis_state import config
from redis_state.errors import RedisStateError
from tests.contract.store_support import new_providers
from tests.support.redis_server import RedisServer

LARGE_BYTES = 16 << 20


def test_hanging_server_raises_a_named_error(redis_server: RedisServer) -> None:
    hasty = config.parse({"url": redis_server.url, "socketTimeout": "200ms", "deadline": "1s"})
    patient = config.parse({"url": redis_server.url, "deadline": "60s"})
    large = random.Random(1).randbytes(LARGE_BYTES)
    with new_providers(redis_server.url) as new:
        provider = new(config=hasty)
        store = provider.get_store(0)
        store.put("x", large)
        redis_server.pause()
        try:
            with pytest.raises(RedisStateError) as raised:
                store.commit()
            assert raised.value.retryable
            store.abort()
        finally:
            redis_server.resume()
        store = new(config=patient).get_store(0)
        store.put("x", large)
        assert store.commit() == 1
        assert new(config=patient).get_read_store(1).get("x") == large
