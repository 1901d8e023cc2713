"""Servers that are not fit for state are refused before anything is written, by Python too."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

import pytest

from redis_state import config
from redis_state.backend.client import Client
from redis_state.errors import ConfigError, Kind
from redis_state.protocol.runs import register_run
from tests.support.redis_server import RedisServer

GEN = uuid.UUID(int=7).hex


def register(url: str, **options: object) -> None:
    client = Client(config.parse({"url": url, **options}))
    try:
        register_run(client, GEN, "run-1", by_driver=True)
    finally:
        client.close()


def refusal(server: RedisServer) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        register(server.url)
    assert caught.value.kind is Kind.CONFIG
    assert server.url in str(caught.value)
    with server.client() as client:
        assert client.dbsize() == 0
    return caught.value


def test_old_server_is_refused(old_redis_server: RedisServer) -> None:
    message = str(refusal(old_redis_server))
    assert "runs version 5.0." in message
    assert "Redis 6.2 or newer, or Valkey, is needed" in message


def test_evicting_server_is_refused(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(options={"maxmemory-policy": "allkeys-lru"})
    assert "maxmemory-policy noeviction" in str(refusal(server))


def test_replica_is_refused(
    start_redis: Callable[..., RedisServer], redis_server: RedisServer
) -> None:
    replica = start_redis(options={"replicaof": f"127.0.0.1 {redis_server.port}"})
    assert "Give the address of its master" in str(refusal(replica))


def test_volatile_eviction_policy_logs_a_warning(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "redis_state"):
        register(start_redis(options={"maxmemory-policy": "volatile-ttl"}).url)
    assert "volatile-ttl" in caplog.text


def test_user_without_the_right_to_check_gets_a_warning(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "joe", "on", ">geheim", "~*", "+@all", "-info", "-@dangerous")
        )
    with caplog.at_level(logging.WARNING, "redis_state"):
        register(redis_server.url, username="joe", password="geheim")
    assert "could not be checked" in caplog.text
    assert "geheim" not in caplog.text
