"""Advice that errors and commands print is carried out word for word until the state is right.

`tests/unit/test_printed_commands.py` has the table of all printed commands and their scenes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redis_state import keys
from redis_state.cli.arguments.profile import URL_VARIABLE
from redis_state.cli.main import main
from redis_state.errors import RedisStateError, StateError
from redis_state.maintain.recall import expire, recall
from redis_state.protocol import checkpoint_gen
from tests.contract.copying import plant_copy
from tests.contract.planting import GEN, Planted, plant_checkpoint
from tests.contract.query_scene import Batches, Processors, Query, Store, commands_in, follow
from tests.contract.test_going_back import ENDS, lose, rewind
from tests.support.redis_server import RedisServer

BATCHES = 6
EXPORTED = 3


@pytest.fixture
def raw(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture(autouse=True)
def server_of_the_environment(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a library do not know by which name a command line reaches the server."""
    monkeypatch.setenv(URL_VARIABLE, redis_server.url)


@pytest.fixture
def query(redis_server: RedisServer, tmp_path: Path) -> Iterator[Query]:
    made = Query(redis_server, tmp_path / "checkpoint")
    yield made
    made.close()


def followed(text: str, folder: Path, *, only: str = "") -> list[list[str]]:
    """Carry out what a message prints; a question is answered with yes."""
    done = []
    for words in commands_in(text):
        command = [str(folder) if word == "FOLDER" else word for word in words]
        if only and command[0] != only and only not in command:
            continue
        asks = command[0] == "purge" and "--recall" not in command
        assert follow([*command, *(["--yes", "--force"] if asks else [])]) == 0, command
        done.append(command)
    assert done, text
    return done


def export(query: Query, store: Store) -> Path:
    folder = query.folder.parent / f"export-{store.name}"
    command = ["export", store.name, "--to", str(folder), "--at", str(EXPORTED)]
    assert main([*command, "--url", query.server.url]) == 0
    return folder


@pytest.mark.parametrize("kind", [Processors, Batches])
@pytest.mark.parametrize("way", ["--recall", "--now"])
def test_purged_store_is_recalled_or_starts_empty(
    query: Query, kind: type[Store], way: str
) -> None:
    store = query.add(kind)
    query.start(BATCHES)
    expire(query.client, store.gen)
    with pytest.raises(StateError, match="was purged") as told:
        query.start(ENDS)
    followed(str(told.value), query.folder, only=way)
    if way == "--now":
        assert checkpoint_gen(query.client, store.name) is None
        for log in ("offsets", "commits"):
            for path in (query.folder / log).iterdir():
                path.unlink()
    query.start(ENDS)
    query.check(ENDS)


