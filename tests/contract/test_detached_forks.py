"""Forks that get snapshots of their own (`fork --detach`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redis_state import keys
from redis_state.cli.main import main
from redis_state.errors import ConflictError, Kind, UsageError
from redis_state.forks import fork_with
from redis_state.forks.keep import keep
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.purge import purge
from redis_state.maintain.report import Policy
from tests.contract.fork_scene import Scene
from tests.contract.planting import GEN
from tests.support.redis_server import RedisServer


@pytest.fixture
def scene(redis_server: RedisServer, tmp_path: Path) -> Scene:
    """Ten batches."""
    made = Scene(redis_server, tmp_path / "parent")
    made.run(10)
    return made


def test_detached_fork_names_no_foreign_segment(scene: Scene, tmp_path: Path) -> None:
    scene.maintain()
    made = scene.fork(tmp_path / "new", detach=True)
    assert made.detached == 4
    for manifest in scene.manifests(made.gen):
        assert not [name for name in manifest if name.startswith("a:")]
        assert manifest["g"].startswith(GEN)
    assert scene.rows(made.gen) == scene.expected(9)
    assert scene.fork(tmp_path / "new", detach=True).gen == made.gen


@pytest.mark.parametrize("detach", [False, True])
def test_fork_that_was_detached_long_ago_is_complete(
    scene: Scene, tmp_path: Path, detach: bool
) -> None:
    made = scene.fork(tmp_path / "new", detach=True)
    end_pins(scene, made.gen)
    before = scene.manifests(GEN), scene.manifests(made.gen)
    with pytest.raises(UsageError, match="complete already, and needs nothing of its parent"):
        scene.fork(tmp_path / "new", detach=detach)
    assert (scene.manifests(GEN), scene.manifests(made.gen)) == before


def end_pins(scene: Scene, gen: str) -> None:
    """Maintenance, a day, and maintenance of the fork and its parent again."""
    with scene.client() as client:
        maintain_checkpoint(client, gen, policy=Policy("test"))
        for number in range(4):
            scene.raw.hset(keys.meta(scene.planted.id(number).of_gen(gen)), "gt", "1")
        for one in (gen, GEN):
            maintain_checkpoint(client, one, policy=Policy("test"))
    assert not [name for one in scene.manifests(gen) for name in one if name == "g"]
    assert not [name for one in scene.manifests(GEN) for name in one if name[:2] in ("x:", "y:")]


def test_complete_fork_can_be_detached_later(scene: Scene, tmp_path: Path) -> None:
    """A kill between both parts of a call, or a second thought."""
    made = scene.fork(tmp_path / "new", at_batch=8)
    scene.run(4)
    scene.maintain()
    again = scene.fork(tmp_path / "new", at_batch=8, detach=True)
    assert (again.gen, again.batch, again.rows, again.detached) == (made.gen, 8, made.rows, 4)
    assert not [name for one in scene.manifests(made.gen) for name in one if name[:2] == "a:"]
    assert scene.rows(made.gen) == scene.expected(8)


def test_fork_whose_own_fork_needs_the_parent_is_not_detached(scene: Scene, tmp_path: Path) -> None:
    first = scene.fork(tmp_path / "first")
    fork_with(scene.config, str(tmp_path / "first"), to=str(tmp_path / "second"), name="second")
    url = scene.server.url
    keep(url, first.gen, name="before")
    for named in ("through it: fork 'second'.*; kept version 'before'", "it: fork 'second' "):
        with pytest.raises(ConflictError, match=named) as told:
            scene.fork(tmp_path / "first", detach=True)
        assert told.value.kind is Kind.PINNED
        assert "`redis-state keep QUERY --drop NAME`" in str(told.value)
        if "kept" in named:
            assert main(["keep", first.gen, "--drop", "before", "--url", url]) == 0
    assert scene.rows(first.gen) == scene.expected(9)
    with scene.client() as client:
        purge(client, json.loads((tmp_path / "second/state/_redis_state").read_text())["gen"])
    assert scene.fork(tmp_path / "first", detach=True).detached == 4
    assert not [name for one in scene.manifests(first.gen) for name in one if name[:2] == "a:"]
    assert scene.rows(first.gen) == scene.expected(9)
