"""Forks of planted queries: what they hold, interruptions at each step, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redis_state import keys
from redis_state.errors import (
    ConfigError,
    Kind,
    NotFoundError,
    RedisStateError,
    StateError,
    UsageError,
)
from redis_state.files import folder_at
from redis_state.forks import fork_with, state
from redis_state.maintain.recall import expire
from redis_state.protocol import pins
from tests.contract.fork_scene import SCHEMA_FILE, Scene, killed_at
from tests.contract.planting import GEN, QUERY_ID, uid
from tests.support.interruptions import Interrupted, interrupting
from tests.support.redis_server import RedisServer


@pytest.fixture
def scene(redis_server: RedisServer, tmp_path: Path) -> Scene:
    """Ten batches."""
    made = Scene(redis_server, tmp_path / "parent")
    made.run(10)
    return made


def text_of(folder: Path, name: str) -> str:
    return (folder / name).read_text()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("which", ["flights", QUERY_ID, GEN, "the folder"])
def test_fork_reads_as_its_parent_after_the_batch(scene: Scene, tmp_path: Path, which: str) -> None:
    to = tmp_path / "new"
    folder = str(scene.folder)
    query, checkpoint = (folder, None) if which == "the folder" else (which, folder)
    made = fork_with(scene.config, query, to=str(to), at_batch=6, checkpoint=checkpoint)
    assert (made.batch, made.version, made.partitions, made.rows) == (6, 7, 4, 8)
    assert (made.path, made.name) == (str(to), "flights-fork")
    scene.check_complete(made.gen, batch=6)
    assert not list(scene.raw.keys(f"*{made.gen}*:[ds]:*"))
    for _ in range(3):
        scene.run(4)
        scene.maintain()
    scene.check_complete(made.gen, batch=6)
    assert scene.rows(GEN) == scene.expected(scene.batch)


def test_fork_has_the_logs_up_to_the_batch(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "new"
    made = scene.fork(to, at_batch=4)
    assert names_in(to / "offsets") == names_in(to / "commits") == {"3", "4"}
    assert names_in(to / "sources/0") == {"0", "1", "2", "3", "4"}
    for name in ("offsets/4", "commits/3", "sources/0/2"):
        assert text_of(to, name) == text_of(scene.folder, name)
    assert names_in(to / "state/0/_metadata/v2") == {"0"}
    assert names_in(to / "state/0/_stateSchema/default") == {SCHEMA_FILE}
    assert text_of(to, "state/0/0/_metadata/schema") == "a schema"
    assert names_in(to / "state/0") >= {"0", "1", "2", "3"}
    operator = json.loads(text_of(to, "state/0/_metadata/v2/0").splitlines()[1])
    paths = operator["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert paths == [f"file:{to}/state/0/_stateSchema/default/{SCHEMA_FILE}"]
    query_id = json.loads(text_of(to, "metadata"))["id"]
    assert query_id not in ("", QUERY_ID)
    fields = scene.fields(made.gen)
    assert (fields["id"], fields["name"]) == (query_id, "flights-fork")
    assert fields["forkOf"] == f"{GEN} 5"
    assert not [name for name in fields if name.startswith(("run:", "epoch", "fork:"))]
    assert json.loads(text_of(to, "state/_redis_state"))["gen"] == made.gen


def test_newest_batch_is_the_default(scene: Scene, tmp_path: Path) -> None:
    made = scene.fork(tmp_path / "new", name="what if")
    assert (made.batch, made.name) == (9, "what if")
    scene.check_complete(made.gen, batch=9)


def test_first_batch_can_be_forked(scene: Scene, tmp_path: Path) -> None:
    made = scene.fork(tmp_path / "new", at_batch=0)
    scene.check_complete(made.gen, batch=0)
    assert names_in(tmp_path / "new/offsets") == {"0"}


def test_unique_ids_choose_the_attempt(redis_server: RedisServer, tmp_path: Path) -> None:
    scene = Scene(redis_server, tmp_path / "parent", with_ids=True)
    scene.run(5)
    # A sibling of the last attempt, which was published later but lost.
    for number in range(4):
        meta = keys.meta(scene.planted.id(number))
        lost, won = f"d:5:{'f' * 32}", f"d:5:{uid(5)}"
        scene.raw.hset(meta, lost, scene.raw.hget(meta, won))
        scene.raw.hset(meta, mapping={"l": "5", "lu": "f" * 32, "o": "4", "ou": uid(4), "c": "2"})
    made = scene.fork(tmp_path / "new")
    assert all(manifest["ou"] == uid(5) for manifest in scene.manifests(made.gen))
    assert all(manifest["c"] == "2" for manifest in scene.manifests(made.gen))
    scene.check_complete(made.gen, batch=4)


def test_attempt_that_is_gone_is_refused(redis_server: RedisServer, tmp_path: Path) -> None:
    scene = Scene(redis_server, tmp_path / "parent", with_ids=True)
    scene.run(5)
    text = text_of(scene.folder, "commits/4").replace(uid(5), "e" * 32)
    scene.write("commits/4", text)
    with pytest.raises(StateError, match="does not hold all of its state"):
        scene.fork(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("after", [False, True])
def test_killed_call_is_finished_by_the_same_call(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Before or after each pipeline; meanwhile the parent runs, and drops what nobody pins."""
    for at in range(100):
        to = tmp_path / f"new-{at}"
        before = scene.batch
        if not killed_at(monkeypatch, lambda to=to: scene.fork(to), at, after=after):  # type: ignore[misc]  # bound at once
            break
        batch = before if (to / "metadata").exists() else before + 3
        scene.run(3)
        scene.maintain()
        gen = finished(scene, to)
        scene.check_complete(gen, batch=batch)
        assert json.loads(text_of(to, "metadata"))["id"] == scene.fields(gen)["id"]
    assert at > 10


