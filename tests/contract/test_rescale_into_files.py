"""`redis-state rescale` of a Python store with a bound: its rows pass Redis by."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.errors import ConfigError, ConflictError
from redis_state.files import folder_at
from redis_state.maintain.purged_files import delete_files, purged_files
from redis_state.places import born
from redis_state.places.moving import rows_of
from redis_state.rescaling import store as under_test
from redis_state.rescaling.checkpoints import RescaledCheckpoint
from tests.contract.test_bound_of_batches import Bounded
from tests.contract.test_rescale_store import Query, expire_by_themselves
from tests.support.redis_server import RedisServer

LIMIT = 4 << 10
DICE = random.Random(11)
ROWS: dict[str, Any] = {f"k{number}": DICE.randbytes(400).hex() for number in range(300)}
AFTER: dict[str, Any] = ROWS | {"k7": "70"}


@pytest.fixture
def query(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bounded]:
    monkeypatch.setattr(born, "MOVED_BYTES_MAX", LIMIT)
    with closing(Client(options.parse({"url": redis_server.url}))) as client:
        made = Bounded(client, redis_server.url, tmp_path / "files")
        made.run(0, ROWS)
        made.run(1, {"k7": "70"})
        yield made


def in_redis(query: Query, gen: str) -> list[bytes]:
    (found,) = query.client.call("looking for keys", [("SCAN", "0", "COUNT", "10000")])
    return [one for one in found[1] if gen.encode() in one and (b":d:" in one or b":s:" in one)]


@pytest.mark.parametrize("partitions", [1, 8])
def test_both_versions_are_in_files(query: Bounded, partitions: int) -> None:
    done = query.rescale(partitions)
    assert in_redis(query, done.new_gen) == []
    assert len(query.files(done.new_gen)) == 2 * partitions
    batch = query.begin(1)
    assert query.read(batch) == ROWS
    lists = [keys.files(id_) for id_ in batch.ids()]
    assert set(query.client.call("when", [("PTTL", name) for name in lists])) == {-1}
    query.commit(batch, {"k7": "70"})
    following = query.begin(2)
    assert query.read(following) == AFTER
    query.commit(following, {"new": "1"})
    assert purged_files(query.client, tenant="") == []
    assert main(["places", query.name, "--verify", "--deep", "--url", query.url]) == 0
    # From files to files.
    again = query.rescale(3)
    assert query.read(query.begin(3)) == AFTER | {"new": "1"}
    assert in_redis(query, again.new_gen) == []


def test_few_rows_go_to_redis(query: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(born, "MOVED_BYTES_MAX", 8 << 20)
    done = query.rescale(2)
    assert len(in_redis(query, done.new_gen)) == 4
    assert query.files(done.new_gen) == []
    query.run(2, {})
    assert query.read(query.begin(3)) == AFTER


def test_store_gets_its_bound_with_the_rescale(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(born, "MOVED_BYTES_MAX", LIMIT)
    with closing(Client(options.parse({"url": redis_server.url}))) as client:
        query = Query(client, redis_server.url)
        query.run(0, ROWS)
        with pytest.raises(ConfigError, match="'placesFolder' is missing"):
            query.rescale(2, redis_memory="16m")
        with pytest.raises(ConfigError, match="too few for 2 partitions"):
            query.rescale(2, redis_memory="2m", places_folder=str(tmp_path))
        done = query.rescale(2, redis_memory="16m", places_folder=str(tmp_path))
        assert in_redis(query, done.new_gen) == []
        (places,) = client.call("reading", [("HGET", keys.query(done.new_gen), "places")])
        assert json.loads(places)["folder"] == f"file:{tmp_path}"
        query.commit(query.begin(0), ROWS)
        assert query.read(query.begin(1)) == ROWS


def test_folder_that_is_not_mounted_is_refused(query: Bounded) -> None:
    # Another machine; all state of the store is in Redis.
    shutil.rmtree(query.folder)
    with pytest.raises(ConfigError, match="not there on this machine"):
        query.rescale(2)
    assert not query.folder.exists()
    assert query.rescale(2, places_folder=str(query.folder)).partitions == 2
    assert query.read(query.begin(2)) == AFTER


def test_files_of_a_killed_call_are_deleted_by_a_person(
    query: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("redis_state.rescaling.versions.restore", killed)
        with pytest.raises(KeyboardInterrupt):
            query.rescale(2)
    (note,) = purged_files(query.client, tenant="")
    folder = folder_at(note.folder) / note.gen
    with pytest.raises(ConflictError, match="younger than a day"):
        delete_files(query.client, note, folder, tenant="", guard=lambda _: "")
    due = replace(note, due=0)
    with pytest.raises(ConflictError, match=f"Redis has the checkpoint {note.gen}"):
        delete_files(query.client, due, folder, tenant="", guard=lambda _: "")
    query.client.call("letting expire", [("DEL", keys.query(note.gen))])
    found = delete_files(query.client, due, folder, tenant="", guard=lambda _: "")
    assert (found.files, found.strangers) == (4, ())
    assert not (query.folder / note.gen).exists()
    assert purged_files(query.client, tenant="") == []


@pytest.mark.parametrize("step", ["write_file", "restore", "take", "leave"])
def test_killed_call_leaves_nothing_that_stays(
    query: Bounded, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    targets: dict[str, Any] = {
        "write_file": "redis_state.rescaling.rows.write_file",
        "restore": "redis_state.rescaling.versions.restore",
        "leave": "redis_state.rescaling.store.leave",
    }
    with monkeypatch.context() as patched:
        if step == "take":
            patched.setattr(RescaledCheckpoint, "take", killed)
        else:
            patched.setattr(targets[step], killed)
        with pytest.raises(KeyboardInterrupt):
            query.rescale(2)
    expire_by_themselves(query)
    (note,) = purged_files(query.client, tenant="")
    assert note.folder == f"file:{query.folder}"
    assert bool(query.files(note.gen)) == (step != "write_file")
    done = query.rescale(2)
    assert query.read(query.begin(2)) == AFTER
    assert [one.gen for one in purged_files(query.client, tenant="")] == [note.gen]
    assert done.new_gen != note.gen


def test_copy_that_a_killed_call_kept_expires_with_the_next(
    query: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[RescaledCheckpoint] = []

    def killed(copy: RescaledCheckpoint, _: Any) -> bool:
        kept.append(copy)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RescaledCheckpoint, "is_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            query.rescale(2)
    (copy,) = kept
    names = [*map(keys.meta, copy.ids), *map(keys.files, copy.ids)]
    assert set(query.client.call("when", [("PTTL", name) for name in names])) == {-1}
    query.rescale(4)
    assert min(query.client.call("when", [("PTTL", name) for name in names])) > 0
    assert query.read(query.begin(2)) == AFTER


@pytest.mark.parametrize("step", ["end_files", "finish", "_result"])
def test_call_killed_behind_its_decisive_step_is_finished(
    query: Bounded, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(under_test, step, killed)
        with pytest.raises(KeyboardInterrupt):
            query.rescale(2)
    assert len(purged_files(query.client, tenant="")) == (step == "end_files")
    if step != "_result":
        assert query.rescale(2).partitions == 2
    assert purged_files(query.client, tenant="") == []
    assert query.read(query.begin(2)) == AFTER
    assert rows_of(query.client, query.begin(2).ids()[0])
