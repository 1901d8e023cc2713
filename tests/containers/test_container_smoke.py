"""The container serves what redis-state builds on: plain commands, transactions, scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.redis_container import RedisContainer

pytestmark = pytest.mark.docker


@pytest.fixture
def client(redis_container: RedisContainer) -> Iterator[redis.Redis]:
    with redis_container.client() as client:
        yield client


def test_set_and_get_bytes(client: redis.Redis) -> None:
    client.set(b"smoke:\x00key", b"\xff\x00value")
    assert client.get(b"smoke:\x00key") == b"\xff\x00value"


def test_transaction_applies_atomically(client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipeline:
        pipeline.hset("smoke:hash", "field", "1")
        pipeline.hincrby("smoke:hash", "field", 2)
        assert pipeline.execute() == [1, 3]


def test_script_runs_inside_a_transaction(client: redis.Redis) -> None:
    script = "redis.call('SET', KEYS[1], ARGV[1]); return redis.call('GET', KEYS[1])"
    with client.pipeline(transaction=True) as pipeline:
        pipeline.eval(script, 1, "smoke:script", "in")
        pipeline.get("smoke:script")
        assert pipeline.execute() == [b"in", b"in"]


def test_server_version_is_supported(client: redis.Redis) -> None:
    version = client.info("server")["redis_version"]
    assert tuple(map(int, version.split(".")[:2])) >= (6, 2)
