"""The Python client and store over a Unix socket."""

from __future__ import annotations

import pytest

import redis_state
from redis_state.errors import ConfigError
from tests.topologies.conftest import Connect


def test_client_and_reader_use_a_unix_socket(connect: Connect) -> None:
    with redis_state.EmbeddedRedis(unix_socket=True, password="right-secret") as server:
        client = connect(url=server.url, password="right-secret")
        assert client.transaction("writing", [("SET", "k", "1")]) == [b"OK"]
        other = connect(url=f"{server.url}?db=1", password="right-secret")
        assert other.call("reading", [("GET", "k")]) == [None]
        with redis_state.connect(server.url, password="right-secret") as reader:
            assert list(reader.queries()) == []


def test_unix_socket_for_spark_is_refused() -> None:
    with pytest.raises(ConfigError, match="unix:// is not supported by the JVM adapter"):
        redis_state.configure({}, url="unix:///run/redis.sock")
