"""`redis-state restore` of queries whose files are outside of the checkpoint, past Redis."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redis_state import connect, keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.config import parse
from redis_state.errors import FullError, Kind
from redis_state.files import folder_at
from redis_state.format.signature import BlockSigner
from redis_state.places.moving import condemn, rows_of
from redis_state.recovery.copies import plan_restore
from redis_state.recovery.copies.partitions import Places, into_file
from tests.contract.copying import plant_copy, plant_shared_copy
from tests.contract.planting import GEN, Planted
from tests.contract.test_restore import (
    COPIED,
    UA,
    Case,
    case,
    checkpoint,
    dump,
    kill_after_each_step,
    planted,
    raw,
    sign,
)
from tests.contract.test_restore_by_reference import files_in, of_copy

__all__ = ["case", "checkpoint", "planted", "raw"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The query's `placesFolder`, with the folder of this checkpoint in it."""
    folder = tmp_path / "elsewhere"
    (folder / GEN).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("how", ["given", "in the copy", "in Redis", "format 1"])
def test_state_is_copied_from_file_to_file(
    case: Case, planted: Planted, raw: Any, outside: Path, how: str
) -> None:
    address = f"file:{outside}"
    if how == "format 1":
        plant_copy(planted, case.checkpoint, COPIED)
    else:
        own = address if how == "in the copy" else ""
        plant_shared_copy(planted, case.checkpoint, COPIED, own_folder=own)
    wanted = of_copy(raw)
    raw.flushdb()
    if how == "in Redis":
        places = json.dumps({"folder": address, "history": "files"})
        raw.hset(keys.query(GEN), mapping={"f": "1", "places": places})
    given = ["--places-folder", str(outside)] if how in ("given", "format 1") else []
    assert case.run("restore", *given) == 0
    assert not list(outside.rglob("*.seg"))
    assert case.run("restore", "--yes", *given) == 0
    assert dump(raw) == {}
    for file in files_in(case.checkpoint):
        file.unlink()
    with connect(case.server.url) as reader:
        assert reader.query("flights").operator(0).get(UA) == {"count": 4, "total": 0.5}
    assert json.loads(raw.hget(keys.query(GEN), "places"))["folder"] == address
    with closing(Client(parse({"url": case.server.url}))) as client:
        (row,) = rows_of(client, planted.id(0))
        assert (row.state, row.bytes) == ("u", (outside / GEN / row.file).stat().st_size)
    assert raw.ttl(f"{keys.meta(planted.id(0))[:-1]}f") == -1
    assert case.run("doctor") == 0
    assert case.run("places", "flights", "--verify", "--deep") == 0
    assert case.run("places", "flights", "--bring-back") == 0
    assert dump(raw) == wanted


def test_bound_brings_a_copy_of_format_1_into_the_checkpoint(
    case: Case, planted: Planted, raw: Any
) -> None:
    plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    assert case.run("restore", "--yes", "--redis-memory", "8m") == 0
    assert dump(raw) == {}
    assert len(list(case.checkpoint.rglob("*.seg"))) == planted.partitions
    assert case.run("places", "flights", "--verify", "--deep") == 0


def test_folder_that_is_not_mounted_is_refused(
    case: Case, planted: Planted, raw: Any, tmp_path: Path
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED, own_folder=f"file:{tmp_path}/gone")
    raw.flushdb()
    case.refused("[REDIS_CONFIG]", "is not there on this machine", "--places-folder")
    assert not (tmp_path / "gone").exists()
    assert case.run("restore", "--yes", "--places-folder", f"{tmp_path}/gone") == 0
    assert case.run("doctor") == 0


def test_query_with_another_folder_is_refused(
    case: Case, planted: Planted, raw: Any, outside: Path
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    places = json.dumps({"folder": f"file:{outside}", "history": "files"})
    raw.hset(keys.query(GEN), mapping={"f": "1", "places": places})
    assert case.run("restore", "--yes", "--places-folder", "/elsewhere") == 1
    assert f"are in file:{outside}" in case.told()


def test_a_restore_that_is_killed_after_each_step_is_finished(
    case: Case, planted: Planted, raw: Any, outside: Path
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED, own_folder=f"file:{outside}")
    raw.flushdb()
    assert len(kill_after_each_step(case)) == planted.partitions + 6
    assert dump(raw) == {}
    assert case.run("doctor") == 0


def test_signed_blocks_keep_their_signatures(
    case: Case, planted: Planted, raw: Any, outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("s" * 32)
    sign(raw, b"s" * 32)
    own = f"file:{outside}"
    plant_shared_copy(
        planted, case.checkpoint, COPIED, own_folder=own, signer=BlockSigner(b"s" * 32)
    )
    raw.flushdb()
    secret = ["--signing-key-file", str(tmp_path / "key")]
    assert case.run("restore", "--yes", *secret) == 0
    assert case.run("places", "flights", "--verify", "--deep", *secret) == 0


def test_condemned_file_gets_no_partition(
    case: Case, planted: Planted, raw: Any, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED, own_folder=f"file:{outside}")
    raw.flushdb()
    lost: list[str] = []

    def lose_once(client: Any, id_: Any, part: Any, **given: Any) -> Places:
        found = into_file(client, id_, part, **given)
        if not lost:
            # A purge that was not over, or a server that went back.
            (row,) = rows_of(client, id_)
            lost.append(row.file)
            client.call("losing", [("DEL", keys.files(id_))])
        return found

    monkeypatch.setattr("redis_state.recovery.copies.restore.into_file", lose_once)
    assert case.run("restore", "--yes") == 0
    with closing(Client(parse({"url": case.server.url}))) as client:
        (row,) = rows_of(client, planted.id(0))
        assert row.file not in lost
        # What is left is found by a sweep.
        assert condemn(client, planted.id(0), lost[0], announced_ms=86_400_000)
    assert case.run("places", "flights", "--verify", "--deep") == 0


def test_state_above_the_bound_does_not_begin_to_come_into_redis(
    case: Case, planted: Planted, raw: Any
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    with closing(Client(parse({"url": case.server.url}))) as client:
        # A partition that survived, with a share that no state fits into.
        assert case.run("restore", "--yes") == 0
        client.script("bounding", script("bound"), [keys.meta(planted.id(0))], ["1100"])
        raw.delete(keys.meta(planted.id(1)))
        with pytest.raises(FullError, match="its share of 1,100 bytes") as error:
            plan_restore(client, folder_at(str(case.checkpoint)), GEN, to_redis=True)
    assert error.value.kind is Kind.NO_ROOM
    assert case.run("restore", "--yes", "--into-redis", "--redis-memory", "1m") == 1
    assert "are too few for 4 partitions" in case.told()


def test_full_server_does_not_begin(case: Case, planted: Planted, raw: Any) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    raw.config_set("maxmemory", raw.info("memory")["used_memory"] + 10)
    try:
        assert case.run("restore", "--yes", "--into-redis") == 1
        assert "[REDIS_FULL]" in case.told()
        assert raw.dbsize() == 0
    finally:
        raw.config_set("maxmemory", 0)
