"""`redis-state restore` from copies that share files: nothing of the state passes through Redis."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redis_state import connect, keys
from redis_state.backend.client import Client
from redis_state.config import parse
from redis_state.files import folder_at
from redis_state.format.signature import BlockSigner
from redis_state.maintain.purged_files import PurgedFiles, delete_files
from redis_state.places.moving import rows_of
from redis_state.recovery.copies import plan_restore
from tests.contract.copying import SEGMENTS, plant_copy, plant_shared_copy, write_manifest
from tests.contract.planting import GEN, Planted, uid
from tests.contract.test_restore import (
    COPIED,
    SEED,
    UA,
    VERSIONS,
    Case,
    case,
    checkpoint,
    dump,
    kill,
    kill_after_each_step,
    planted,
    raw,
    sign,
)
from tests.support.interruptions import Interrupted

__all__ = ["case", "checkpoint", "planted", "raw"]


def files_in(checkpoint: Path) -> list[Path]:
    return sorted((checkpoint / SEGMENTS).rglob("*.copy"))


def of_copy(raw: Any) -> dict[str, dict[bytes, bytes]]:
    return {key: value for key, value in dump(raw).items() if f"}}:d:{VERSIONS}:" not in key}


def test_restored_partitions_read_from_the_files_of_the_copy(
    case: Case, planted: Planted, raw: Any
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    wanted = of_copy(raw)
    raw.flushdb()
    assert case.run("restore", "--yes") == 0
    assert dump(raw) == {}
    meta = raw.hgetall(keys.meta(planted.id(0)))
    assert (meta[b"f"], meta[b"o"], meta[b"ou"]) == (b"2", b"4", uid(COPIED).encode())
    with closing(Client(parse({"url": case.server.url}))) as client:
        (row,) = rows_of(client, planted.id(0))
    file = files_in(case.checkpoint)[0]
    assert (row.state, row.bytes) == ("u", file.stat().st_size)
    assert row.segments == sum(name.startswith(b"a:") for name in meta)
    places = json.loads(raw.hget(keys.query(GEN), "places"))
    assert places["history"] == "redis"
    assert not places["delete"]
    with connect(case.server.url) as reader:
        assert reader.query("flights").operator(0).get(UA) == {"count": 4, "total": 0.5}
    assert case.run("doctor") == 0
    assert case.run("restore") == 0
    assert "0 partitions would be restored, 0 files" in case.told()
    assert case.run("places", "flights", "--verify", "--deep") == 0
    assert case.run("places", "flights", "--bring-back") == 0
    assert dump(raw) == wanted
    assert raw.hget(keys.meta(planted.id(0)), "f") == b"1"


def test_sweep_leaves_files_of_copies(case: Case, planted: Planted, raw: Any) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    assert case.run("restore", "--yes") == 0
    assert case.run("places", "flights", "--bring-back") == 0
    files = f"{keys.meta(planted.id(0))[:-1]}f"
    places = json.loads(raw.hget(keys.query(GEN), "places")) | {"delete": True}
    raw.hset(keys.query(GEN), "places", json.dumps(places))
    for name, row in raw.hgetall(files).items():
        state, _, *rest = row.decode().split(" ")
        assert state == "d"
        raw.hset(files, name, " ".join([state, "1", *rest]))
    before = files_in(case.checkpoint)
    assert case.run("places", "flights", "--sweep") == 0
    assert files_in(case.checkpoint) == before


def test_files_of_copies_outlive_a_purge(case: Case, planted: Planted, raw: Any) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    copies = files_in(case.checkpoint)
    other = copies[0].with_suffix(".seg")
    other.write_bytes(b"x")
    folder = folder_at(str(case.checkpoint / SEGMENTS / GEN))
    with closing(Client(parse({"url": case.server.url}))) as client:
        purged = PurgedFiles(GEN, str(folder), due=0)
        found = delete_files(client, purged, folder, tenant="", guard=lambda _: "")
    assert (found.files, found.strangers) == (1, ())
    assert not other.exists()
    assert files_in(case.checkpoint) == copies
    assert case.run("restore", "--yes") == 0


@pytest.mark.parametrize("how", ["asked for", "outside, and nobody knows where"])
def test_blocks_come_back_into_redis(case: Case, planted: Planted, raw: Any, how: str) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED, outside=how != "asked for")
    wanted = of_copy(raw)
    raw.flushdb()
    given = ["--into-redis"] if how == "asked for" else []
    assert case.run("restore", "--yes", *given) == 0
    assert dump(raw) == wanted
    assert raw.hget(keys.meta(planted.id(0)), "f") == b"1"


def test_moved_checkpoint_is_read_where_it_is(case: Case, planted: Planted, raw: Any) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    case.checkpoint = case.checkpoint.rename(case.checkpoint.with_name("moved"))
    assert case.run("restore", "--gen", GEN, "--yes") == 0
    with connect(case.server.url) as reader:
        assert reader.query("flights").operator(0).get(UA) == {"count": 4, "total": 0.5}


def test_moved_checkpoint_is_restored_by_reference_after_a_kill(
    case: Case, planted: Planted, raw: Any
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    case.checkpoint = case.checkpoint.rename(case.checkpoint.with_name("moved"))
    with closing(Client(parse({"url": case.server.url}))) as client:
        plan = plan_restore(client, folder_at(str(case.checkpoint)), GEN)
        with pytest.raises(Interrupted):
            plan.carry_out(client, kill)
    assert case.run("restore", "--gen", GEN, "--yes") == 0
    assert dump(raw) == {}


def test_copied_checkpoint_does_not_need_a_damaged_original(
    case: Case, planted: Planted, raw: Any
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    original = case.checkpoint
    case.checkpoint = original.with_name("backup")
    shutil.copytree(original, case.checkpoint)
    files_in(original)[-1].unlink()
    assert case.run("restore", "--gen", GEN, "--yes") == 0
    assert case.run("doctor", "--gen", GEN) == 0


def test_lost_query_is_restored_beside_partitions_that_read_files(
    case: Case, planted: Planted, raw: Any
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    assert case.run("restore", "--yes") == 0
    raw.delete(keys.query(GEN), keys.meta(planted.id(1)))
    assert case.run("restore", "--yes") == 0
    assert case.run("doctor") == 0
    assert raw.hget(keys.query(GEN), "places")


def test_older_layout_is_used_beside_the_newer(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, 2)
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    assert case.run("restore", "--to-batch", "1", "--yes") == 0
    assert set(dump(raw)) == {
        keys.segment(planted.id(number), f"d:{version}:{uid(version)}")
        for number in range(planted.partitions)
        for version in (1, 2)
        if raw.exists(keys.segment(planted.id(number), f"d:{version}:{uid(version)}"))
    }


def test_a_restore_that_is_killed_after_each_step_is_finished(
    case: Case, planted: Planted, raw: Any
) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    assert len(kill_after_each_step(case)) == planted.partitions + 6
    assert dump(raw) == {}
    assert case.run("doctor") == 0
    with connect(case.server.url) as reader:
        assert reader.query("flights").operator(0).get(UA) == {"count": 4, "total": 0.5}


def test_each_damaged_byte_of_a_file_is_found(case: Case, planted: Planted, raw: Any) -> None:
    plant_shared_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    generator = random.Random(SEED)
    for path in files_in(case.checkpoint)[:2]:
        good = path.read_bytes()
        for place in [0, 8, len(good) - 1, *(generator.randrange(len(good)) for _ in range(10))]:
            other = bytes([good[place] ^ 1 << generator.randrange(8)])
            path.write_bytes(good[:place] + other + good[place + 1 :])
            case.refused("[REDIS_FORMAT]")
        path.write_bytes(good[:-1])
        case.refused("[REDIS_FORMAT]", "missing, or cut off")
        path.unlink()
        case.refused("[REDIS_FORMAT]", "missing, or cut off")
        path.write_bytes(good)
    assert case.run("restore", "--yes") == 0


HOSTILE: dict[str, Any] = {
    "another format": lambda manifest: manifest.update(format=3),
    "no address": lambda manifest: manifest.pop("folder"),
    "no segments": lambda manifest: manifest["parts"][1].update(segments=[]),
    "a place without blocks": lambda manifest: manifest["parts"][1]["segments"][0].__setitem__(
        2, ""
    ),
    "a place outside": lambda manifest: manifest["parts"][1]["segments"][0].__setitem__(
        2, "f ../../x 0 10 8"
    ),
    "a foreign place": lambda manifest: manifest["parts"][1]["segments"][0].__setitem__(
        2, f"p {GEN}"
    ),
    "another place": lambda manifest: manifest["parts"][1]["segments"][0].__setitem__(
        2, manifest["parts"][1]["segments"][1][2]
    ),
    "a gap": lambda manifest: manifest["parts"][1]["segments"].pop(1),
    "another partition's": lambda manifest: manifest["parts"][1].update(
        segments=manifest["parts"][0]["segments"]
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_manifest_raises_format(case: Case, planted: Planted, raw: Any, what: str) -> None:
    folder = plant_shared_copy(planted, case.checkpoint, COPIED)
    manifest = json.loads((folder / "manifest").read_bytes()[65:])
    HOSTILE[what](manifest)
    write_manifest(folder, manifest)
    raw.flushdb()
    case.refused("[REDIS_FORMAT]")


def test_signed_blocks_are_read_with_their_key(
    case: Case, planted: Planted, raw: Any, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("s" * 32)
    sign(raw, b"s" * 32)
    plant_shared_copy(planted, case.checkpoint, COPIED, signer=BlockSigner(b"s" * 32))
    raw.flushdb()
    case.refused("its blocks are signed", "--signing-key-file")
    secret = ["--signing-key-file", str(tmp_path / "key")]
    assert case.run("restore", "--yes", *secret) == 0
    assert case.run("places", "flights", "--verify", "--deep", *secret) == 0