def test_printed_recall_restores_a_purged_checkpoint(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    store = query.add(Processors)
    query.start(BATCHES)
    capsys.readouterr()
    assert main(["purge", "--gen", store.gen, "--yes", "--force"]) == 0
    followed(capsys.readouterr().out, query.folder)
    query.start(ENDS)
    query.check(ENDS)


def test_incomplete_segments_after_a_recall_are_named(
    query: Query, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    store = query.add(Processors)
    query.start(BATCHES)
    expire(query.client, store.gen)
    lose(raw, store, 0, versions=2)
    capsys.readouterr()
    assert main(["purge", "--gen", store.gen, "--recall"]) == 0
    followed(capsys.readouterr().err, query.folder)
    assert "Give --checkpoint" in capsys.readouterr().out
    query.recover(capsys)
    query.start(ENDS)
    query.check(ENDS)


@pytest.mark.parametrize("partitions", [2, 3])
def test_batch_that_ended_early_reruns_after_the_advised_rewind(
    query: Query, partitions: int
) -> None:
    """As a limit behind the operator does: Spark logs the batch all the same."""
    store = query.add(Processors, partitions=partitions)
    query.start(BATCHES - 1)
    assert isinstance(store, Processors)
    store.start()
    for partition in range(partitions - 1):
        task = store.driver.task(
            store.plan, store.run_id, BATCHES - 1, partition=partition, planned="5000"
        )
        task.text = f"b{BATCHES - 1}"
        task.run()
    for log in ("offsets", "commits"):
        (query.folder / log / str(BATCHES - 1)).write_text("5000")
    with pytest.raises(StateError, match="A limit after transform_with_state") as told:
        query.start(ENDS)
    followed(str(told.value), query.folder)
    query.start(ENDS)
    query.check(ENDS)


def test_impossible_rewind_advises_doctor(
    query: Query, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    store = query.add(Processors)
    query.start(BATCHES)
    capsys.readouterr()
    assert rewind(query, 99) == 1
    followed(capsys.readouterr().err, query.folder)
    lose(raw, store, 0, versions=BATCHES)
    raw.unlink(keys.query("none"))
    assert rewind(query, 2) == 1
    told = commands_in(capsys.readouterr().err)
    assert [command[0] for command in told] == ["doctor"]
    # It has something to say, which is not an error.
    assert main(told[0]) == 4
    assert "No batch can be served by all partitions" in capsys.readouterr().out


def test_advised_purge_removes_a_partition_that_blocks_an_import(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    store = query.add(Processors)
    query.start(BATCHES)
    folder = export(query, store)
    # Batch 3 was run again since then: another timeline.
    assert rewind(query, 1) == 0
    query.start(BATCHES)
    capsys.readouterr()
    command = ["import", str(folder), "--checkpoint", str(query.folder), "--yes", "--force"]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert [one[0] for one in followed(said, query.folder)] == ["doctor", "purge"]
    assert main(command) == 0
    query.start(ENDS)
    query.check(ENDS)


def test_advised_purge_frees_a_store_name_for_an_import(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    store = query.add(Processors)
    query.start(BATCHES)
    folder = export(query, store)
    assert main(["purge", "--gen", store.gen, "--now", "--yes", "--force"]) == 0
    assert checkpoint_gen(query.client, store.name, create=True) is not None
    store.start()
    capsys.readouterr()
    command = ["import", str(folder), "--checkpoint", str(query.folder), "--yes", "--force"]
    assert main(command) == 1
    # A store that never began a batch is not listed; its name counts.
    (found,) = commands_in(capsys.readouterr().err)
    assert main([*found, "--yes", "--force"]) == 0
    assert main(command) == 0
    query.start(ENDS)
    query.check(ENDS)


def test_partitions_kept_by_an_import_are_verified(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    store = query.add(Batches)
    query.start(EXPORTED + 2)
    folder = export(query, store)
    capsys.readouterr()
    assert main(["import", str(folder), "--yes", "--force"]) == 0
    followed(capsys.readouterr().out, query.folder)
    query.start(ENDS)
    query.check(ENDS)


def test_export_of_an_abandoned_timeline_advises_restore(
    redis_server: RedisServer,
    raw: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planted = _planted(raw)
    checkpoint = plant_checkpoint(tmp_path, batches=BATCHES)
    plant_copy(planted, checkpoint, EXPORTED + 1)
    folder = tmp_path / "export"
    place = ["--to", str(folder), "--url", redis_server.url]
    assert main(["export", "flights", *place, "--at", str(EXPORTED)]) == 0
    later = '{"batchTimestampMs": 99999999999999}'
    (checkpoint / "offsets" / str(EXPORTED)).write_text(f"v1\n{later}\n")
    capsys.readouterr()
    command = ["import", str(folder), "--checkpoint", str(checkpoint), "--yes", "--force"]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "a timeline that a rewind of the query abandoned" in said
    (printed,) = commands_in(said)
    assert printed[:2] == ["restore", "--checkpoint"]
    # The copy is of the same timeline here, and the command says that.
    assert main([*printed, "--force"]) == 1
    assert "in Spark's logs" in capsys.readouterr().err


def test_advised_purge_removes_old_partitions_of_a_rescale(
    query: Query, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever prints `purge --gen` means a checkpoint that nobody needs, and only that one."""
    one, other = query.add(Processors), query.add(Batches)
    query.start(BATCHES)
    gone = one.gen
    followed(f"redis-state purge --gen {gone}", query.folder)
    assert followed(f"redis-state purge --gen {gone} --recall", query.folder)
    assert main(["purge", "--gen", gone, "--now", "--yes", "--force"]) == 0
    assert not [key for key in raw.keys("*") if gone.encode() in key]
    query.stores.remove(one)
    query.start(ENDS)
    query.check(ENDS)
    assert other.gen != gone
    capsys.readouterr()


def test_advised_read_only_commands_run(
    redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
) -> None:
    planted = _planted(raw)
    checkpoint = plant_checkpoint(tmp_path, batches=BATCHES)
    before = raw.dbsize()
    for words in (
        ["queries"],
        ["size", planted.name],
        ["maintain", "--once"],
        ["doctor", "--checkpoint", str(checkpoint)],
        ["doctor", "--gen", GEN],
    ):
        assert main([*words, "--url", redis_server.url]) == 0
    assert raw.dbsize() >= before


def test_an_error_of_a_command_names_the_server_that_it_was_given(
    query: Query, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(URL_VARIABLE)
    store = query.add(Processors)
    query.start(BATCHES)
    expire(query.client, store.gen)
    capsys.readouterr()
    assert rewind(query, 2) == 1
    said = capsys.readouterr().err
    assert f"redis-state purge --gen {store.gen} --recall --url {query.server.url}`" in said
    followed(said, query.folder, only="--recall")
    assert rewind(query, 2) == 0
    query.start(ENDS)
    query.check(ENDS)
    with pytest.raises(RedisStateError):
        recall(query.client, store.gen)


def _planted(raw: redis.Redis) -> Planted:
    planted = Planted(raw)
    planted.register()
    for version in range(1, BATCHES + 1):
        planted.commit(version, [({"carrier": "UA"}, {"count": version, "total": 0.5})])
    return planted
