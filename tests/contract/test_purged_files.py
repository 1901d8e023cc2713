"""`redis-state purge --files`: the files of purged checkpoints are noted, and deleted later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.files import Folder, folder_at
from redis_state.forks import fork
from redis_state.ids import PartitionId
from redis_state.maintain.history import move_history
from redis_state.maintain.purged_files import PurgedFiles
from redis_state.places import Places
from redis_state.places.moving import move_out
from redis_state.places.settings import set_places
from redis_state.protocol.partition import PartitionClient
from redis_state.recovery.deleting import PurgedGuard
from redis_state.recovery.marker import NAME
from tests.contract.planting import GEN, Planted, plant_checkpoint
from tests.contract.query_scene import commands_in
from tests.contract.test_history_in_files import Orders, rows
from tests.support.redis_server import RedisServer

HOUR_MS = 3_600_000


@pytest.fixture
def orders(redis_server: RedisServer, tmp_path: Path) -> Iterator[Orders]:
    found = Orders(redis_server.url, tmp_path / "segments")
    found.commit_history()
    assert move_history(found.client, found.id).segments == 5
    found.drop_keys()
    found.provider.close()
    yield found
    found.close()


def purge(url: str, gen: str, *words: str) -> int:
    return main(["purge", "--gen", gen, "--url", url, "--yes", "--force", *words])


def noted(raw: Any) -> list[str]:
    return sorted(gen.decode() for gen in raw.hgetall(keys.purged_files()))


def expire_now(raw: Any, gen: str, hours: int = 48) -> None:
    """A day and the grace are over."""
    for name in raw.scan_iter(f"{{rs:{gen}*"):
        raw.delete(name)
    note = json.loads(raw.hget(keys.purged_files(), gen))
    note["due"] -= hours * HOUR_MS
    raw.hset(keys.purged_files(), gen, json.dumps(note))


def test_files_of_a_purged_store_are_deleted_a_grace_later(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    gen = orders.gen
    assert purge(orders.url, gen) == 0
    said = capsys.readouterr().out
    assert "its 1 files" in said
    assert f"stay in file:{orders.folder}/{gen}" in said
    command = next(words for words in commands_in(said) if "--files" in words)
    again = [*command, "--url", orders.url, "--exclusive", "--yes"]
    assert main(again) == 1
    assert "younger than a day" in capsys.readouterr().err
    assert main(["purge", "--files", "--url", orders.url]) == 0
    assert f"{gen}: 1 files" in capsys.readouterr().out
    expire_now(orders.raw, gen, hours=47)
    assert main(again) == 1
    expire_now(orders.raw, gen, hours=1)
    assert main([one for one in again if one != "--exclusive"]) == 1
    assert "give --exclusive" in capsys.readouterr().err
    assert main([*again, "--dry-run"]) == 0
    assert len(list((orders.folder / gen).rglob("*.seg"))) == 1
    assert main(again) == 0
    assert not (orders.folder / gen).exists()
    assert noted(orders.raw) == []
    assert main(again) == 1
    assert "no purge of checkpoint" in capsys.readouterr().err


def test_purge_names_a_checkpoint(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", "--url", orders.url]) == 1
    assert "no checkpoint is named" in capsys.readouterr().err


def test_recall_forgets_the_note(orders: Orders) -> None:
    gen = orders.gen
    assert purge(orders.url, gen) == 0
    assert noted(orders.raw) == [gen]
    assert purge(orders.url, gen, "--recall") == 0
    assert noted(orders.raw) == []
    assert purge(orders.url, gen, "--files", "--exclusive") == 1
    assert orders.rows_at(2) == rows(2)


def test_checkpoint_that_is_there_keeps_its_files(orders: Orders) -> None:
    gen = orders.gen
    assert purge(orders.url, gen) == 0
    # The note of a Redis whose keys were brought back by other means than a recall.
    note = json.loads(orders.raw.hget(keys.purged_files(), gen)) | {"due": 0}
    orders.raw.hset(keys.purged_files(), gen, json.dumps(note))
    assert purge(orders.url, gen, "--files", "--exclusive") == 1
    assert len(orders.files()) == 1


def test_strangers_in_the_folder_stay(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    gen = orders.gen
    (file,) = orders.files()
    file.with_name("notes.txt").write_text("not ours")
    assert purge(orders.url, gen, "--now") == 0
    expire_now(orders.raw, gen, hours=24)
    assert purge(orders.url, gen, "--files", "--exclusive") == 0
    assert "notes.txt is not a file of ours" in capsys.readouterr().err
    assert [one.name for one in (orders.folder / gen).rglob("*") if one.is_file()] == ["notes.txt"]


def test_files_that_a_fork_reads_stay(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    gen = orders.gen
    fork(orders.url, "orders", to="copy", at_batch=None)
    assert purge(orders.url, gen, "--now") == 0
    expire_now(orders.raw, gen, hours=24)
    assert purge(orders.url, gen, "--files", "--exclusive") == 1
    assert "reads its files" in capsys.readouterr().err
    assert len(list((orders.folder / gen).rglob("*.seg"))) == 1


def test_full_server_notes_what_it_has_room_for(orders: Orders) -> None:
    gen = orders.gen
    orders.raw.config_set("maxmemory", "1")
    assert purge(orders.url, gen, "--now") == 0
    assert noted(orders.raw) == []
    orders.raw.config_set("maxmemory", "0")


def test_file_written_during_the_deletion_stays(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    gen = orders.gen
    (file,) = orders.files()
    assert purge(orders.url, gen, "--now") == 0
    expire_now(orders.raw, gen, hours=24)
    late = file.with_name(file.name.replace("1-", "7-", 1))

    def remove_file(folder: Folder, name: str) -> None:
        removed(folder, name)
        late.write_bytes(b"of a checkpoint that was restored meanwhile")

    removed = Folder.remove_file
    monkeypatch.setattr(Folder, "remove_file", remove_file)
    assert purge(orders.url, gen, "--files", "--exclusive") == 0
    assert list((orders.folder / gen).rglob("*.seg")) == [late]


def test_two_deletions_at_once_both_end(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    gen = orders.gen
    assert purge(orders.url, gen, "--now") == 0
    expire_now(orders.raw, gen, hours=24)
    ends: list[int] = []

    def remove_file(folder: Folder, name: str) -> None:
        if not ends:
            ends.append(-1)
            ends.append(purge(orders.url, gen, "--files", "--exclusive"))
        removed(folder, name)

    removed = Folder.remove_file
    monkeypatch.setattr(Folder, "remove_file", remove_file)
    assert purge(orders.url, gen, "--files", "--exclusive") == 0
    assert ends == [-1, 0]
    assert not (orders.folder / gen).exists()
    assert noted(orders.raw) == []


def test_key_of_another_type_stops_a_purge_before_it_begins(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    gen = orders.gen
    orders.raw.set(keys.purged_files(), "not ours")
    for words in ((), ("--now",)):
        assert purge(orders.url, gen, *words) == 1
        assert "another type" in capsys.readouterr().err
    assert orders.rows_at(2) == rows(2)


def plant_files(server: RedisServer, parent: Path, *, partitions: int) -> Path:
    """Plants a query of five batches, of which three are in files, and returns its checkpoint."""
    planted = Planted(server.client(), partitions=partitions)
    planted.register()
    for version in range(1, 6):
        value = {"count": version, "total": 0.5}
        planted.commit(version, [({"carrier": carrier}, value) for carrier in "abcdefgh"])
    folder = plant_checkpoint(parent, batches=5)
    places = Places(f"file:{folder}/state/_redis_state_segments")
    with closing(Client(config.parse({"url": server.url}))) as client:
        set_places(client, GEN, places)
        for number in range(partitions):
            id_: PartitionId = planted.id(number)
            partition = PartitionClient(client, id_, versions_to_retain=100)
            segments = [one for one in partition.open("", None).segments if one.version < 4]
            assert move_out(client, id_, segments, places.folder_of(GEN)).segments == 3
    return folder


def plant_purged(server: RedisServer, parent: Path) -> Path:
    """Plants such a query that was purged a day ago, and returns its checkpoint."""
    folder = plant_files(server, parent, partitions=1)
    assert purge(server.url, GEN, "--now") == 0
    expire_now(server.client(), GEN, hours=24)
    return folder


@pytest.mark.parametrize("log", ["same", "grown", "gone"])
def test_files_of_a_query_need_its_log(redis_server: RedisServer, tmp_path: Path, log: str) -> None:
    folder = plant_purged(redis_server, tmp_path)
    if log == "grown":
        (folder / "offsets" / "6").write_text("v1\n6")
        (folder / "commits" / "6").write_text("v1\n6")
    elif log == "gone":
        for one in (folder / "commits").iterdir():
            one.unlink()
    status = purge(redis_server.url, GEN, "--files")
    gone = not list(folder.rglob("*.seg"))
    assert (status, gone) == ((0, True) if log == "same" else (1, False))


def announce(folder: Path, *, gen: str, batch: int) -> dict[str, Any]:
    """Announces another number of partitions; returns what the marker file says once it is so."""
    state = folder / "state"
    decided: dict[str, Any] = json.loads((state / NAME).read_text()) | {"gen": gen}
    announced = decided | {"format": 2, "batch": batch, "partitions": 3}
    (state / f"{NAME}.1").write_text(json.dumps(announced))
    return decided


def test_files_of_former_partitions_are_deleted_once_that_is_confirmed(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = plant_purged(redis_server, tmp_path)
    decided = announce(folder, gen="0" * 32, batch=6)
    (folder / "state" / f"{NAME}.2").write_text(json.dumps(decided))
    (folder / "commits" / "6").write_text("v1\n6")
    assert purge(redis_server.url, GEN, "--files") == 1
    assert "goes on under another id" in capsys.readouterr().err
    assert list(folder.rglob("*.seg"))
    assert purge(redis_server.url, GEN, "--files", "--exclusive") == 0
    assert not list(folder.rglob("*.seg"))


@pytest.mark.parametrize(("batch", "was_left"), [(6, True), (7, False)])
def test_change_of_partitions_leaves_no_files_before_it_is_given_up(
    redis_server: RedisServer, tmp_path: Path, batch: int, was_left: bool
) -> None:
    folder = plant_files(redis_server, tmp_path, partitions=1)
    to = "0" * 32
    announce(folder, gen=to, batch=batch)
    # Another run has planned the batch.
    (folder / "offsets" / "6").write_text('v1\n{"conf": {}}\n{"0": 1}')
    guard = PurgedGuard(folder_at(str(folder)))
    assert guard.was_left(PurgedFiles(to, f"file:{folder}/state/_redis_state_segments", 0)) is (
        was_left
    )


def test_note_goes_with_a_deleted_checkpoint_once_that_is_confirmed(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = redis_server.client()
    folder = plant_purged(redis_server, tmp_path)
    shutil.rmtree(folder)
    assert purge(redis_server.url, GEN, "--files") == 1
    assert "if the checkpoint was deleted with its files" in capsys.readouterr().err
    assert raw.hexists(keys.purged_files(), GEN)
    assert purge(redis_server.url, GEN, "--files", "--exclusive") == 1
    assert "Nothing is left to delete" in capsys.readouterr().err
    assert not raw.hexists(keys.purged_files(), GEN)


def test_interrupted_purge_that_is_done_again_notes_what_was_opened(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = redis_server.client()
    folder = plant_files(redis_server, tmp_path, partitions=2)
    with monkeypatch.context() as interrupted:
        interrupted.setattr("redis_state.maintain.purge.PARTITIONS_AT_ONCE", 1)
        interrupted.setattr("redis_state.cli.operate.purge.ProgressLine", Interrupted)
        assert purge(redis_server.url, GEN, "--now") == 130
    assert len(list(raw.scan_iter(f"{{rs:{GEN}*:m"))) == 1
    assert purge(redis_server.url, GEN, "--now") == 0
    expire_now(raw, GEN, hours=24)
    assert purge(redis_server.url, GEN, "--files") == 0
    assert not list(folder.rglob("*.seg"))


class Interrupted:
    """Line of progress whose first step is interrupted."""

    def __call__(self, _what: str, _done: int, _of: int | None = None) -> None:
        raise KeyboardInterrupt

    def end(self) -> None:
        pass
