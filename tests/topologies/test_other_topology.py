"""The URL names another topology than the server has: the error says which form of URL to give."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import redis

from redis_state import config
from redis_state.backend.client import Client
from redis_state.backend.server import check_server
from redis_state.errors import ConfigError
from tests.support.manual_clock import ManualClock
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import SERVICE, SentinelSet
from tests.support.redis_server import RedisServer

Start = Callable[..., RedisServer]
KEY = "{x}:m"


def client_of(url: str, **options: Any) -> Client:
    given = {"url": url, "deadline": "5s", "socket_timeout": "1s", **options}
    return Client(config.parse(given), clock=ManualClock())


def test_plain_url_to_a_cluster_node_advises_a_cluster_url(cluster: RedisCluster) -> None:
    other = cluster.masters[1 - cluster.owner_of(KEY)]
    with (
        closing(client_of(other.url)) as client,
        pytest.raises(ConfigError, match=r"redis\+cluster://"),
    ):
        client.transaction("committing", [("SET", KEY, "1")])


def test_plain_url_to_a_moving_slot_advises_a_cluster_url(cluster: RedisCluster) -> None:
    source = cluster.owner_of(KEY)
    cluster.begin_migration(KEY, to=1 - source)
    with (
        closing(client_of(cluster.masters[source].url)) as client,
        pytest.raises(ConfigError, match=r"redis\+cluster://"),
    ):
        client.call("reading", [("GET", KEY)])


def test_database_on_a_cluster_node_raises_config(cluster: RedisCluster) -> None:
    url = cluster.masters[0].url.removesuffix("/0") + "/1"
    with closing(client_of(url)) as client, pytest.raises(ConfigError, match="no database 1"):
        client.call("reading", [("PING",)])


def test_plain_url_to_a_sentinel_advises_a_sentinel_url(sentinels: SentinelSet) -> None:
    url = f"redis://127.0.0.1:{sentinels.port}/0"
    with closing(client_of(url)) as client, pytest.raises(ConfigError) as caught:
        check_server(client)
    assert f"{url} is a Sentinel" in str(caught.value)
    assert "redis+sentinel://" in str(caught.value)
    with closing(client_of(url)) as client, pytest.raises(ConfigError, match="Sentinel"):
        client.call("reading", [("HGETALL", KEY)])


def test_sentinel_url_to_a_server_raises_config(redis_server: RedisServer) -> None:
    url = f"redis+sentinel://127.0.0.1:{redis_server.port}/main/0"
    with (
        closing(client_of(url)) as client,
        pytest.raises(ConfigError, match="it is not a Sentinel"),
    ):
        client.call("reading", [("PING",)])


def test_server_listed_among_sentinels_is_skipped(
    sentinels: SentinelSet, redis_server: RedisServer
) -> None:
    host, _, rest = sentinels.url.partition(":")[2].removeprefix("//").partition(":")
    url = f"redis+sentinel://127.0.0.1:{redis_server.port},{host}:{rest}"
    with closing(client_of(url)) as client:
        assert client.call("greeting the server", [("PING",)]) == [True]


def test_cluster_url_to_a_server_without_cluster_mode_raises_config(
    redis_server: RedisServer,
) -> None:
    url = f"redis+cluster://127.0.0.1:{redis_server.port}"
    with closing(client_of(url)) as client, pytest.raises(ConfigError, match="not a node"):
        client.call("reading", [("PING",)])


def test_cluster_node_without_the_cluster_command_is_named(start_redis: Start) -> None:
    server = start_redis(lacks=["CLUSTER"])
    url = f"redis+cluster://127.0.0.1:{server.port}"
    with (
        closing(client_of(url)) as client,
        pytest.raises(ConfigError, match="lacks the command CLUSTER:"),
    ):
        client.call("reading", [("PING",)])


def test_master_without_the_role_command_is_used(
    sentinels: SentinelSet, start_redis: Start
) -> None:
    server = start_redis(lacks=["ROLE"])
    with redis.Redis(port=sentinels.port) as asked:
        asked.execute_command("SENTINEL", "REMOVE", SERVICE)
        monitor = ("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", server.port, 1)
        asked.execute_command(*monitor)
    with closing(client_of(sentinels.url)) as client:
        assert client.call("greeting the server", [("PING",)]) == [True]
