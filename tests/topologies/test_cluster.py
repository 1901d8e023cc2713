"""The client in a cluster, while slots move and masters fail."""

from __future__ import annotations

import pytest

from redis_state import connect as connect_reader
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.scan import scan
from redis_state.backend.script import script
from redis_state.backend.server import check_server
from redis_state.errors import ConfigError, UnavailableError
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId, StoreId
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.topologies.conftest import ActsOnSleep, Connect

KEY = "{a}:k"


def unwaiting(sleeps: int) -> None:
    raise AssertionError(f"the client waited {sleeps} times")


def not_told(_what: str, _done: int, _of: int) -> None:
    pass


def write(client: Client, value: str) -> list[object]:
    return client.transaction("writing", [("SET", KEY, value), ("GET", KEY)])


def test_pipeline_over_several_slots_keeps_the_order_of_replies(
    cluster: RedisCluster, connect: Connect
) -> None:
    names = [f"{{{n}}}:k" for n in range(20)]
    assert {cluster.owner_of(key) for key in names} == {0, 1}
    client = connect(url=cluster.url)
    client.call("writing", [("SET", key, f"of {key}") for key in names])
    assert client.call("reading", [("GET", key) for key in names]) == [
        f"of {key}".encode() for key in names
    ]


def test_script_loaded_on_one_node_runs_on_all(cluster: RedisCluster, connect: Connect) -> None:
    client = connect(url=cluster.url, clock=ActsOnSleep(unwaiting))
    metas = [f"{{{n}}}:m" for n in range(20)]
    calls = [(key, ("-", "-1", "")) for key in metas]
    commands = script("open").many(calls)
    first = client.call("opening", commands)
    assert len(first) == 20
    assert client.call("opening", commands) == first


def test_ask_and_moved_are_followed_without_waiting(
    cluster: RedisCluster, connect: Connect
) -> None:
    client = connect(url=cluster.url, clock=ActsOnSleep(unwaiting))
    source = cluster.owner_of(KEY)
    assert write(client, "first") == [b"OK", b"first"]
    cluster.begin_migration(KEY, to=1 - source)
    cluster.move_keys([KEY], source=source, to=1 - source)
    assert write(client, "asked") == [b"OK", b"asked"]
    assert client.call("reading", [("GET", KEY)]) == [b"asked"]
    cluster.end_migration(KEY, to=1 - source)
    assert write(client, "moved") == [b"OK", b"moved"]


def test_tryagain_is_retried_until_the_slot_has_moved(
    cluster: RedisCluster, connect: Connect
) -> None:
    source = cluster.owner_of(KEY)

    def act(sleeps: int) -> None:
        if sleeps == 3:
            cluster.end_migration(KEY, to=1 - source)

    clock = ActsOnSleep(act)
    client = connect(url=cluster.url, clock=clock)
    client.call("writing", [("SET", KEY, "1")])
    cluster.begin_migration(KEY, to=1 - source)
    cluster.move_keys([KEY], source=source, to=1 - source)
    client.transaction("writing both", [("MSET", KEY, "2", "{a}:new", "2")])
    assert clock.sleeps == 3
    assert client.call("reading", [("GET", "{a}:new")]) == [b"2"]


def test_half_migrated_slot_is_named_at_the_deadline(
    cluster: RedisCluster, connect: Connect
) -> None:
    source = cluster.owner_of(KEY)
    client = connect(url=cluster.url, clock=ActsOnSleep(), deadline="3s")
    client.call("writing", [("SET", KEY, "1")])
    cluster.begin_migration(KEY, to=1 - source)
    cluster.move_keys([KEY], source=source, to=1 - source)
    with pytest.raises(UnavailableError, match=r"TRYAGAIN.*slot ") as caught:
        client.call("writing both", [("MSET", KEY, "2", "{a}:new", "2")])
    assert f"127.0.0.1:{cluster.masters[1 - source].port}" in str(caught.value)


def test_master_fail_over_is_followed_within_one_call(connect: Connect) -> None:
    with RedisCluster(masters=3, replicas=1) as cluster:
        client = connect(url=cluster.url)
        owner = cluster.owner_of(KEY)
        assert write(client, "before") == [b"OK", b"before"]
        cluster.await_replicas()
        cluster.masters[owner].kill()
        assert client.call("reading", [("GET", KEY)]) == [b"before"]
        assert write(client, "after") == [b"OK", b"after"]
        with cluster.replicas[owner][0].client() as direct:
            assert direct.get(KEY) == b"after"


def test_replaced_master_is_not_used_again(connect: Connect) -> None:
    written = {f"{{{n}}}:k" for n in range(20)}
    with RedisCluster(masters=3, replicas=1) as cluster:
        client = connect(url=cluster.url)
        client.call("writing", [("SET", key, "1") for key in written])
        check_server(client)
        cluster.await_replicas()
        cluster.masters[0].kill()
        check_server(client)
        found = {key for keys in scan(client, "counting", "*", not_told) for key in keys}
        assert found == written


def test_master_fail_over_during_a_scan_restarts_the_scan(connect: Connect) -> None:
    written = {f"{{{n}}}:k" for n in range(5000)}
    with RedisCluster(masters=3, replicas=1) as cluster:
        client = connect(url=cluster.url)
        client.call("writing", [("SET", key, "1") for key in written])
        cluster.await_replicas()
        batches = scan(client, "counting", "*", not_told)
        found = set(next(batches))
        for key in found:
            failing = cluster.owner_of(key)
        cluster.masters[failing].kill()
        for batch in batches:
            found.update(batch)
        assert found == written


def test_over_parts_calls_each_master(cluster: RedisCluster, connect: Connect) -> None:
    client = connect(url=cluster.url)
    client.call("writing", [("SET", f"{{{n}}}:k", "1") for n in range(20)])
    sizes = list(client.over_parts("counting", lambda part: part.call("counting", [("DBSIZE",)])))
    assert len(sizes) == 2
    assert sum(sizes) == 20
    assert all(sizes)


def test_cluster_url_to_a_lone_server_raises_config(
    redis_server: RedisServer, connect: Connect
) -> None:
    client = connect(url=redis_server.url.replace("redis://", "redis+cluster://"))
    with pytest.raises(ConfigError, match="not a node of a cluster"):
        client.call("reading", [("GET", KEY)])


def test_status_covers_all_nodes(cluster: RedisCluster) -> None:
    for partition in range(8):
        id_ = StateStoreProviderId(StateStoreId("visits", 0, partition), f"run-{partition}")
        provider = StateStoreProvider(id_, config=cluster.url)
        store = provider.get_store(0)
        store.put("k", partition)
        provider.get_store(store.commit()).abort()
        provider.close()
    with connect_reader(cluster.url) as reader:
        (status,) = reader.status()
        assert reader.query("visits").why_growing() == []
        assert reader.query("visits").why_slow().causes == ()
    ids = [PartitionId(StoreId(status.gen, 0, "default"), number) for number in range(8)]
    assert {cluster.owner_of(keys.meta(id_)) for id_ in ids} == {0, 1}
    assert [one.rows for one in status.partitions] == [1] * 8
    assert status.problems == []
