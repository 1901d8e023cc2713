"""Figures of history in files: status, exporter, causes of growth, and counters of a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from redis_state import config, keys
from redis_state.cli.main import main
from redis_state.exporter import QueryCollector
from redis_state.live import Reader
from redis_state.maintain.history import history_of, move_history
from redis_state.places.moving import announce
from redis_state.protocol.partition import PartitionClient
from redis_state.reader import CauseKind, QueryStatus
from redis_state.status.file_causes import waiting_history
from redis_state.status.query_status import FileTally
from tests.contract.test_history_in_files import Orders
from tests.support.dashboard import Dashboard
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until


@pytest.fixture
def orders(redis_server: RedisServer, tmp_path: Path) -> Iterator[Orders]:
    found = Orders(redis_server.url, tmp_path / "segments")
    found.commit_history()
    yield found
    found.close()


def status_of(orders: Orders) -> QueryStatus:
    with Reader(config.parse({"url": orders.url})) as reader:
        return reader.query("orders").status()


def scraped(orders: Orders) -> dict[tuple[str, str], float]:
    with Reader(config.parse({"url": orders.url})) as reader:
        return {
            (sample.name, sample.labels.get("state", "")): sample.value
            for family in QueryCollector(reader).collect()
            for sample in family.samples
        }


def test_history_waits_in_redis_until_it_is_moved(orders: Orders) -> None:
    before = status_of(orders)
    history = sum(one.entry.bytes for one in history_of(orders.manifest()))
    assert before.moves_history
    assert (before.history_bytes, before.file_bytes) == (history, 0)
    assert scraped(orders)["redis_state_history_bytes", ""] == history
    assert move_history(orders.client, orders.id).segments == 5
    after = status_of(orders)
    assert (after.history_bytes, after.file_bytes) == (0, history)
    assert after.bytes == before.bytes - history


def test_files_are_counted_by_their_state(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert move_history(orders.client, orders.id).segments == 5
    assert announce(orders.client, orders.id, []) is not None
    (file,) = orders.files()
    size = file.stat().st_size
    (one,) = status_of(orders).partitions
    assert one.files == FileTally(announced=1, used=1, used_bytes=size)
    orders.raw.hset(keys.meta(orders.id), "n", "1")
    PartitionClient(orders.client, orders.id, versions_to_retain=1).retain()
    (one,) = status_of(orders).partitions
    assert one.files == FileTally(announced=1, condemned=1, condemned_bytes=size)
    found = scraped(orders)
    assert found["redis_state_files", "condemned"] == 1
    assert found["redis_state_files", "used"] == 0
    assert found["redis_state_files_bytes", "condemned"] == size
    assert main(["show", "orders", "--url", orders.url, "--format", "table"]) == 0
    assert "that nothing needs" in capsys.readouterr().out


def test_page_of_a_query_has_its_files(orders: Orders, tmp_path: Path) -> None:
    with Dashboard(orders.url, log=tmp_path / "log") as board:
        before = board.get(f"/query/{orders.gen}").text
        assert "Waits for a file" in before
        assert "In files" not in before
        assert move_history(orders.client, orders.id).segments == 5
        orders.raw.hset(keys.meta(orders.id), "n", "1")
        PartitionClient(orders.client, orders.id, versions_to_retain=1).retain()

        def shows_it() -> bool:
            return "that nothing needs" in board.get(f"/query/{orders.gen}").text

        wait_until(shows_it, "the condemned file")


def test_query_without_files_has_no_figures_of_them(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    orders = Orders(redis_server.url, tmp_path, history="redis")
    orders.commit_history()
    status = status_of(orders)
    assert not status.moves_history
    assert [one.files for one in status.partitions] == [None]
    assert ("redis_state_files", "used") not in scraped(orders)
    orders.close()


def test_store_counts_what_it_moves_and_what_fails(orders: Orders) -> None:
    orders.folder.rename(orders.folder.with_name("aside"))
    orders.folder.write_text("in the way")
    orders.provider.do_maintenance()
    counters = orders.provider.counters
    assert (counters.values["moved_bytes"], counters.values["failed_moves"]) == (0, 1)
    assert counters.totals()["failedMoves"] == 1
    orders.folder.unlink()
    orders.folder.with_name("aside").rename(orders.folder)
    orders.clock.sleep_s(60)
    orders.provider.do_maintenance()
    assert counters.totals()["movedBytes"] > 0


def test_history_that_does_not_leave_is_a_cause_of_growth(orders: Orders) -> None:
    status = status_of(orders)
    assert list(waiting_history(status)) == []
    (store,) = status.stores
    (one,) = store.partitions
    large = replace(one, bytes=20 << 20, history_bytes=15 << 20, files=FileTally(announced=3))
    grown = replace(status, stores=(replace(store, partitions=(large,)),))
    (cause,) = waiting_history(grown)
    assert cause.kind is CauseKind.WAITING_HISTORY
    assert "3 files were begun" in cause.found
    assert list(waiting_history(replace(grown, moves_history=False))) == []
