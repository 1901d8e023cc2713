"""Python stores with `history=files` whose files lie in a real S3 server and a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from redis_state import keys
from redis_state.cli.main import main
from redis_state.maintain.history import move_history
from redis_state.places.moving import rows_of
from redis_state.protocol.partition import PartitionClient
from tests.contract.test_history_in_files import Orders, rows
from tests.contract.test_places_command import age
from tests.contract.test_purged_files import expire_now
from tests.file_systems.servers import Store
from tests.file_systems.test_tools import AWS
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.long


@pytest.fixture
def orders(
    store: Store, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Orders]:
    if store.root:
        for name, option in AWS.items():
            monkeypatch.setenv(name, str(store.options[option]))
    else:
        monkeypatch.setitem(fsspec.config.conf, "webhdfs", dict(store.options))
    folder = f"{store.url}/{tmp_path.name}/segments"
    found = Orders(redis_server.url, Path("unused"), places_folder=folder, places_delete=True)
    found.commit_history(after=2)
    yield found
    found.close()


def files_in(store: Store, orders: Orders, tmp_path: Path) -> list[str]:
    at = f"{store.root}/{tmp_path.name}/segments/{orders.gen}"
    return [name for name in store.admin.find(at) if name.endswith(".seg")]


def test_history_is_moved_read_brought_back_and_deleted(
    store: Store, orders: Orders, tmp_path: Path
) -> None:
    def places(*words: str) -> int:
        return main(["places", "orders", "--url", orders.url, *words])

    assert move_history(orders.client, orders.id).segments == 5
    orders.drop_keys()
    assert [orders.rows_at(at) for at in (1, 3, 8)] == [rows(1), rows(3), rows(8)]
    assert places("--verify", "--deep") == 0
    assert places("--bring-back") == 0
    assert orders.placed() == []
    age(orders)
    assert places("--sweep") == 0
    assert files_in(store, orders, tmp_path) == []
    assert rows_of(orders.client, orders.id) == []
    assert orders.rows_at(2) == rows(2)


def test_lost_file_is_found_and_dropped_history_is_deleted(
    store: Store, orders: Orders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert move_history(orders.client, orders.id).segments == 5
    orders.raw.hset(keys.meta(orders.id), "n", "1")
    PartitionClient(orders.client, orders.id, versions_to_retain=1).retain()
    age(orders)
    assert main(["places", "orders", "--url", orders.url, "--sweep"]) == 0
    assert files_in(store, orders, tmp_path) == []
    orders.commit_history()
    assert move_history(orders.client, orders.id).segments > 0
    orders.drop_keys()
    (file,) = files_in(store, orders, tmp_path)
    store.admin.rm_file(file)
    assert main(["places", "orders", "--url", orders.url, "--verify"]) == 4
    assert "FILE_LOST" in capsys.readouterr().err


def test_files_of_a_purged_store_are_deleted(store: Store, orders: Orders, tmp_path: Path) -> None:
    assert move_history(orders.client, orders.id).segments == 5
    gen = orders.gen
    orders.provider.close()
    command = ["purge", "--gen", gen, "--url", orders.url, "--yes", "--force"]
    assert main([*command, "--now"]) == 0
    expire_now(orders.raw, gen, hours=24)
    assert len(store.admin.find(f"{store.root}/{tmp_path.name}/segments/{gen}")) == 2
    assert main([*command, "--files", "--exclusive"]) == 0
    assert not store.admin.exists(f"{store.root}/{tmp_path.name}/segments/{gen}")
