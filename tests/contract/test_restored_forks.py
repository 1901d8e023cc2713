"""Parents of forks that have lost their state, and come back from a copy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from redis_state import keys
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.errors import StateError
from redis_state.forks.keep import keep
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.report import Policy
from redis_state.protocol.pins import FORK, pin_all
from tests.contract.copying import plant_copy
from tests.contract.fork_scene import Scene
from tests.contract.planting import GEN, uid
from tests.support.redis_server import RedisServer

COPIED = 4
LOST = "which was restored or imported since and does not keep all of them"


class Case:
    """A query with five batches and a copy of the state after the fourth one, and a fork."""

    def __init__(self, server: RedisServer, folder: Path, capsys: pytest.CaptureFixture[str]):
        self.scene = Scene(server, folder / "parent")
        self.scene.run(5)
        plant_copy(self.scene.planted, self.scene.folder, COPIED)
        self.to = folder / "fork"
        self._capsys = capsys

    def fork(self, batch: int) -> str:
        return self.scene.fork(self.to, at_batch=batch).gen

    def lose_parent(self) -> None:
        for key in self.scene.raw.scan_iter(count=1000):
            if GEN.encode() in key:
                self.scene.raw.delete(key)

    def run(self, command: str, folder: Path, *words: str) -> tuple[int, str]:
        place = ["--url", self.scene.server.url, "--checkpoint", str(folder)]
        status = main([command, *place, *words])
        captured = self._capsys.readouterr()
        return status, captured.out + captured.err

    def restore(self) -> tuple[int, str]:
        return self.run("restore", self.scene.folder, "--yes", "--force")

    def pins(self) -> list[list[str]]:
        """Pins of each partition of the parent, without their segments."""
        return [
            [f"{name} {value}" for name, value in sorted(of.items()) if name[:2] == "x:"]
            for of in self.scene.manifests(GEN)
        ]

    def forget_pins(self) -> None:
        """Leaves the parent as a restore of an earlier release did."""
        for number, manifest in enumerate(self.scene.manifests(GEN)):
            pinned = [name for name in manifest if name[:2] in ("x:", "y:")]
            meta = keys.meta(self.scene.planted.id(number))
            self.scene.raw.hdel(meta, *pinned)
            self.scene.raw.hset(meta, "f", "1")

    def forks_in_registry(self) -> list[str]:
        names: Any = self.scene.raw.hkeys(keys.query(GEN))
        return [name.decode() for name in names if name.startswith(b"fork:")]

    def maintain(self, gen: str) -> list[str]:
        with self.scene.client() as client:
            return maintain_checkpoint(client, gen, policy=Policy("test")).problems


@pytest.fixture
def case(redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Case:
    return Case(redis_server, tmp_path, capsys)


@pytest.mark.parametrize("batch", [1, COPIED - 1])
def test_restored_parent_keeps_the_segments_of_its_fork(case: Case, batch: int) -> None:
    scene, gen = case.scene, case.fork(batch)
    before = case.pins()
    case.lose_parent()
    status, told = case.restore()
    assert (status, "4 partitions were restored" in told) == (0, True)
    assert case.pins() == before
    for _ in range(2):
        scene.maintain()
    assert scene.rows(gen) == scene.expected(batch)
    assert scene.rows(GEN) == scene.expected(COPIED - 1)
    assert case.run("doctor", case.to)[0] == 0


def test_fork_of_a_restored_parent_can_be_detached(case: Case) -> None:
    scene, gen = case.scene, case.fork(2)
    case.lose_parent()
    assert case.restore()[0] == 0
    assert case.forks_in_registry() == [f"fork:{gen}"]
    assert scene.fork(case.to, at_batch=2, detach=True).detached == 4
    assert scene.rows(gen) == scene.expected(2)


@pytest.mark.parametrize("pins_lost", [False, True])
def test_maintenance_enters_a_fork_in_the_registry_of_its_parent_again(
    case: Case, pins_lost: bool
) -> None:
    gen = case.fork(2)
    case.scene.raw.hdel(keys.query(GEN), f"fork:{gen}")
    if pins_lost:
        case.forget_pins()
    assert case.maintain(gen) == []
    assert case.forks_in_registry() == [f"fork:{gen}"]


def test_maintenance_of_a_fork_makes_no_registry_for_its_parent(case: Case) -> None:
    gen = case.fork(2)
    case.scene.raw.delete(keys.query(GEN))
    case.maintain(gen)
    assert case.scene.raw.exists(keys.query(GEN)) == 0


def test_maintenance_pins_again_what_a_parent_has(case: Case) -> None:
    scene, gen = case.scene, case.fork(2)
    before = case.pins()
    case.forget_pins()
    status, told = case.run("doctor", case.to)
    assert status == PROBLEMS_STATUS or LOST in told
    (advised,) = set(re.findall(r"`redis-state (maintain [^`]+)`", told))
    assert main([*shlex.split(advised), "--url", scene.server.url]) == 0
    assert case.pins() == before
    assert LOST not in case.run("doctor", case.to)[1]
    scene.maintain()
    assert scene.rows(gen) == scene.expected(2)


def test_second_fork_is_pinned_beside_the_first(case: Case) -> None:
    """And one that is complete gets no pin that its detached state no longer needs."""
    gen, second = case.fork(1), case.scene.fork(case.to.with_name("second"), at_batch=2).gen
    own = case.scene.fork(case.to.with_name("own"), at_batch=2, detach=True).gen
    case.forget_pins()
    for one in (gen, second, own):
        assert case.maintain(one) == []
    assert {pin.split(" ")[0] for of in case.pins() for pin in of} == {f"x:{gen}", f"x:{second}"}
    case.scene.check_complete(second, batch=2)


def test_segments_that_the_copy_lacks_are_named(case: Case) -> None:
    scene, gen = case.scene, case.fork(4)
    case.lose_parent()
    assert case.restore()[0] == 0
    assert case.pins() == [[]] * 4
    status, told = case.run("doctor", case.to)
    assert (status, LOST in told) == (PROBLEMS_STATUS, True)
    assert all(LOST in problem for problem in case.maintain(gen))
    with pytest.raises(StateError, match=LOST):
        scene.rows(gen)


def test_partition_with_pins_is_never_replaced_by_a_copy(case: Case) -> None:
    """A fork and a name still read from what the query itself cannot be served from."""
    scene, gen = case.scene, case.fork(1)
    keep(scene.server.url, GEN, name="before", at_batch=1)
    for number in range(4):
        scene.raw.delete(keys.segment(scene.planted.id(number), f"d:{COPIED}:{uid(COPIED)}"))
    before = scene.manifests(GEN)
    status, told = case.restore()
    assert (status, "Nothing was changed" in told) == (1, True)
    assert scene.manifests(GEN) == before
    assert scene.rows(gen) == scene.expected(1)
    status, told = case.run("purge", scene.folder, "--yes")
    assert (status, "kept version 'before'" in told) == (1, True)


def test_segments_are_pinned_again_and_not_the_version(case: Case) -> None:
    """A snapshot has come for the version since, from which a new pin would read."""
    scene, gen = case.scene, case.fork(4)
    before = case.pins()
    case.forget_pins()
    scene.maintain()
    with scene.client() as client:
        (pinned,) = pin_all(client, [scene.planted.id(0)], "e" * 32, 5, kind=FORK)
        assert [one.snapshot for one in pinned.segments] == [True]
    assert case.maintain(gen) == []
    assert [pin for pin in case.pins()[0] if gen in pin] == before[0]
    for _ in range(3):
        scene.run()
        scene.maintain()
    assert scene.rows(gen) == scene.expected(4)


def test_exported_fork_needs_no_parent(case: Case, tmp_path: Path) -> None:
    scene, gen = case.scene, case.fork(3)
    export = str(tmp_path / "export")
    url = ["--url", scene.server.url]
    assert main(["export", gen, "--to", export, *url]) == 0
    scene.raw.flushdb()
    assert main(["import", export, *url, "--checkpoint", str(case.to), "--yes"]) == 0
    assert scene.rows(gen) == scene.expected(3)
    assert not [name for of in scene.manifests(gen) for name in of if name[:2] in ("a:", "g")]
    assert case.run("doctor", case.to)[0] == 0


def test_imported_parent_has_segments_of_its_own(case: Case, tmp_path: Path) -> None:
    """The fork is told what it has lost; the parent is as it was exported."""
    scene, gen = case.scene, case.fork(3)
    keep(scene.server.url, GEN, name="before", at_batch=2)
    url = ["--url", scene.server.url]
    exports = [str(tmp_path / name) for name in ("kept", "newest")]
    assert main(["export", GEN, "--to", exports[0], "--at", "before", *url]) == 0
    assert main(["export", GEN, "--to", exports[1], *url]) == 0
    before = scene.manifests(GEN)
    for export in exports:
        # Both versions are there.
        assert main(["import", export, *url, "--yes"]) == 0
        assert scene.manifests(GEN) == before
    case.lose_parent()
    assert main(["import", exports[1], *url, "--yes"]) == 0
    assert scene.rows(GEN) == scene.expected(4)
    assert all(LOST in problem for problem in case.maintain(gen))
    with pytest.raises(StateError, match=LOST):
        scene.rows(gen)
    case.lose_parent()
    assert main(["import", exports[0], *url, "--yes"]) == 0
    assert scene.rows(GEN) == scene.expected(2)
