"""History in files: what is older than the newest base leaves Redis, and stays readable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.errors import ConfigError, FormatError, Kind, StateError, UnavailableError
from redis_state.files import Folder
from redis_state.format.entry import segments_in
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId
from redis_state.maintain import history
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.history import history_of, move_history, move_when_due
from redis_state.maintain.report import Policy
from redis_state.places import Places, places_of
from redis_state.places.moving import bring_back, rows_of
from redis_state.places.settings import set_places
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.segments import fetch_each
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer, bytes_of

ID = StateStoreId("orders", 0, 0)


class Orders:
    """A Python store whose history goes into files; each version changes a key and adds one."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.url, self.folder = url, folder
        self.options = {"history": "files", "places_folder": str(folder), **options}
        self.clock = ManualClock()
        self.client = Client(config.parse({"url": url}), clock=self.clock)
        self.raw: Any = redis.Redis.from_url(url)
        self.provider = self.new_provider()
        self.at = 0

    def new_provider(self) -> StateStoreProvider:
        self.runs = getattr(self, "runs", 0) + 1
        return StateStoreProvider(
            StateStoreProviderId(ID, f"run-{self.runs}"),
            config=config.parse({"url": self.url, **self.options}),
            clock=self.clock,
        )

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            store = self.provider.get_store(self.at)
            store.put("newest", self.at)
            store.put(f"k{self.at}", self.at)
            self.at = store.commit()

    def commit_history(self, *, after: int = 1) -> None:
        """Commits six versions, a snapshot, which makes five of them history, and more."""
        self.commit(6)
        self.snapshot()
        self.commit(after)

    def bring_back(self) -> None:
        """Brings all segments back that are in files."""
        for segment in list(segments_in(self.manifest())):
            if segment.place is not None:
                assert bring_back(self.client, self.id, segment)

    @property
    def gen(self) -> str:
        return bytes_of(self.raw.hget(keys.names(), keys.name_field(ID.checkpoint))).decode()

    @property
    def id(self) -> PartitionId:
        return ID.partition(self.gen)

    def snapshot(self) -> None:
        partition = PartitionClient(self.client, self.id, versions_to_retain=100)
        add_snapshot(partition, partition.open("", None))

    def rows_at(self, version: int) -> dict[object, object]:
        """Rows as a process reads them that has nothing in memory."""
        provider = self.new_provider()
        try:
            return dict(provider.get_read_store(version).iterator())
        finally:
            provider.close()

    def manifest(self) -> dict[bytes, bytes]:
        return dict(self.raw.hgetall(keys.meta(self.id)))

    def placed(self) -> list[str]:
        return sorted(one.ident for one in segments_in(self.manifest()) if one.place is not None)

    def drop_keys(self) -> None:
        """Drops the keys of what was moved, as a minute does."""
        for ident in self.placed():
            assert self.raw.pttl(keys.segment(self.id, ident)) <= 60_000
            self.raw.delete(keys.segment(self.id, ident))

    def files(self) -> list[Path]:
        return sorted((self.folder / self.gen).rglob("*.seg"))

    def close(self) -> None:
        self.provider.close()
        self.client.close()


def rows(version: int) -> dict[object, object]:
    found: dict[object, object] = {f"k{at}": at for at in range(version)}
    return {**found, "newest": version - 1} if version else found


@pytest.fixture
def orders(redis_server: RedisServer, tmp_path: Path) -> Iterator[Orders]:
    found = Orders(redis_server.url, tmp_path)
    yield found
    found.close()


def test_history_leaves_redis_and_every_version_reads_the_same(orders: Orders) -> None:
    orders.commit_history(after=3)
    moved = move_history(orders.client, orders.id)
    # Version 5 was the opened one: the snapshot is its, and the delta beside it moves, too.
    assert moved.segments == 5
    assert [ident.split(":")[1] for ident in orders.placed()] == list("12345")
    assert len(orders.files()) == 1
    orders.drop_keys()
    for version in range(1, 10):
        assert orders.rows_at(version) == rows(version)
    assert move_history(orders.client, orders.id).segments == 0


