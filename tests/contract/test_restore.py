"""`redis-state restore` from planted copies: what comes back, what is refused, hostile files."""

from __future__ import annotations

import hmac
import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redis_state import connect, keys
from redis_state.acl import Role, rules
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.config import PASSWORD_VARIABLE, parse
from redis_state.files import folder_at
from redis_state.recovery.copies import plan_restore
from tests.contract.copying import part_name, plant_copy, write_manifest
from tests.contract.planting import GEN, Planted, plant_checkpoint, uid
from tests.support.interruptions import Interrupted, interrupting
from tests.support.redis_server import RedisServer

UA, DL = {"carrier": "UA"}, {"carrier": "DL"}
VERSIONS = 5
COPIED = 4
SEED = 20261121


@pytest.fixture
def raw(redis_server: RedisServer) -> Any:
    return redis_server.client()


@pytest.fixture
def planted(raw: Any) -> Planted:
    planted = Planted(raw)
    planted.register()
    for version in range(1, VERSIONS + 1):
        rows = [(UA, {"count": version, "total": 0.5}), (DL, {"count": 7, "total": 1.0})]
        planted.commit(version, rows[: 1 + version % 2])
    return planted


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batches 0 to 4 are committed, and batch 5 is planned."""
    return plant_checkpoint(tmp_path, batches=VERSIONS)


class Case:
    """A checkpoint, its server, and the command."""

    def __init__(
        self, server: RedisServer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.server = server
        self.checkpoint = checkpoint
        self._capsys = capsys

    def run(self, command: str, *arguments: str) -> int:
        place = ["--url", self.server.url, "--checkpoint", str(self.checkpoint)]
        return main([command, *place, *arguments])

    def told(self) -> str:
        captured = self._capsys.readouterr()
        return captured.out + captured.err

    def refused(self, *said: str) -> None:
        """Restoring fails with this text, and nothing was changed."""
        client: Any
        with self.server.client() as client:
            before = sorted(client.keys("*"))
            files = sorted(self.checkpoint.rglob("*"))
            assert self.run("restore", "--yes") == 1
            told = self.told()
            for text in said:
                assert text in told
            assert sorted(client.keys("*")) == before
        assert sorted(self.checkpoint.rglob("*")) == files


@pytest.fixture
def case(redis_server: RedisServer, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Case:
    return Case(redis_server, checkpoint, capsys)


def dump(client: Any) -> dict[str, dict[bytes, bytes]]:
    return {
        key.decode(): client.hgetall(key)
        for key in client.keys("*")
        if b"}:d:" in key or b"}:s:" in key
    }


def kill(what: str, *_: int) -> None:
    """Ends a restore after a partition."""
    if what == "restoring partitions":
        raise Interrupted


def kill_after_each_step(case: Case) -> list[str]:
    """Plans and begins a restore until all is done, and returns what each one was killed after."""
    folder = folder_at(str(case.checkpoint))
    kills: list[str] = []
    with closing(Client(parse({"url": case.server.url}))) as client:
        while True:
            plan = plan_restore(client, interrupting(folder, at=0), GEN)
            if not plan.missing and not plan.rewind.files:
                return kills
            kills.append("a partition" if plan.missing else "a file")
            with pytest.raises(Interrupted):
                plan.carry_out(client, kill)


def test_lost_state_is_restored(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, 2)
    plant_copy(planted, case.checkpoint, COPIED)
    before = dump(raw)
    wanted = {key: value for key, value in before.items() if f"}}:d:{VERSIONS}:" not in key}
    described = raw.hget(keys.query(GEN), "op:0:default")
    raw.flushdb()
    assert case.run("doctor") == PROBLEMS_STATUS
    assert "has a copy of the state after batch 3" in case.told()
    assert case.run("restore") == 0
    assert "4 partitions would be restored, 6 files would be moved" in case.told()
    assert raw.dbsize() == 0
    assert case.run("restore", "--yes") == 0
    assert "batch 3 is the newest now" in case.told()
    assert dump(raw) == wanted
    assert raw.hget(keys.query(GEN), "op:0:default") == described
    with connect(case.server.url) as reader:
        query = reader.query("flights")
        assert query.operator(0).get(UA) == {"count": 4, "total": 0.5}, "before the query starts"
        assert query.info.partitions == {(0, "default"): planted.partitions}
        assert query.info.created_ms == 1_700_000_000_000, "of the copy, if it says no more"
        assert query.info.seen_ms > query.info.created_ms
    for key in raw.keys("*"):
        assert raw.ttl(key) == -1
    meta = raw.hgetall(keys.meta(planted.id(0)))
    assert {meta[name] for name in (b"o", b"l")} == {b"4"}
    assert (meta[b"ou"], meta[b"lu"]) == (uid(COPIED).encode(),) * 2
    assert (meta[b"n"], meta[b"c"], meta[b"w"], meta[b"e"]) == (b"2", b"1", b"0", b"0")
    left = sorted(path.name for path in (case.checkpoint / "commits").iterdir())
    assert left == [".0.crc", ".1.crc", ".2.crc", ".3.crc", "0", "1", "2", "3"]
    assert case.run("doctor") == 0
    assert case.run("restore") == 0
    assert "0 partitions would be restored, 0 files" in case.told()


def test_older_copy_is_restored_on_request(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, 2)
    plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    assert case.run("restore", "--to-batch", "2", "--yes") == 1
    assert "There are copies of the batches 1, 3." in case.told()
    assert case.run("restore", "--to-batch", "1", "--yes") == 0
    assert "batch 1 is the newest now" in case.told()


def test_copied_folder_is_restored_by_its_gen(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    (case.checkpoint / "state" / "_redis_state").unlink()
    case.refused("[REDIS_MARKER_MISSING]", "--gen")
    assert case.run("restore", "--gen", "f" * 32, "--yes") == 1
    assert "it is of another checkpoint" in case.told()
    assert case.run("doctor", "--gen", "f" * 32) == PROBLEMS_STATUS
    assert "copy of the state" not in case.told(), "nobody is sent to a copy that is refused"
    assert case.run("restore", "--gen", GEN, "--yes") == 0
    assert raw.exists(keys.meta(planted.id(0)))


def test_lost_partitions_alone_are_restored(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, COPIED)
    kept = dump(raw)
    lost = keys.partition(planted.id(planted.partition(UA)))
    for key in raw.keys("*"):
        if key.decode().startswith(lost):
            raw.delete(key)
    assert case.run("restore", "--yes") == 0
    told = case.told()
    assert "3 partitions already have this version" in told
    assert "1 partitions were restored" in told
    gone = f"{lost}:d:{VERSIONS}:{uid(VERSIONS)}"
    assert dump(raw) == {key: value for key, value in kept.items() if key != gone}
    assert case.run("doctor") == 0


def test_restore_needs_only_the_rights_of_a_job(
    case: Case, planted: Planted, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    version = raw.info()["redis_version"]
    raw.execute_command("ACL", "SETUSER", "job", *rules(Role.JOB, version=version), "on", ">secret")
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    assert case.run("restore", "--username", "job", "--yes") == 0
    assert raw.exists(keys.meta(planted.id(0)))


def test_restore_never_replaces_existing_state(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, COPIED)
    id_ = planted.id(planted.partition(UA))
    raw.unlink(keys.segment(id_, f"d:{COPIED}:{uid(COPIED)}"))
    case.refused("[REDIS_STATE_LOST]", "Redis has other versions of this partition", "purge")


def test_copy_of_another_timeline_is_skipped(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, 2)
    plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    (case.checkpoint / "offsets" / "3").write_text("v1\nthe same batch, run again")
    assert case.run("restore", "--to-batch", "3", "--yes") == 1
    assert "belongs to a timeline that a rewind of the query abandoned" in case.told()
    assert case.run("restore", "--yes") == 0
    assert "batch 1 is the newest now" in case.told()


def test_unlogged_copy_is_skipped(case: Case, planted: Planted, raw: Any) -> None:
    plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    for batch in (3, 4):
        (case.checkpoint / "commits" / str(batch)).unlink()
    case.refused("[REDIS_NOT_FOUND]", "no copy belongs to a batch that is still in Spark's logs")


@pytest.mark.usefixtures("raw")
def test_missing_copies_raise_not_found(case: Case) -> None:
    case.refused("[REDIS_NOT_FOUND]", "copyEveryBatches")


def test_unfinished_copy_is_ignored(case: Case, planted: Planted, raw: Any) -> None:
    folder = plant_copy(planted, case.checkpoint, COPIED)
    (folder / "manifest").unlink()
    raw.flushdb()
    case.refused("[REDIS_NOT_FOUND]")


def test_a_restore_that_is_killed_after_each_step_is_finished(
    case: Case, planted: Planted, raw: Any
) -> None:
    """After each partition, and after each file that moves: then the same command again."""
    plant_copy(planted, case.checkpoint, COPIED)
    wanted = {key: value for key, value in dump(raw).items() if f"}}:d:{VERSIONS}:" not in key}
    raw.flushdb()
    kills = kill_after_each_step(case)
    assert kills == ["a partition"] * planted.partitions + ["a file"] * 6
    assert dump(raw) == wanted
    assert case.run("doctor") == 0
    assert raw.hget(keys.query(GEN), "op:0:default")


def bent(change: Callable[[bytes], bytes]) -> Callable[[int, bytes], bytes]:
    """Bends the file of partition 1, and its SHA-256 with it."""
    return lambda partition, raw: change(raw) if partition == 1 else raw


HOSTILE = {
    "cut off": (lambda raw: raw[:-1], "it is cut off"),
    "cut off in the head": (lambda raw: raw[:40], "it is cut off"),
    "empty": (lambda _: b"", "it is cut off"),
    "something behind": (lambda raw: raw + b"x", "bytes follow after its end"),
    "another kind": (lambda raw: b"x" + raw[1:], "it is not a file of a copy"),
    "of another partition": (
        lambda raw: raw.replace(f"{GEN} 0 1 ".encode(), f"{GEN} 0 2 ".encode(), 1),
        "it is of another partition or version",
    ),
    "another version": (
        lambda raw: raw.replace(f" {COPIED} {uid(COPIED)}".encode(), b" 3 " + b"0" * 32, 1),
        "[REDIS_FORMAT]",
    ),
    "a segment is missing": (
        lambda raw: raw.replace(f"d:2:{uid(2)}".encode(), f"d:2:{uid(9)}".encode(), 1),
        "its segments are not those of one version",
    ),
    "a bit of a block": (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "the check does not match"),
    "a huge length": (
        lambda raw: raw[:8] + b"\x7f\xff\xff\xff" + raw[12:],
        "a length of 2147483647 is above",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_copy_raises_format(case: Case, planted: Planted, raw: Any, what: str) -> None:
    change, said = HOSTILE[what]
    plant_copy(planted, case.checkpoint, COPIED, change=bent(change))
    raw.flushdb()
    case.refused("[REDIS_FORMAT]", said, part_name(planted, 1))


def test_each_damaged_byte_of_a_copy_is_found(case: Case, planted: Planted, raw: Any) -> None:
    """Any changed byte of any file is found; a manifest that is older is used when it is asked."""
    folder = plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    generator = random.Random(SEED)
    for path in sorted(folder.iterdir()):
        good = path.read_bytes()
        for _ in range(6):
            place = generator.randrange(len(good))
            other = bytes([good[place] ^ 1 << generator.randrange(8)])
            path.write_bytes(good[:place] + other + good[place + 1 :])
            case.refused("[REDIS_FORMAT]")
        path.unlink()
        case.refused("[REDIS_NOT_FOUND]" if path.name == "manifest" else "[REDIS_FORMAT]")
        path.write_bytes(good)
    assert case.run("restore", "--yes") == 0


def test_swapped_files_raise_format(case: Case, planted: Planted, raw: Any) -> None:
    folder = plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    first, second = (folder / part_name(planted, number) for number in (0, 1))
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    case.refused("[REDIS_FORMAT]")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"version": 3},
        {"gen": "f" * 32},
        {"gen": 7},
        {"parts": []},
        {"parts": [{"operator": 0, "partition": True, "store": "", "bytes": 1, "sha256": "x"}]},
        {"query": [1]},
        {"offsets": "short"},
    ],
)
def test_hostile_manifest_raises_format(
    case: Case, planted: Planted, raw: Any, change: dict[str, object]
) -> None:
    folder = plant_copy(planted, case.checkpoint, COPIED)
    manifest = json.loads((folder / "manifest").read_bytes()[65:])
    write_manifest(folder, {**manifest, **change})
    raw.flushdb()
    case.refused("[REDIS_FORMAT]")


def test_restore_drops_runs_and_epochs_of_the_copy(case: Case, planted: Planted, raw: Any) -> None:
    """They would fence the run of today, and a note of a purge would be believed."""
    folder = plant_copy(planted, case.checkpoint, COPIED)
    manifest = json.loads((folder / "manifest").read_bytes()[65:])
    of_then = {"epoch": "9" * 15, "run:6d2b": f"{'9' * 15} d", "seen": "1", "f": "7"}
    of_then |= {"purged": "{}", "batch:0:default": "1 0 4 r {}"}
    kept = {"path": "00", "id": "i", "created": "1"}
    write_manifest(folder, {**manifest, "query": manifest["query"] | of_then | kept})
    raw.flushdb()
    assert case.run("restore", "--yes") == 0
    found = raw.hgetall(keys.query(GEN))
    assert set(found) == {b"f", b"name", b"op:0:default", b"path", b"id", b"created"}
    assert found[b"f"] == b"1"


def test_signed_blocks_are_restored_with_their_key(
    case: Case, planted: Planted, raw: Any, tmp_path: Path
) -> None:
    """They come back as they were signed; a key that does not fit is told before."""
    for name, secret in (("key", "s" * 32), ("other", "t" * 32)):
        (tmp_path / name).write_text(secret)
    sign(raw, b"s" * 32)
    before = {key: value for key, value in dump(raw).items() if f":d:{VERSIONS}:" not in key}
    plant_copy(planted, case.checkpoint, COPIED)
    raw.flushdb()
    case.refused("its blocks are signed", "--signing-key-file")
    wrong = ["--signing-key-file", str(tmp_path / "other")]
    assert case.run("restore", "--yes", *wrong) == 1
    assert raw.dbsize() == 0
    assert case.run("restore", "--yes", "--signing-key-file", str(tmp_path / "key")) == 0
    assert dump(raw) == before


def sign(raw: Any, secret: bytes) -> None:
    """Section 4.7 of docs/format.md."""
    for key, fields in dump(raw).items():
        for name, block in fields.items():
            place = key.encode() + b"\0" + name + b"\0"
            tag = hmac.digest(secret, place + block, "sha256")[:16]
            raw.hset(key, name, b"\xb8" + tag + block)
