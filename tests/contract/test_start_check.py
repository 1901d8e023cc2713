"""`configure(check=True)` asks the server before a job begins, in seconds, and leaves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from redis_state import acl, configure
from redis_state.errors import ConfigError, Kind, UnavailableError
from tests.support.redis_server import RedisServer, free_port

LIMIT_S = 20
"""The check may take ten; the machine may be busy."""


def check(url: str, **options: Any) -> dict[str, str]:
    conf: dict[str, str] = {}
    return configure(conf, url=url, check=True, **options)


def test_check_leaves_a_good_server_unchanged(redis_server: RedisServer) -> None:
    assert check(redis_server.url)
    with redis_server.client() as client:
        assert client.dbsize() == 0


def test_connection_refused_raises_unavailable() -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        check(f"redis://127.0.0.1:{port}/0")
    assert time.monotonic() - began < LIMIT_S
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_start_without_the_check_sends_nothing() -> None:
    conf: dict[str, str] = {}
    assert configure(conf, url=f"redis://127.0.0.1:{free_port()}/0")


def test_missing_or_wrong_password_raises_permission(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(password="right")
    for options in ({}, {"password": "geheim"}):
        with pytest.raises(ConfigError) as caught:
            check(server.url, **options)
        assert caught.value.kind is Kind.PERMISSION
        assert "geheim" not in str(caught.value)


def test_evicting_server_raises_config(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(options={"maxmemory-policy": "allkeys-lru"})
    with pytest.raises(ConfigError, match="noeviction"):
        check(server.url)


def test_check_asks_for_exactly_the_rights_of_a_job(redis_server: RedisServer) -> None:
    name = "joe"
    with redis_server.client() as admin:
        version = str(admin.info("server")["redis_version"])
        rules = acl.rules(acl.Role.JOB, version=version, key_prefix="shop")
        admin.execute_command("ACL", "SETUSER", name, *rules, ">pw")
        login = {"username": name, "password": "pw", "key_prefix": "shop"}
        assert check(redis_server.url, **login)
        for lacking in ("unlink", "hset", "eval", "multi"):
            admin.execute_command("ACL", "SETUSER", name, f"-{lacking}")
            with pytest.raises(ConfigError) as caught:
                check(redis_server.url, **login)
            assert caught.value.kind is Kind.PERMISSION
            assert lacking in str(caught.value)
            admin.execute_command("ACL", "SETUSER", name, f"+{lacking}")
        with pytest.raises(ConfigError) as caught:
            check(redis_server.url, **{**login, "key_prefix": "other"})
        assert caught.value.kind is Kind.PERMISSION
        assert admin.dbsize() == 0