def plan_anew(scene: Scene, batch: int) -> None:
    """The query went back, and ran the batch again."""
    name = f"offsets/{batch}"
    scene.write(name, text_of(scene.folder, name).replace('TimestampMs": ', 'TimestampMs": 1'))


@pytest.mark.parametrize("at", [8, 12, 16])
def test_batch_that_was_planned_anew_after_a_kill_is_refused(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The pins hold the state of the first plan, which the new entries of the logs do not fit."""
    to = tmp_path / "new"
    assert killed_at(monkeypatch, lambda: scene.fork(to, at_batch=9), at, after=True)
    assert (to / "metadata").exists()
    plan_anew(scene, 9)
    with pytest.raises(UsageError, match="went back since this fork began"):
        scene.fork(to, at_batch=9)
    shutil.rmtree(to)
    assert scene.rows(scene.fork(to, at_batch=9).gen) == scene.expected(9)


def test_batch_that_is_planned_anew_meanwhile_is_refused(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = state.StateFork.secure

    def slow(self: state.StateFork) -> None:
        plan_anew(scene, 9)
        secure(self)

    monkeypatch.setattr(state.StateFork, "secure", slow)
    with pytest.raises(UsageError, match="planned the batch anew"):
        scene.fork(tmp_path / "new")
    assert "This_fork_is_not_complete" in text_of(tmp_path / "new", "metadata")


def finished(scene: Scene, to: Path) -> str:
    """Returns the gen of a fork after the same call, which may find nothing left to do."""
    try:
        return scene.fork(to).gen
    except UsageError as error:
        if "complete already" not in str(error):
            raise
        gen: str = json.loads(text_of(to, "state/_redis_state"))["gen"]
        return gen


def test_folder_killed_between_two_files_is_finished(scene: Scene, tmp_path: Path) -> None:
    at = 0
    while killed_at_file(scene, to := tmp_path / f"new-{at}", at):
        made = scene.fork(to)
        scene.check_complete(made.gen, batch=scene.batch)
        assert not [path for path in to.rglob("*") if path.name.endswith(".redis_state")]
        at += 1
    assert at > 10


def killed_at_file(scene: Scene, to: Path, at: int, **given: Any) -> bool:
    """Runs a call that ends after a change of the new folder; returns whether it got so far."""

    def opened(address: str) -> Any:
        folder = folder_at(address)
        return interrupting(folder, at=at) if address == str(to) else folder

    try:
        fork_with(scene.config, str(scene.folder), to=str(to), open_folder=opened, **given)
    except Interrupted:
        return True
    return False


LOGS_BEGIN = 3
"""Change of the new folder with which the logs begin: the pins are for ever, nothing else is."""


def test_interrupted_fork_keeps_its_batch(scene: Scene, tmp_path: Path) -> None:
    to = tmp_path / "new"
    assert killed_at_file(scene, to, LOGS_BEGIN, at_batch=5)
    with pytest.raises(UsageError, match="a fork of batch 5 was interrupted there"):
        scene.fork(to, at_batch=6)
    made = scene.fork(to, at_batch=5)
    scene.check_complete(made.gen, batch=5)
    with pytest.raises(UsageError, match="complete already"):
        scene.fork(to, at_batch=5)


def test_expired_fork_begins_again(scene: Scene, tmp_path: Path) -> None:
    """Nobody ran the command again for a day."""
    to = tmp_path / "new"
    assert killed_at_file(scene, to, LOGS_BEGIN, at_batch=5)
    gen = json.loads(text_of(to, "state/_redis_state"))["gen"]
    assert any(f"x:{gen}" in manifest for manifest in scene.manifests(GEN))
    for key in scene.raw.keys(f"*{gen}*"):  # of Redis
        assert scene.raw.ttl(key) > 0
        scene.raw.delete(key)
    made = scene.fork(to)
    assert made.gen == gen
    scene.check_complete(gen, batch=5)


def test_lost_pin_is_made_again(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fail-over loses the pins for ever of one partition, right after they were made."""
    original = pins.pin_all
    lost: list[str] = []

    def pin_all(client: Any, ids: Any, owner: str, version: int, **given: Any) -> Any:
        found = original(client, ids, owner, version, **given)
        if given["lasting"] and not lost:
            lost.append(owner)
            scene.raw.hdel(keys.meta(scene.planted.id(2)), f"x:{owner}")
        return found

    monkeypatch.setattr(state, "pin_all", pin_all)
    made = scene.fork(tmp_path / "new")
    assert lost == [made.gen]
    scene.check_complete(made.gen, batch=9)


def test_fork_of_a_fork_pins_its_parent_alone(scene: Scene, tmp_path: Path) -> None:
    first = scene.fork(tmp_path / "first", at_batch=7)
    second = fork_with(
        scene.config, str(tmp_path / "first"), to=str(tmp_path / "second"), name="second"
    )
    assert second.batch == 7
    assert scene.rows(second.gen) == scene.expected(7)
    for of_first, of_parent in zip(scene.manifests(first.gen), scene.manifests(GEN), strict=True):
        assert f"x:{second.gen}" in of_first
        assert f"x:{second.gen}" not in of_parent
    places = {
        value
        for manifest in scene.manifests(second.gen)
        for name, value in manifest.items()
        if name.startswith("a:")
    }
    assert places == {f"p {GEN}"}


def test_folder_of_another_file_system_is_a_target(scene: Scene) -> None:
    to = "memory://forks/flights"
    made = scene.fork(to, at_batch=3)
    folder = folder_at(to)
    assert (made.path, scene.rows(made.gen)) == (to, scene.expected(3))
    assert folder.read("offsets/3") == (scene.folder / "offsets/3").read_bytes()
    assert json.loads(folder.read("metadata") or b"")["id"]
    assert made.gen == json.loads(folder.read("state/_redis_state") or b"")["gen"]


Spoil = Callable[[Scene], object]
# What is wrong with the parent, and what the error says.
REFUSED: dict[str, tuple[Spoil, type[RedisStateError], str]] = {
    "ephemeral": (
        lambda scene: scene.raw.expire(scene.query, 3600),
        UsageError,
        "the query is ephemeral",
    ),
    "rescaled": (
        lambda scene: scene.raw.hset(scene.query, "moved:0:default", "a" * 32),
        UsageError,
        "number of partitions is being changed",
    ),
    "a gen is announced": (
        lambda scene: scene.write(
            "state/_redis_state.1",
            json.dumps(
                {
                    "format": 2,
                    "gen": "a" * 32,
                    "path": json.loads(text_of(scene.folder, "state/_redis_state"))["path"],
                    "batch": scene.batch + 1,
                    "partitions": 8,
                }
            ),
        ),
        UsageError,
        "rescaleTo",
    ),
    "purged": (
        lambda scene: _purge(scene),
        StateError,
        "the checkpoint was purged",
    ),
    "another server": (
        lambda scene: scene.raw.flushall(),
        NotFoundError,
        "no state of checkpoint",
    ),
    "moved": (
        lambda scene: _move(scene),
        StateError,
        "made under another path",
    ),
    "no batch": (
        lambda scene: shutil.rmtree(scene.folder / "commits"),
        UsageError,
        "committed no batch yet",
    ),
    "a cut commit": (
        lambda scene: scene.write("commits/9", "v1"),
        StateError,
        "cut off, or was not written by Spark",
    ),
    "a lost source log": (
        lambda scene: (scene.folder / "sources/0/7").unlink(),
        StateError,
        "entry 7 is gone",
    ),
}


def _move(scene: Scene) -> None:
    scene.folder = scene.folder.rename(scene.folder.parent / "parent-2")


def _purge(scene: Scene) -> None:
    with scene.client() as client:
        expire(client, GEN)


@pytest.mark.parametrize("which", REFUSED)
def test_parent_that_cannot_be_forked_is_refused(scene: Scene, tmp_path: Path, which: str) -> None:
    spoil, kind, found = REFUSED[which]
    spoil(scene)
    before = scene.raw.dbsize()
    with pytest.raises(kind, match=found):
        scene.fork(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert scene.raw.dbsize() == before


def test_batch_that_redis_dropped_is_refused_with_those_it_holds(
    scene: Scene, tmp_path: Path
) -> None:
    scene.maintain()
    scene.run(4)
    scene.maintain()
    with pytest.raises(StateError, match=r"batches 11 to 13 can be forked|can be forked") as caught:
        scene.fork(tmp_path / "new", at_batch=3)
    assert caught.value.kind in (Kind.VERSION_EXPIRED, Kind.STATE_LOST)
    listed = re.findall(r"\d+", caught.value.advice)
    made = scene.fork(tmp_path / "new", at_batch=int(listed[0]))
    scene.check_complete(made.gen, batch=int(listed[0]))


@pytest.mark.parametrize("batch", [10, 99])
def test_batch_that_spark_does_not_have_is_refused(
    scene: Scene, tmp_path: Path, batch: int
) -> None:
    with pytest.raises(StateError, match="The batches 0 to 9 can be forked"):
        scene.fork(tmp_path / "new", at_batch=batch)


def test_existing_target_is_refused(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    linked = tmp_path / "link"
    linked.symlink_to(scene.folder)
    for to, found in (
        (tmp_path / "full", "it has files already"),
        (scene.folder, "is that of the query"),
        (scene.folder / "state/new", "or inside of it"),
        (linked, "is that of the query"),
    ):
        with pytest.raises(UsageError, match=found):
            scene.fork(to)
    made = scene.fork(tmp_path / "new")
    with pytest.raises(UsageError, match=r"has other state|has files already"):
        fork_with(scene.config, str(tmp_path / "new"), to=str(tmp_path / "full"))
    with pytest.raises(UsageError, match="complete already"):
        scene.fork(tmp_path / "new")
    scene.check_complete(made.gen, batch=9)


def test_folder_of_another_query_is_refused(scene: Scene, tmp_path: Path) -> None:
    scene.raw.hset(
        keys.checkpoints(),
        "b" * 32,
        json.dumps({"path": "11", "id": "x", "name": "other", "created": 1, "seen": 1}),
    )
    with pytest.raises(UsageError, match="another query than 'other'"):
        fork_with(scene.config, "other", to=str(tmp_path / "new"), checkpoint=str(scene.folder))
    with pytest.raises(NotFoundError, match="Did you mean 'flights'"):
        fork_with(scene.config, "flihts", to=str(tmp_path / "new"))
    with pytest.raises(ConfigError, match="only a hash of its checkpoint folder"):
        fork_with(scene.config, "flights", to=str(tmp_path / "new"))


@pytest.fixture
def secrets(tmp_path: Path) -> tuple[str, str]:
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_text(name * 20)
        path.chmod(0o600)
    return str(tmp_path / "one"), str(tmp_path / "two")


def test_other_secret_is_refused(scene: Scene, tmp_path: Path, secrets: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="does not sign its blocks"):
        scene.fork(tmp_path / "new", signing_key_file=secrets[0])
    assert not (tmp_path / "new").exists()


def test_other_key_prefix_is_refused(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="with its key prefix"):
        scene.fork(tmp_path / "new", key_prefix="other")
    assert not (tmp_path / "new").exists()
