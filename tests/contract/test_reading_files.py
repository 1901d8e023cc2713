"""Live reads of a query of Spark whose segments lie in files: single keys, scans, history."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.files import Folder
from redis_state.format.entry import segments_in
from redis_state.ids import PartitionId, StoreId
from redis_state.places import Places
from redis_state.places.moving import move_out
from redis_state.places.reading import files_of
from redis_state.places.settings import set_places
from tests.contract.planting import GEN, Planted
from tests.support.forking import in_child
from tests.support.redis_server import RedisServer

CARRIERS = [f"c{number}" for number in range(400)]
VERSIONS = 3


@pytest.fixture
def flights(redis_server: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    """Two partitions of 128 buckets, all segments of which are in files."""
    raw = redis_server.client()
    planted = Planted(raw, partitions=2, buckets=128)
    planted.register()
    for version in range(1, VERSIONS + 1):
        some = CARRIERS if version == 1 else CARRIERS[:: 7 * version]
        rows = [({"carrier": one}, {"count": version, "total": 0.5}) for one in some]
        planted.commit(version, rows)
    client = Client(config.parse({"url": redis_server.url}))
    places = Places(f"file:{tmp_path}")
    set_places(client, GEN, places)
    for number in range(2):
        id_ = planted.id(number)
        found: Any = raw.hgetall(keys.meta(id_))
        segments = sorted(segments_in(found), key=lambda one: one.version)
        assert move_out(client, id_, segments, places.folder_of(GEN)).segments == VERSIONS
        for one in segments:
            raw.delete(keys.segment(id_, one.ident))
    yield redis_server
    client.close()


def expected(version: int) -> dict[str, int]:
    found = dict.fromkeys(CARRIERS, 1)
    for later in range(2, version + 1):
        found |= dict.fromkeys(CARRIERS[:: 7 * later], later)
    return found


def test_keys_scans_and_history_read_from_files(flights: RedisServer) -> None:
    with redis_state.connect(flights.url) as reader:
        state = reader.query("flights").operator(0)
        for version in range(1, VERSIONS + 1):
            rows = expected(version)
            for carrier in (CARRIERS[0], CARRIERS[1], CARRIERS[14], CARRIERS[399]):
                found = state.get({"carrier": carrier}, version)
                assert found is not None
                assert found["count"] == rows[carrier]
            assert state.get({"carrier": "nobody"}, version) is None
            scanned = {row["carrier"]: row["count"] for row in state.to_arrow(version).to_pylist()}
            assert scanned == rows


def test_one_key_reads_a_few_small_ranges(
    flights: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = Folder.read_ranges

    def counted(self: Folder, name: str, spans: Any) -> Any:
        read.extend(length for _, length in spans)
        return real(self, name, spans)

    monkeypatch.setattr(Folder, "read_ranges", counted)
    with redis_state.connect(flights.url) as reader:
        assert reader.query("flights").operator(0).get({"carrier": CARRIERS[5]}, 1) is not None
        sizes = [path.stat().st_size for path in Path(flights_folder(reader)).rglob("*.seg")]
    assert len(read) <= 4
    assert sum(read) < sum(sizes) // 2


def flights_folder(reader: Any) -> str:
    from redis_state.places import places_of

    places = places_of(reader.client, GEN)
    assert places is not None
    return places.folder.removeprefix("file:")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_uses_no_lock_and_no_file_system_of_its_parent(flights: RedisServer) -> None:
    with redis_state.connect(flights.url) as reader:
        state = reader.query("flights").operator(0)
        assert state.get({"carrier": CARRIERS[1]}, 1) is not None
        client, files = reader.client, files_of(reader.client)
        id_ = PartitionId(StoreId(GEN, 0, "default"), 0)
        before = files.folder(client, id_)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with files._lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        try:
            assert in_child(lambda: files.folder(client, id_) is before) is False
        finally:
            done.set()
            thread.join()
        assert files.folder(client, id_) is before


def test_memory_of_a_reader_is_in_proportion_to_the_heads_that_it_counts(
    flights: RedisServer,
) -> None:
    with redis_state.connect(flights.url) as reader:
        state = reader.query("flights").operator(0)
        tracemalloc.start()
        try:
            for carrier in CARRIERS:
                state.get({"carrier": carrier}, VERSIONS)
            of_regions = tracemalloc.Filter(True, "*/format/region.py")
            traces = tracemalloc.take_snapshot().filter_traces([of_regions]).statistics("filename")
        finally:
            tracemalloc.stop()
        counted = files_of(reader.client)._heads.bytes
    assert sum(one.size for one in traces) < 12 * counted
