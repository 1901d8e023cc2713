"""`redis-state places`, and forks and kept versions of what lies in files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.forks import fork
from redis_state.forks.keep import drop_kept, keep
from redis_state.format.entry import segments_in
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain import recall as recalling
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.files import sweep_files
from redis_state.maintain.history import move_history
from redis_state.maintain.purge import purge
from redis_state.maintain.recall import expire, recall
from redis_state.maintain.report import Policy
from redis_state.places import Places
from redis_state.places.moving import announce, rows_of
from redis_state.places.settings import set_places
from redis_state.protocol.partition import PartitionClient
from redis_state.recovery.deleting import LogGuard
from redis_state.recovery.doctor import diagnose
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted, plant_checkpoint
from tests.contract.test_history_in_files import Orders, rows
from tests.support.redis_server import RedisServer

DAY_MS = 86_400_000


@pytest.fixture
def orders(redis_server: RedisServer, tmp_path: Path) -> Iterator[Orders]:
    found = Orders(redis_server.url, tmp_path / "segments", places_delete=True)
    found.commit_history(after=2)
    assert move_history(found.client, found.id).segments == 5
    found.drop_keys()
    yield found
    found.close()


def age(orders: Orders, hours: int = 25) -> None:
    """Makes all files of the store so much older."""
    name = keys.files(orders.id)
    for file, row in orders.raw.hgetall(name).items():
        state, at, *rest = row.decode().split(" ")
        orders.raw.hset(name, file, " ".join([state, str(int(at) - hours * 3_600_000), *rest]))


def run(orders: Orders, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    status = main(["places", "orders", "--url", orders.url, "--json", *words])
    out, err = capsys.readouterr()
    return status, json.loads(out.splitlines()[0]) if out else None, err


def test_command_shows_where_the_bytes_are(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    status, row, _ = run(orders, capsys)
    assert status == 0
    assert row["file_segments"] == 5
    assert row["file_bytes"] > 0
    assert row["redis_segments"] == 4
    assert row["oldest_in_files"] == 1
    assert (row["files_used"], row["files_condemned"]) == (1, 0)


def test_verify_finds_a_file_that_is_gone(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(orders, capsys, "--verify", "--deep")[0] == 0
    (file,) = orders.files()
    whole = file.read_bytes()
    file.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:])
    assert run(orders, capsys, "--verify")[0] == 0
    status, _, err = run(orders, capsys, "--verify", "--deep")
    assert status == 4
    assert "problem: " in err
    file.unlink()
    fresh = Orders(orders.url, orders.folder)
    fresh.close()
    status, _, err = run(orders, capsys, "--verify")
    assert status == 4
    assert file.name in err


def test_verify_and_doctor_go_on_past_a_lost_file_in_a_remote_file_system(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    files = MemoryFileSystem()
    found = Orders(redis_server.url, Path("unused"), places_folder="memory://segments")
    try:
        for _ in range(2):
            found.commit_history(after=2)
            move_history(found.client, found.id)
        found.drop_keys()
        count = len(found.placed())
        lost = min(path for path in files.find("/segments") if path.endswith(".seg"))
        files.rm_file(lost)
        status, _, err = run(found, capsys, "--verify")
        assert status == 4
        assert 0 < err.count("is gone or truncated") < count
        (health,) = diagnose(found.client, found.gen).partitions
        assert 0 < len(health.broken) < count
    finally:
        found.close()
        files.rm("/segments", recursive=True)


def test_bring_back_fills_redis_and_ends_the_moving(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(orders, capsys, "--bring-back")[0] == 0
    assert orders.placed() == []
    shutil.rmtree(orders.folder)
    assert [orders.rows_at(at) for at in (1, 4, 8)] == [rows(1), rows(4), rows(8)]
    assert move_history(orders.client, orders.id).segments == 0
    assert orders.manifest()[b"f"] == b"1"


def drop_history(orders: Orders) -> None:
    """Retention drops all that was moved."""
    orders.raw.hset(keys.meta(orders.id), "n", "1")
    PartitionClient(orders.client, orders.id, versions_to_retain=1).retain()


def test_sweep_deletes_only_what_was_condemned_for_the_grace(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = orders.files()
    assert run(orders, capsys, "--sweep")[0] == 0
    drop_history(orders)
    assert [row.state for row in rows_of(orders.client, orders.id)] == ["d"]
    run(orders, capsys, "--sweep")
    assert file.exists()
    age(orders)
    run(orders, capsys, "--sweep")
    assert not file.exists()
    assert rows_of(orders.client, orders.id) == []
    assert orders.rows_at(8) == rows(8)


def state_of(orders: Orders) -> list[str]:
    return [row.state for row in rows_of(orders.client, orders.id)]


def test_file_of_a_lost_list_is_used_again(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    (before,) = rows_of(orders.client, orders.id)
    orders.raw.delete(keys.files(orders.id))
    run(orders, capsys, "--sweep")
    (row,) = rows_of(orders.client, orders.id)
    assert (row.state, row.segments, row.bytes) == ("u", 5, before.bytes)
    age(orders)
    run(orders, capsys, "--sweep")
    assert len(orders.files()) == 1
    assert orders.rows_at(2) == rows(2)


def test_announced_row_of_a_file_with_segments_is_not_condemned(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    (before,) = rows_of(orders.client, orders.id)
    orders.raw.hset(keys.files(orders.id), before.file, "n 1 0 0")
    run(orders, capsys, "--sweep")
    assert state_of(orders) == ["u"]


def test_condemned_file_that_the_manifest_names_is_not_deleted(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    (before,) = rows_of(orders.client, orders.id)
    orders.raw.hset(keys.files(orders.id), before.file, f"d 1 0 {before.bytes}")
    status, _, err = run(orders, capsys, "--sweep")
    assert status == 4
    assert "the manifest names it" in err
    assert len(orders.files()) == 1


def test_purge_leaves_the_list_of_files_of_a_recalled_partition_alone(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.provider.close()
    scan: Any = vars(recalling)["scan_checkpoint"]

    def recalled_meanwhile(*_: Any) -> Iterator[list[str]]:
        # Another operator recalls before the purge looks for strays.
        monkeypatch.setattr(recalling, "scan_checkpoint", scan)
        recall(orders.client, orders.gen)
        yield [keys.meta(orders.id), keys.files(orders.id)]

    monkeypatch.setattr(recalling, "scan_checkpoint", recalled_meanwhile)
    expire(orders.client, orders.gen)
    assert orders.raw.pttl(keys.meta(orders.id)) == -1
    assert orders.raw.pttl(keys.files(orders.id)) == -1


def test_sweep_of_a_rescaled_store_asks_for_no_log(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = keys.checkpoints()
    entry = json.loads(orders.raw.hget(listed, orders.gen))
    # The new checkpoint of a rescaled store keeps the id of the first one.
    orders.raw.hset(listed, orders.gen, json.dumps({**entry, "id": "f" * 32}))
    drop_history(orders)
    age(orders)
    assert run(orders, capsys, "--sweep")[0] == 0
    assert orders.files() == []


def test_without_the_option_a_file_is_only_reported(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    places = Places(f"file:{orders.folder}", deletes=False)
    set_places(orders.client, orders.gen, places)
    drop_history(orders)
    age(orders)
    main(["places", "orders", "--url", orders.url, "--sweep", "--format", "table"])
    assert "1 would be deleted" in capsys.readouterr().out
    assert len(orders.files()) == 1
    assert len(rows_of(orders.client, orders.id)) == 1


def test_file_without_a_place_is_condemned_but_not_deleted_without_a_log(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    (used,) = orders.files()
    stray = used.with_name(used.name[:4] + "0" * 32 + ".seg")
    stray.write_bytes(b"rs-seg01")
    other = used.with_name("notes.txt")
    other.write_text("not ours")
    announced = announce(orders.client, orders.id, [])
    run(orders, capsys, "--sweep")
    states = {row.file.split("/")[1]: row.state for row in rows_of(orders.client, orders.id)}
    assert announced is not None
    assert states == {used.name: "u", stray.name: "d", announced.split("/")[1]: "n"}
    age(orders)
    run(orders, capsys, "--sweep")
    states = {row.file.split("/")[1]: row.state for row in rows_of(orders.client, orders.id)}
    assert states[announced.split("/")[1]] == "d"
    # It may be a file of the Redis that this one is a copy of.
    assert stray.exists()
    assert other.exists()


def test_announced_file_that_never_came_to_be_is_forgotten(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(orders.client, orders.id, [])
    for _ in range(2):
        age(orders)
        run(orders, capsys, "--sweep")
    assert state_of(orders) == ["u"]


def test_fork_and_kept_version_read_files_of_their_parent(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(orders.url, "orders", name="before", at_batch=None)
    fork(orders.url, "orders", to="copy")
    orders.commit_history()
    drop_history(orders)
    assert move_history(orders.client, orders.id).segments > 0
    orders.drop_keys()
    for key in orders.raw.scan_iter("*:[ds]:*"):
        if 0 < orders.raw.pttl(key) < DAY_MS:
            orders.raw.delete(key)
    provider = StateStoreProvider(
        StateStoreProviderId(StateStoreId("copy", 0, 0)), config=config.parse({"url": orders.url})
    )
    assert dict(provider.get_read_store(8).iterator()) == rows(8)
    store = provider.get_store(8)
    store.put("mine", 1)
    assert store.commit() == 9
    provider.close()
    gen = orders.raw.hget(keys.names(), keys.name_field("copy")).decode()
    (health,) = diagnose(orders.client, gen).partitions
    assert health.broken == ()
    assert 8 in health.loadable
    report = maintain_checkpoint(orders.client, gen, policy=Policy("w", deep=True))
    assert report.problems == []
    main(["get", "orders", "--url", orders.url, "--at", "before", "key=k3"])
    assert "3" in capsys.readouterr().out


def test_options_of_the_file_system_are_used_for_the_parent_of_a_fork(
    orders: Orders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fork(orders.url, "orders", to="copy")
    orders.commit_history()
    assert move_history(orders.client, orders.id).segments > 0
    orders.drop_keys()
    set_places(orders.client, orders.gen, Places("s3a://bucket/segments"))
    options = tmp_path / "options.json"
    options.write_text('{"s3a://": "no object"}')
    words = ["doctor", "copy", "--url", orders.url, "--storage-options", str(options)]
    assert main(words) == 1
    assert "those of s3a:// are not a JSON object" in capsys.readouterr().err


def test_fork_asks_for_the_place_at_each_read(orders: Orders) -> None:
    fork(orders.url, "orders", to="copy")

    def read() -> object:
        provider = StateStoreProvider(
            StateStoreProviderId(StateStoreId("copy", 0, 0)),
            config=config.parse({"url": orders.url}),
            client=client,
        )
        try:
            return dict(provider.get_read_store(8).iterator())
        finally:
            provider.close()

    orders.commit_history()
    client = Client(config.parse({"url": orders.url}))
    for _ in range(2):
        assert move_history(orders.client, orders.id).segments > 0
        orders.drop_keys()
        assert read() == rows(8)
        orders.bring_back()
        for file in orders.files():
            file.unlink()
        assert read() == rows(8)
    client.close()


def test_kept_version_holds_its_file_until_it_is_dropped(orders: Orders) -> None:
    provider = orders.provider
    orders.commit(2)
    keep(orders.url, "orders", name="before", at_batch=None)
    orders.commit_history()
    drop_history(orders)
    assert move_history(orders.client, orders.id).segments > 0
    aside = [one for one in segments_in(orders.manifest()) if one.version <= 9]
    assert len(aside) == 5
    assert all(one.place is not None for one in aside)
    drop_kept(orders.url, "orders", "before")
    PartitionClient(orders.client, orders.id, versions_to_retain=1).retain()
    states = {row.state for row in rows_of(orders.client, orders.id)}
    assert states == {"d"}
    assert provider.latest() == 17


def test_purged_store_comes_back_with_its_files(orders: Orders) -> None:
    orders.provider.close()
    files = keys.files(orders.id)
    expire(orders.client, orders.gen)
    assert 0 < orders.raw.pttl(keys.files(orders.id)) <= DAY_MS
    recall(orders.client, orders.gen)
    assert orders.rows_at(2) == rows(2)
    purge(orders.client, orders.gen)
    assert not orders.raw.exists(files)


def test_doctor_reports_versions_whose_file_is_gone(orders: Orders) -> None:
    (health,) = diagnose(orders.client, orders.gen).partitions
    assert health.loadable == frozenset(range(9))
    orders.files()[0].unlink()
    (health,) = diagnose(orders.client, orders.gen).partitions
    assert len(health.broken) == 5
    assert health.loadable == frozenset({0, 5, 6, 7, 8})


def test_size_and_status_count_files_apart(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["size", "orders", "--url", orders.url, "--format", "table"]) == 0
    assert "more are in files" in " ".join(capsys.readouterr().out.split())


class TestLog:
    """Deletion of a Spark query's files."""

    @pytest.fixture
    def query(self, redis_server: RedisServer, tmp_path: Path) -> Iterator[tuple[Any, Path, Path]]:
        raw = redis_server.client()
        planted = Planted(raw, partitions=1)
        planted.register()
        for version in range(1, 6):
            planted.commit(version, [({"carrier": "a"}, {"count": version, "total": 0.5})])
        folder = plant_checkpoint(tmp_path, batches=5)
        client = Client(config.parse({"url": redis_server.url}))
        id_ = planted.id(0)
        places = Places(f"file:{folder}/state/_redis_state_segments", deletes=True)
        set_places(client, GEN, places)
        own = folder / "state/_redis_state_segments" / GEN / f"0-0-{keys.store_hash('default')}"
        own.mkdir(parents=True)
        stray = own / f"1-3-{'0' * 32}.seg"
        stray.write_bytes(b"rs-seg01")
        yield (client, id_, places), folder, stray
        client.close()

    def sweep(self, query: Any, folder: Path) -> Any:
        from redis_state.files import folder_at

        client, id_, places = query
        guard = LogGuard(client, folder_at(str(folder)))
        return sweep_files(client, id_, places, guard=guard, delete=True, unknown_too=True)

    def condemned(self, query: Any, folder: Path, raw: Any) -> None:
        assert self.sweep(query, folder).condemned == 1
        _, id_, _ = query
        ((file, row),) = raw.hgetall(keys.files(id_)).items()
        words = row.decode().split(" ")
        words[1] = str(int(words[1]) - 25 * 3_600_000)
        raw.hset(keys.files(id_), file, " ".join(words))

    def test_stray_file_goes_a_grace_after_it_was_condemned(
        self, query: Any, redis_server: RedisServer
    ) -> None:
        at, folder, stray = query
        self.condemned(at, folder, redis_server.client())
        assert stray.exists()
        assert self.sweep(at, folder).deleted == 1
        assert not stray.exists()

    def test_folder_outside_the_checkpoint_needs_a_confirmation(
        self,
        query: Any,
        redis_server: RedisServer,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        at, folder, stray = query
        self.condemned(at, folder, redis_server.client())
        # Hadoop gives the address of a folder that a copy of the checkpoint would name, too.
        shared = tmp_path / "shared"
        (folder / "state/_redis_state_segments").rename(shared)
        stray = shared / stray.relative_to(folder / "state/_redis_state_segments")
        set_places(at[0], GEN, Places(f"file:{shared}", deletes=True))
        words = ["places", GEN, "--url", redis_server.url, "--sweep", "--checkpoint", str(folder)]
        assert main(words) == 4
        assert "which is not below" in capsys.readouterr().err
        assert stray.exists()
        main([*words, "--exclusive"])
        assert not stray.exists()

    def test_folder_in_the_checkpoint_needs_no_confirmation(
        self, query: Any, redis_server: RedisServer
    ) -> None:
        at, folder, stray = query
        self.condemned(at, folder, redis_server.client())
        for place in ([], ["--checkpoint", str(folder)]):
            assert main(["places", GEN, "--url", redis_server.url, "--sweep", *place]) == 0
        assert not stray.exists()

    @pytest.mark.parametrize("reason", ["behind", "marker", "log", "folder"])
    def test_redis_that_is_behind_the_log_deletes_nothing(
        self, query: Any, redis_server: RedisServer, reason: str
    ) -> None:
        at, folder, stray = query
        raw = redis_server.client()
        self.condemned(at, folder, raw)
        if reason == "behind":
            for log in ("offsets", "commits"):
                (folder / log / "6").write_text("v1\n6")
        elif reason == "marker":
            marker = folder / "state" / "_redis_state"
            marker.write_text(marker.read_text().replace(GEN, "f" * 32))
        elif reason == "log":
            shutil.rmtree(folder / "commits")
        else:
            shutil.rmtree(folder / "offsets")
            shutil.rmtree(folder / "commits")
        found = self.sweep(at, folder)
        assert found.deleted == 0
        assert len(found.kept) == 1
        assert stray.exists()
