"""Forks and kept versions whose partitions lie on several masters, and fail-overs in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import keys
from redis_state.cli.main import main
from redis_state.errors import UnavailableError
from redis_state.forks.fork import _ForkPlan
from redis_state.ids import PartitionId, StoreId
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.pinned import GRACE_MS
from redis_state.maintain.report import Policy
from redis_state.protocol.pins import FORK, pin_all
from tests.contract.fork_scene import Scene, killed_at
from tests.contract.planting import GEN
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import SentinelSet
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from tests.topologies.conftest import Connect

PARTITIONS = range(4)
HASTY = {"deadline": "1s", "socket_timeout": "500ms"}


class Served:
    """A topology in the place of the one server of a scene."""

    def __init__(self, url: str, client: Callable[[], Any]) -> None:
        self.url, self.client = url, client


def scene_on(cluster: RedisCluster, folder: Path) -> Scene:
    """Ten batches of a query whose partitions lie on both masters."""

    def library() -> Any:
        return redis.RedisCluster(host="127.0.0.1", port=cluster.masters[0].port)

    made = Scene(Served(cluster.url, library), folder / "parent")  # type: ignore[arg-type]  # all that it uses
    made.run(10)
    assert {owner(cluster, number) for number in PARTITIONS} == {0, 1}
    return made


def owner(cluster: RedisCluster, number: int) -> int:
    return cluster.owner_of(keys.meta(PartitionId(StoreId(GEN, 0), number)))


@pytest.fixture
def scene(cluster: RedisCluster, tmp_path: Path) -> Iterator[Scene]:
    made = scene_on(cluster, tmp_path)
    yield made
    made.raw.close()


def pinned(scene: Scene) -> list[set[str]]:
    """Owners of the pins of each partition of the parent."""
    return [{name[2:] for name in of if name[:2] == "x:"} for of in scene.manifests(GEN)]


def test_commands_reach_every_master(
    scene: Scene,
    cluster: RedisCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fork, keep, diff, drop, detach, and a purge that pins refuse."""

    def command(*words: str) -> str:
        assert main([*words, "--url", scene.server.url]) == 0
        return capsys.readouterr().out

    parent, to = str(scene.folder), tmp_path / "fork"
    command("fork", parent, "--at-batch", "6", "--to", str(to))
    gen = json.loads((to / "state/_redis_state").read_text())["gen"]
    scene.check_complete(gen, batch=6)
    command("keep", GEN, "--name", "before", "--at-batch", "7")
    owners = pinned(scene)
    assert all(len(of) == 2 and gen in of for of in owners)
    found = json.loads(command("diff", gen, f"{GEN}@before", "--json").splitlines()[0])
    assert {key["key"]["carrier"] for key in found["keys"]} == {"k7", "newest"}

    purge = ["purge", "--url", scene.server.url, "--yes", "--gen"]
    assert main([*purge, GEN]) == 1
    told = capsys.readouterr().err
    assert "kept version 'before'" in told
    assert f"(gen {gen})" in told
    assert scene.rows(GEN) == scene.expected(9)

    command("keep", GEN, "--drop", "before")
    assert pinned(scene) == [{gen}] * 4
    command("fork", parent, "--at-batch", "6", "--to", str(to), "--detach")
    scene.check_complete(gen, batch=6)
    with scene.client() as client:
        maintain_checkpoint(client, gen, policy=Policy("test"))
        for number in PARTITIONS:
            meta = keys.meta(PartitionId(StoreId(gen, 0), number))
            since = int(scene.raw.hget(meta, "gt") or 0)
            scene.raw.hset(meta, "gt", str(since - GRACE_MS))
        maintain_checkpoint(client, gen, policy=Policy("test"))
    assert pinned(scene) == [set()] * 4
    assert main([*purge, GEN, "--now"]) == 0
    left = cluster.keys()
    assert [name for name in left if GEN in str(name)] == []
    assert scene.rows(gen) == scene.expected(6)


@pytest.mark.parametrize("at", [6, 8, 10, 12, 14, 16])
def test_killed_fork_is_finished(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    to = tmp_path / "fork"
    assert killed_at(monkeypatch, lambda: scene.fork(to), at, after=True)
    scene.check_complete(scene.fork(to).gen, batch=9)


def test_only_masters_with_a_replica_are_waited_for(tmp_path: Path) -> None:
    with RedisCluster(masters=2, replicas=1) as cluster:
        scene = scene_on(cluster, tmp_path)
        (with_one,), (without,) = cluster.replicas
        without.kill()
        wait_until(lambda: followers(cluster.masters[1]) == 0, "the master to notice")
        assert scene.fork(tmp_path / "first").rows == 11
        with_one.pause()
        try:
            with pytest.raises(UnavailableError, match="0 of 1 replicas have it"):
                scene.fork(tmp_path / "second", **HASTY)
        finally:
            with_one.resume()
        scene.check_complete(scene.fork(tmp_path / "second").gen, batch=9)
        scene.raw.close()


def test_script_that_a_master_did_not_know_is_waited_for(connect: Connect, tmp_path: Path) -> None:
    with RedisCluster(masters=2, replicas=1) as cluster:
        scene = scene_on(cluster, tmp_path)
        ids = [PartitionId(StoreId(GEN, 0), number) for number in PARTITIONS]
        # The first command has the script's text, and teaches its own master alone.
        ids.sort(key=lambda one: cluster.owner_of(keys.meta(one)))
        late = cluster.replicas[1][0]
        late.pause()
        try:
            hasty = connect(url=cluster.url, deadline="1s", socketTimeout="500ms")
            with pytest.raises(UnavailableError, match="0 of 1 replicas have it"):
                pin_all(hasty, ids, "e" * 32, 10, kind=FORK, lasting=True)
        finally:
            late.resume()
        made = pin_all(connect(url=cluster.url), ids, "e" * 32, 10, kind=FORK, lasting=True)
        assert len(made) == 4
        scene.raw.close()


def followers(master: RedisServer) -> int:
    with master.client() as client:
        return int(client.info("replication")["connected_slaves"])


def test_demoted_master_is_not_taken_for_one_without_replicas(
    sentinels: SentinelSet, connect: Connect
) -> None:
    client = connect(url=sentinels.url)
    client.call("writing", [("SET", "k", "before"), ("WAIT", "1", "10000")])
    sentinels.fail_over()
    sentinels.await_roles(b"slave", b"master")
    sentinels.await_replicas()
    assert client._replicas_of([[("SET", "k", "after")]]) == [1]


@pytest.mark.parametrize("step", ["pin", "create", "secure", "publish"])
def test_fail_over_between_two_steps_loses_no_pin(
    sentinels: SentinelSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    scene = Scene(Served(sentinels.url, sentinels.servers[0].client), tmp_path / "parent")  # type: ignore[arg-type]  # all that it uses
    scene.run(4)
    # What the fork writes may be lost, and not what its parent has.
    assert scene.raw.wait(1, 10_000) == 1
    run = getattr(_ForkPlan, step)

    def behind_a_fail_over(self: _ForkPlan, *given: Any) -> None:
        sentinels.fail_over()
        sentinels.await_roles(b"slave", b"master")
        run(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(_ForkPlan, step, behind_a_fail_over)
        made = scene.fork(tmp_path / "fork")
    scene.raw.close()
    scene.raw = sentinels.servers[1].client()
    scene.check_complete(made.gen, batch=3)
    scene.raw.close()
