"""Coordinator and maintenance where each partition may be on another server."""

from __future__ import annotations

import json

import pytest

from redis_state import config, keys
from redis_state.cli.main import main
from redis_state.coordinator import Instance, StateStoreCoordinator
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import checkpoint_gen
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_cluster import RedisCluster
from tests.topologies.conftest import Connect

NAME, RUN = "orders", "run-1"
PARTITIONS = range(6)
VERSIONS = 6


def id_of(partition: int, *, name: str = NAME) -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId(name, 0, partition), RUN)


def provider(cluster: RedisCluster, partition: int) -> StateStoreProvider:
    return StateStoreProvider(id_of(partition), config=config.parse({"url": cluster.url}))


def write(cluster: RedisCluster) -> None:
    for partition in PARTITIONS:
        own = provider(cluster, partition)
        for version in range(VERSIONS):
            store = own.get_store(version)
            for number in range(version, version + 30):
                store.put(number, [version, partition])
            store.commit()
        own.get_store(VERSIONS).abort()
        own.close()


def read(cluster: RedisCluster) -> list[dict[object, object]]:
    found = []
    for partition in PARTITIONS:
        own = provider(cluster, partition)
        found.append(dict(own.get_read_store(VERSIONS).iterator()))
        own.close()
    return found


def test_every_partition_is_maintained(
    cluster: RedisCluster, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    write(cluster)
    client = connect(url=cluster.url)
    gen = checkpoint_gen(client, NAME)
    assert gen is not None
    metas = [keys.meta(id_of(partition).store_id.partition(gen)) for partition in PARTITIONS]
    assert {cluster.owner_of(meta) for meta in metas} == {0, 1}
    before = read(cluster)
    # One segment that no manifest names, on each server.
    lost = {cluster.owner_of(meta): meta[:-1] + "d:99:lost" for meta in metas}
    client.call("planting", [("HSET", key, "0", "x") for key in lost.values()])
    command = ["maintain", "--url", cluster.url, "--once"]
    assert main([*command, "--deep", "--orphans"]) == 0
    told = capsys.readouterr().out
    assert f"{len(PARTITIONS)} partitions of 1 checkpoints maintained" in told
    assert f"{len(PARTITIONS)} snapshots added" in told
    assert "2 orphans" in told
    assert read(cluster) == before
    listed = keys.checkpoints()
    (found,) = client.call("reading", [("HGET", listed, gen)])
    aged = json.dumps(json.loads(found) | {"seen": 1})
    client.call("planting", [("HSET", listed, gen, aged), ("HSET", keys.query(gen), "epoch", "9")])
    client.call("planting", [("HSET", meta, "t", "1") for meta in metas])
    for _ in range(2):
        assert main([*command, "--vanished-after", "1d", "--yes"]) == 0
        (note,) = client.call("reading", [("HGET", keys.looks(), gen)])
        earlier = json.dumps(json.loads(note or "{}") | {"at": 1})
        client.call("planting", [("HSET", keys.looks(), gen, earlier)])
    assert "1 checkpoints purged" in capsys.readouterr().out
    purge = ["purge", "--url", cluster.url, "--gen", gen]
    assert main([*purge, "--recall"]) == 0
    assert read(cluster) == before
    assert main([*purge, "--yes"]) == 0
    assert main([*purge, "--yes", "--now"]) == 0
    left = cluster.keys()
    assert [name for name in left if gen in str(name)] == []


def test_instances_of_many_checkpoints_are_renewed_in_one_pipeline(
    cluster: RedisCluster, connect: Connect
) -> None:
    client, other = connect(url=cluster.url), connect(url=cluster.url)
    names = [f"checkpoint {number}" for number in range(8)]
    coordinator = StateStoreCoordinator(client, threaded=False)
    for name in names:
        checkpoint_gen(client, name, create=True)
        reference = coordinator.reference(name)
        reference.report_active_instance(id_of(0, name=name), "h", "1")
    coordinator.heartbeat.tick()
    coordinator.heartbeat.beat()
    seen = StateStoreCoordinator(other, threaded=False)
    for name in names:
        found = seen.reference(name).get_location(id_of(0, name=name))
        assert found == Instance("h", "1", RUN)
    newer = seen.reference(names[0])
    newer.report_active_instance(id_of(0, name=names[0]), "h", "2")
    seen.heartbeat.tick()
    coordinator.heartbeat.beat()
    assert len(coordinator.heartbeat.instances) == len(names) - 1