def test_store_moves_its_own_history(orders: Orders) -> None:
    for _ in range(4):
        orders.commit(5)
        orders.provider.do_maintenance()
    assert len(orders.placed()) >= 10
    settings = json.loads(orders.raw.hget(keys.query(orders.gen), "places"))
    assert settings == {
        "folder": f"file:{orders.folder}",
        "grace": 86_400_000,
        "history": "files",
        "delete": False,
    }
    orders.drop_keys()
    assert [orders.rows_at(at) for at in (1, 7, 20)] == [rows(1), rows(7), rows(20)]


def test_history_stays_in_redis_without_the_option(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    orders = Orders(redis_server.url, tmp_path, history="redis")
    orders.commit(8)
    orders.snapshot()
    assert move_history(orders.client, orders.id).segments == 0
    assert not list(tmp_path.iterdir())
    orders.close()


def test_history_moves_no_more_once_the_option_is_gone(orders: Orders) -> None:
    orders.commit_history()
    move_history(orders.client, orders.id)
    orders.options = {}
    orders.provider.close()
    orders.provider = orders.new_provider()
    orders.commit_history()
    orders.drop_keys()
    assert move_history(orders.client, orders.id).segments == 0
    assert orders.rows_at(3) == rows(3)


def test_history_lies_in_a_file_system_of_fsspec(redis_server: RedisServer) -> None:
    orders = Orders(redis_server.url, Path("unused"), places_folder="memory://segments/orders")
    orders.commit_history(after=3)
    assert move_history(orders.client, orders.id).segments == 5
    orders.drop_keys()
    for version in range(1, 10):
        assert orders.rows_at(version) == rows(version)
    partition = PartitionClient(orders.client, orders.id, versions_to_retain=100)
    segment = partition.open("", 4).segments[0]
    (whole,) = partition.fetch_whole([segment])
    assert partition.fetch(segment, ["0/0", "0/7", "h"]) == [whole["0/0"], None, whole.get("h")]
    orders.close()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"places_folder": None}, "placesFolder"),
        ({"places_folder": "segments"}, "it is a relative path"),
        ({"places_folder": "file:segments"}, "it is a relative path"),
        ({"ephemeral": True}, "ephemeral"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    redis_server: RedisServer, tmp_path: Path, options: dict[str, Any], found: str
) -> None:
    orders = Orders(redis_server.url, tmp_path, **options)
    with pytest.raises(ConfigError, match=found):
        orders.commit()
    orders.close()


def test_blocks_that_cannot_be_moved_leave_no_row_and_no_file(orders: Orders) -> None:
    orders.commit_history()
    (segment, *_) = history_of(orders.manifest())
    key = keys.segment(orders.id, segment.ident)
    (name, value), *_ = orders.raw.hgetall(key).items()
    orders.raw.hset(key, name, b"\x00\x01\x02")
    with pytest.raises(FormatError):
        move_history(orders.client, orders.id)
    assert (rows_of(orders.client, orders.id), orders.files()) == ([], [])
    orders.raw.hset(key, name, value)
    orders.raw.hset(key, "0/99", b"one more")
    assert move_history(orders.client, orders.id).segments == 4
    assert len(orders.files()) == 1


