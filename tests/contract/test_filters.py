"""Filters of files, which answer look-ups of keys that are not in a segment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.files import Folder
from redis_state.format.entry import segments_in
from redis_state.format.region import RegionHead
from redis_state.live import Reader
from redis_state.places import Places
from redis_state.places.moving import move_out
from redis_state.places.settings import set_places
from tests.contract.planting import GEN, Planted
from tests.support.redis_server import RedisServer

ROWS = 3_000
Span = tuple[int, int]


class Reads:
    """Ranges of files that were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans: list[Span] = []
        read = Folder.read_ranges

        def counted(folder: Folder, name: str, spans: Sequence[Span]) -> list[bytes] | None:
            self.spans += spans
            return read(folder, name, spans)

        monkeypatch.setattr(Folder, "read_ranges", counted)

    def of(self) -> int:
        """Returns how many ranges were read since the last call."""
        found, self.spans = len(self.spans), []
        return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Client]:
    found = Client(config.parse({"url": redis_server.url}))
    yield found
    found.close()


def key(number: int) -> dict[str, str]:
    return {"carrier": f"c{number}"}


def value(number: int) -> dict[str, float]:
    return {"count": number, "total": 0.5}


def plant(planted: Planted, client: Client, folder: Path) -> dict[int, int]:
    """Plants three versions whose segments are in files; returns the rows of the last one."""
    planted.partitions = 1
    planted.register()
    rows = {number: number for number in range(ROWS)}
    planted.commit(1, [(key(number), value(number)) for number in rows])
    dice = random.Random(3)
    for version in (2, 3):
        changed = dice.sample(range(ROWS + 200), 60)
        changes: list[tuple[dict[str, str], dict[str, float] | None]] = []
        for at, number in enumerate(changed):
            if at % 3 == 0:
                rows.pop(number, None)
                changes.append((key(number), None))
            else:
                rows[number] = version
                changes.append((key(number), value(version)))
        planted.commit(version, changes)
    id_ = planted.id(0)
    set_places(client, GEN, Places(f"file:{folder}"))
    (manifest,) = client.call("looking at it", [("HGETALL", keys.meta(id_))])
    segments = list(segments_in(manifest))
    assert move_out(client, id_, segments, Places(f"file:{folder}").folder_of(GEN)).segments == 3
    for one in segments:
        planted.client.delete(keys.segment(id_, one.ident))
    return rows


def test_absent_keys_cost_no_read_of_a_file(
    planted: Planted, reader: Reader, client: Client, tmp_path: Path, reads: Reads
) -> None:
    rows = plant(planted, client, tmp_path)
    state = reader.query("flights").operator()
    state.get(key(0))
    reads.of()
    absent = range(ROWS + 1_000, ROWS + 1_400)
    assert all(state.get(key(number)) is None for number in absent)
    # Three segments, each with a hundredth of false answers.
    assert reads.of() < 40
    for number in range(0, ROWS + 200, 7):
        found = state.get(key(number))
        assert (None if found is None else found["count"]) == rows.get(number)
    assert reads.of() > 20
    assert state.get_many([key(number) for number in absent]) == [None] * len(absent)


@pytest.mark.parametrize("filters", [True, False])
def test_rows_are_found_with_and_without_filters(
    planted: Planted,
    reader: Reader,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    filters: bool,
) -> None:
    rows = plant(planted, client, tmp_path)
    if not filters:
        monkeypatch.setattr(RegionHead, "filter", lambda *_: None)
    state = reader.query("flights").operator()
    numbers = random.Random(4).sample(range(ROWS + 400), 900)
    for start in range(0, 900, 60):
        some = numbers[start : start + 60]
        found = state.get_many([key(number) for number in some])
        assert [None if one is None else one["count"] for one in found] == [
            rows.get(number) for number in some
        ]


def test_ranges_are_read_some_at_once(
    redis_server: RedisServer,
    planted: Planted,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(planted, client, tmp_path)
    most: list[int] = []
    read = Folder.read_ranges

    def counted(folder: Folder, name: str, spans: Sequence[Span]) -> list[bytes] | None:
        most.append(len(spans))
        return read(folder, name, spans)

    monkeypatch.setattr(Folder, "read_ranges", counted)
    monkeypatch.setattr("redis_state.places.region_files._GAP_BYTES_MAX", -1)
    with Reader(config.parse({"url": redis_server.url, "read_parallel": 3})) as other:
        other.query("flights").operator().get_many([key(number) for number in range(12)])
    assert max(most) == 3
    assert most.count(3) > 2
