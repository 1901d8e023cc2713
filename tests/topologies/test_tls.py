"""TLS with sentinels and with a cluster, of which each server speaks nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import pytest
from redis.crc import key_slot

from redis_state.backend.client import Client
from redis_state.backend.connection import new_connections
from redis_state.config import Config
from redis_state.errors import ConfigError, UnavailableError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from redis_state.url import Address
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import SentinelSet
from tests.support.redis_server import NoTlsError
from tests.support.tls import Certificates, make_certificates
from tests.support.waiting import wait_until
from tests.topologies.conftest import Connect

Servers = TypeVar("Servers", RedisCluster, SentinelSet)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority that has signed none of the servers' certificates."""
    return make_certificates(tmp_path_factory.mktemp("other-tls"))


@contextmanager
def or_skipped(servers: Servers) -> Iterator[Servers]:
    with ExitStack() as stack:
        try:
            stack.enter_context(servers)
        except NoTlsError as error:
            pytest.skip(str(error))
        yield servers


@pytest.fixture(scope="module")
def cluster(certificates: Certificates) -> Iterator[RedisCluster]:
    with or_skipped(RedisCluster(masters=2, tls=certificates)) as started:
        yield started


@pytest.fixture(scope="module")
def sentinels(certificates: Certificates) -> Iterator[SentinelSet]:
    with or_skipped(SentinelSet(password="right-secret", tls=certificates)) as started:
        yield started


def config_of(client: Client) -> Config:
    return client._config


def count_up(client: Client, version: int) -> int:
    """A batch of a process that has nothing cached."""
    id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), "run")
    provider = StateStoreProvider(id_, config=config_of(client), client=client)
    with closing(provider):
        store = provider.get_store(version)
        count: int = (store.get("count") or 0) + 1
        store.put("count", count)
        store.commit()
        return count


def test_tls_cluster_keeps_state(
    cluster: RedisCluster, connect: Connect, certificates: Certificates
) -> None:
    client = connect(url=cluster.url, **{"tls.caFile": str(certificates.authority)})
    assert [count_up(client, version) for version in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("topology", ["cluster", "sentinels"])
def test_certificate_of_another_authority_fails_at_once(
    request: pytest.FixtureRequest, topology: str, connect: Connect, others: Certificates
) -> None:
    url = request.getfixturevalue(topology).url
    client = connect(url=url, **{"tls.caFile": str(others.authority)})
    with pytest.raises(ConfigError, match=r"the certificate of .* is not accepted"):
        client.call("reading", [("GET", "k")])


@pytest.mark.parametrize("topology", ["cluster", "sentinels"])
def test_plain_url_to_a_tls_topology_advises_a_rediss_url(
    request: pytest.FixtureRequest, topology: str, connect: Connect
) -> None:
    url = request.getfixturevalue(topology).url.replace("rediss+", "redis+")
    client = connect(url=url, deadline="1s", socketTimeout="500ms")
    with pytest.raises(UnavailableError, match="use a rediss:// URL"):
        client.call("reading", [("GET", "k")])


def test_tls_session_tickets_are_not_taken_for_a_reply(
    cluster: RedisCluster, connect: Connect, certificates: Certificates
) -> None:
    client = connect(url=cluster.url, **{"tls.caFile": str(certificates.authority)})
    node = cluster.masters[0]
    with new_connections(config_of(client), Address("127.0.0.1", node.port)) as library:
        connection = library.connection_pool.make_connection()
        connection.connect()
        # Tickets come behind the greeting; nothing has to, so a while is all there is to wait for.
        time.sleep(0.3)
        assert not connection.can_read()
        connection.send_command("PING")
        wait_until(connection.can_read, "the answer")
        connection.disconnect()


def test_moving_slots_are_followed_over_tls(
    cluster: RedisCluster, connect: Connect, certificates: Certificates
) -> None:
    client = connect(url=cluster.url, **{"tls.caFile": str(certificates.authority)})
    for key in ("{a}:k", "{c}:k"):
        owner = cluster.owner_of(key)
        assert client.transaction("writing", [("SET", key, "1")]) == [b"OK"]
        cluster.begin_migration(key, to=1 - owner)
        cluster.move_keys([key], source=owner, to=1 - owner)
        # ASK, then MOVED: to a node of which the client has only heard from another one.
        assert client.transaction("writing", [("APPEND", key, "2")]) == [2]
        cluster.end_migration(key, to=1 - owner)
        assert client.transaction("writing", [("APPEND", key, "3")]) == [3]
    assert key_slot(b"{a}:k") * 2 // 16384 != key_slot(b"{c}:k") * 2 // 16384


def test_sentinel_fail_over_is_followed_over_tls(
    sentinels: SentinelSet, connect: Connect, certificates: Certificates
) -> None:
    authority = str(certificates.authority)
    client = connect(url=sentinels.url, password="right-secret", **{"tls.caFile": authority})
    assert [count_up(client, version) for version in range(2)] == [1, 2]
    client.call("waiting", [("SET", "last", "1"), ("WAIT", "1", "10000")])
    sentinels.servers[0].kill()
    assert [count_up(client, version) for version in range(2, 4)] == [3, 4]
    with sentinels.servers[1].client() as direct:
        assert direct.role()[0] == b"master"