@pytest.mark.parametrize(("name", "most"), [("SEGMENTS_MAX", 2), ("FILE_BYTES_MAX", 1)])
def test_pass_writes_one_file(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(history, name, most)
    orders.commit_history()
    assert move_history(orders.client, orders.id).segments == most
    assert len(orders.files()) == 1
    assert move_history(orders.client, orders.id).segments in (0, most)
    orders.drop_keys()
    assert orders.rows_at(1) == rows(1)


def test_failed_move_is_tried_less_and_less_often(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.commit_history()
    clock = orders.client.clock
    assert isinstance(clock, ManualClock)

    def refuse(*_: object) -> None:
        raise UnavailableError("writing", found="no answer")

    monkeypatch.setattr(Folder, "write_pieces", refuse)
    failed = []
    for minute in range(12):
        try:
            move_when_due(orders.client, orders.id)
        except UnavailableError:
            failed.append(minute)
        clock.sleep_s(60)
    assert failed == [0, 1, 3, 7]
    assert len(rows_of(orders.client, orders.id)) == 4
    monkeypatch.undo()
    clock.sleep_s(3600)
    assert move_when_due(orders.client, orders.id).segments > 0


def test_start_with_another_folder_is_refused_until_the_files_are_there(
    orders: Orders, tmp_path: Path
) -> None:
    orders.commit_history()
    # Nothing is in a file: another folder is as good.
    orders.provider.close()
    orders.options["places_folder"] = str(tmp_path / "first")
    orders.provider = orders.new_provider()
    orders.commit()
    assert move_history(orders.client, orders.id).segments > 0
    orders.drop_keys()
    orders.provider.close()
    orders.options["places_folder"] = str(tmp_path / "second")
    orders.provider = orders.new_provider()
    with pytest.raises(ConfigError, match="has none of them"):
        orders.commit()
    places = places_of(orders.client, orders.gen)
    assert places is not None
    assert places.folder == f"file:{tmp_path}/first"
    assert orders.rows_at(2) == rows(2)
    (tmp_path / "first").rename(tmp_path / "second")
    orders.provider.close()
    orders.provider = orders.new_provider()
    orders.commit()
    assert orders.rows_at(2) == rows(2)


def test_reader_under_way_goes_on_when_its_segments_move(orders: Orders) -> None:
    orders.commit_history()
    partition = PartitionClient(orders.client, orders.id, versions_to_retain=100)
    opened = partition.open("", 4)
    assert all(one.place is None for one in opened.segments)
    move_history(orders.client, orders.id)
    orders.drop_keys()
    blocks = list(fetch_each(orders.client, [(orders.id, one) for one in opened.segments]))
    assert [len(one) for one in blocks] == [one.entry.blocks for one in opened.segments]
    assert partition.fetch(opened.segments[0], ["0/0"]) == [blocks[0]["0/0"]]


def test_reader_under_way_goes_on_when_its_segments_come_back(orders: Orders) -> None:
    orders.commit_history()
    move_history(orders.client, orders.id)
    orders.drop_keys()
    partition = PartitionClient(orders.client, orders.id, versions_to_retain=100)
    opened = partition.open("", 4)
    orders.bring_back()
    assert orders.placed() == []
    assert orders.manifest()[b"f"] == b"1"
    for file in orders.files():
        file.unlink()
    assert len(partition.fetch_whole(opened.segments)) == 4
    assert [orders.rows_at(at) for at in (3, 7)] == [rows(3), rows(7)]
    assert [row.state for row in rows_of(orders.client, orders.id)] == ["d"]


def test_file_that_is_gone_is_lost_and_a_folder_that_is_gone_is_unavailable(orders: Orders) -> None:
    orders.commit_history()
    move_history(orders.client, orders.id)
    orders.drop_keys()
    (file,) = orders.files()
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(StateError) as cut:
        orders.rows_at(2)
    assert cut.value.kind is Kind.FILE_LOST
    file.unlink()
    with pytest.raises(StateError) as lost:
        orders.rows_at(2)
    assert lost.value.kind is Kind.FILE_LOST
    assert file.name in str(lost.value)
    assert orders.rows_at(7) == rows(7)
    aside = orders.folder.rename(orders.folder.with_name("aside"))
    with pytest.raises(UnavailableError):
        orders.rows_at(2)
    aside.rename(orders.folder)
    file.write_bytes(whole)
    assert orders.rows_at(2) == rows(2)


def test_file_that_shows_late_is_waited_for(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.commit_history()
    move_history(orders.client, orders.id)
    orders.drop_keys()
    seen: list[int] = []
    real = Folder.read_ranges

    def late(self: Any, name: str, spans: Any) -> Any:
        seen.append(1)
        return None if len(seen) < 4 else real(self, name, spans)

    monkeypatch.setattr(Folder, "read_ranges", late)
    assert orders.rows_at(2) == rows(2)


def test_upload_that_was_cut_places_nothing(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.commit_history()
    real = Folder.write_pieces

    def cut(self: Any, name: str, pieces: Any) -> None:
        real(self, name, [b"".join(pieces)[:-20]])

    monkeypatch.setattr(Folder, "write_pieces", cut)
    with pytest.raises(UnavailableError, match="not as it was written"):
        move_history(orders.client, orders.id)
    assert orders.placed() == []
    assert [row.state for row in rows_of(orders.client, orders.id)] == ["n"]


def test_damaged_segment_stays_in_redis(orders: Orders) -> None:
    orders.commit_history()
    second = next(one for one in history_of(orders.manifest()) if one.version == 2)
    key = keys.segment(orders.id, second.ident)
    value = bytearray(orders.raw.hget(key, "0/0"))
    value[7] ^= 1
    orders.raw.hset(key, "0/0", bytes(value))
    assert move_history(orders.client, orders.id).segments == 4
    assert [ident.split(":")[1] for ident in orders.placed()] == ["1", "3", "4", "5"]
    assert orders.raw.pttl(key) == -1


def test_worker_without_the_folder_moves_nothing_and_creates_nothing(
    orders: Orders, tmp_path: Path
) -> None:
    orders.commit_history()
    writer = orders.folder / orders.gen / "_writer"
    assert writer.read_text() == orders.gen
    elsewhere = orders.folder.rename(tmp_path.with_name(f"{tmp_path.name}-elsewhere"))
    report = maintain_checkpoint(orders.client, orders.gen, policy=Policy("w"))
    (problem,) = report.problems
    assert "is not the folder of this store on this machine" in problem
    assert not orders.folder.exists()
    assert (orders.placed(), rows_of(orders.client, orders.id)) == ([], [])
    # Another store's folder is no better than none.
    writer.parent.mkdir(parents=True)
    writer.write_text("f" * 32)
    assert maintain_checkpoint(orders.client, orders.gen, policy=Policy("w")).problems
    shutil.rmtree(orders.folder)
    elsewhere.rename(orders.folder)
    report = maintain_checkpoint(orders.client, orders.gen, policy=Policy("w"))
    assert (report.problems, report.moved) == ([], 5)


def test_folder_that_did_not_answer_at_first_is_marked_by_the_stores_maintenance(
    orders: Orders, tmp_path: Path
) -> None:
    tmp_path.rmdir()
    tmp_path.write_text("in the way of the folder")
    orders.commit_history()
    orders.provider.do_maintenance()
    assert orders.placed() == []
    tmp_path.unlink()
    orders.provider.do_maintenance()
    assert orders.placed()
    assert (tmp_path / orders.gen / "_writer").read_text() == orders.gen


def test_mark_of_a_process_that_was_killed_is_written_again(orders: Orders) -> None:
    orders.commit(1)
    writer = orders.folder / orders.gen / "_writer"
    writer.write_text("")
    orders.provider = orders.new_provider()
    orders.commit(1)
    assert writer.read_text() == orders.gen


def test_worker_leaves_the_history_of_a_spark_query_to_spark(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    planted = Planted(redis_server.client(), partitions=1)
    planted.register()
    for version in range(1, 7):
        planted.commit(version, [({"carrier": "a"}, {"count": version, "total": 0.5})])
    client = Client(config.parse({"url": redis_server.url}))
    partition = PartitionClient(client, planted.id(0), versions_to_retain=100)
    add_snapshot(partition, partition.open("", None))
    set_places(client, GEN, Places(f"file:{tmp_path}"))
    report = maintain_checkpoint(client, GEN, policy=Policy("w"))
    assert (report.partitions, report.moved, report.problems) == (1, 0, [])
    assert list(tmp_path.iterdir()) == []
    client.close()
