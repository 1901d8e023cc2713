"""`redis-state import` of a bounded query: its rows pass Redis by."""

from __future__ import annotations

import errno
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redis_state import keys
from redis_state.cli.main import main
from redis_state.config import parse
from redis_state.errors import ConfigError
from redis_state.exports import plan_import
from redis_state.exports.folder import ExportFolder
from redis_state.ids import PartitionId, StoreId
from redis_state.live import Reader
from redis_state.maintain.purged_files import purged_files, write_note
from redis_state.places import born
from redis_state.places.moving import announce, rows_of
from redis_state.places.room import bound_in
from tests.contract.bound_scene import MIB, Ledger, opened_ledger
from tests.contract.export_support import folder, imported, raw
from tests.contract.export_support import rows_of as rows_read
from tests.contract.planting import GEN, Planted
from tests.support.interruptions import Interrupted
from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in collections.abc from Python 3.12

__all__ = ["folder", "raw"]

KEPT = 256 << 10
"""Bytes that the metadata of an import takes at most."""


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger of about 3 MiB, which was exported and then lost."""
    with opened_ledger(redis_server.url, tmp_path) as made:
        made.commit(10)
        to = str(tmp_path / "export")
        assert main(["export", "ledger", "--to", to, "--at", "latest", "--url", made.url]) == 0
        made.provider.close()
        made.raw.flushdb()
        made.folder = tmp_path / "new"
        made.options["places_folder"] = str(made.folder)
        made.provider = made.new_provider()
        yield made


def brought(ledger: Ledger, *more: str) -> int:
    command = ["import", str(ledger.folder.parent / "export"), "--yes", "--url", ledger.url]
    return main([*command, "--places-folder", str(ledger.folder), *more])


def cut_off(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts an import after its first file was written."""

    def killed(*_: object) -> bool:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(born, "is_whole", killed)
        with pytest.raises(Interrupted):
            brought(ledger)


def received(ledger: Ledger) -> int:
    return int(ledger.raw.info("stats")["total_net_input_bytes"])


def test_state_larger_than_its_share_passes_redis_by(ledger: Ledger) -> None:
    before = received(ledger)
    assert brought(ledger, "--redis-memory", "1088k") == 0
    assert received(ledger) - before < KEPT
    assert ledger.in_redis() == []
    (row,) = rows_of(ledger.client, ledger.id)
    assert row.state == "u"
    assert row.bytes == (ledger.folder / ledger.gen / row.file).stat().st_size > 2 * MIB
    assert ledger.raw.ttl(keys.files(ledger.id)) == -1
    ledger.check()
    # The store goes on, within its bound.
    ledger.peak = 0
    ledger.commit(4)
    assert (bound := bound_in(ledger.manifest())) is not None
    assert bound.share == MIB
    ledger.check()
    assert main(["places", "ledger", "--verify", "--deep", "--url", ledger.url]) == 0


def test_killed_import_is_done_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(ledger, monkeypatch)
    noted = keys.purged_files().encode()
    (listed,) = [name for name in ledger.raw.keys("*:f") if name != noted]
    assert 0 < ledger.raw.ttl(listed) <= 86_400
    assert brought(ledger) == 0
    rows = {row.state: row for row in rows_of(ledger.client, ledger.id)}
    assert set(rows) == {"n", "u"}
    ledger.check()
    assert brought(ledger) == 0


def test_files_of_an_import_that_nobody_repeats_are_found(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(ledger, monkeypatch)
    (left,) = ledger.folder.rglob("*.seg")
    (note,) = purged_files(ledger.client, tenant="")
    assert left.is_relative_to(Path(note.folder.removeprefix("file:")) / note.gen)
    purge = ["purge", "--url", ledger.url]
    # Redis has the checkpoint that was begun.
    assert main([*purge, "--gen", note.gen, "--files", "--exclusive", "--yes"]) == 1
    assert left.exists()
    assert main([*purge, "--gen", note.gen, "--now", "--yes", "--force"]) == 0
    assert purged_files(ledger.client, tenant="") == [note]
    assert main([*purge, "--files"]) == 0
    listed = capsys.readouterr().out
    assert note.gen in listed
    assert "has not ended" in listed
    assert main([*purge, "--gen", note.gen, "--files", "--exclusive", "--yes"]) == 1
    assert left.exists()
    write_note(ledger.client, replace(note, due=0), tenant="")
    assert main([*purge, "--gen", note.gen, "--files", "--exclusive", "--yes"]) == 0
    assert list(ledger.folder.rglob("*.seg")) == []
    assert purged_files(ledger.client, tenant="") == []


def test_import_shortens_the_time_of_no_purge(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(ledger, monkeypatch)
    (note,) = purged_files(ledger.client, tenant="")
    later = replace(note, due=note.due + 86_400_000, opened=note.opened - 1, files=3, bytes=9)
    write_note(ledger.client, later, tenant="")
    cut_off(ledger, monkeypatch)
    assert purged_files(ledger.client, tenant="") == [later]


def test_import_that_ended_is_not_noted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(ledger, monkeypatch)
    assert purged_files(ledger.client, tenant="")
    assert brought(ledger) == 0
    assert purged_files(ledger.client, tenant="") == []
    assert main(["places", "ledger", "--sweep", "--url", ledger.url]) == 0


def test_folder_that_is_not_mounted_is_refused(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(ledger, monkeypatch)
    # Another machine.
    shutil.rmtree(ledger.folder)
    export = str(ledger.folder.parent / "export")
    command = ["import", export, "--yes", "--url", ledger.url, "--redis-memory", "2m"]
    assert main(command) == 1
    assert "which is not there on this machine" in capsys.readouterr().err
    assert not ledger.folder.exists()
    assert brought(ledger) == 0
    ledger.check()


@pytest.mark.parametrize("when", ["at first", "later"])
def test_full_local_disk_changes_nothing(
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    when: str,
) -> None:
    class Full(io.BytesIO):
        def write(self, _: Buffer) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(**_: object) -> Full:
        if when == "at first":
            raise OSError(errno.ENOSPC, "No space left on device")
        return Full()

    with monkeypatch.context() as patched:
        patched.setattr("redis_state.places.spool.TemporaryFile", full)
        assert brought(ledger) == 1
    told = capsys.readouterr().err
    assert "[REDIS_UNAVAILABLE]" in told
    assert "could not pass the local disk: No space left on device" in told
    assert not list(ledger.folder.rglob("*.seg"))
    assert brought(ledger) == 0
    ledger.check()


def test_list_of_files_expires_only_before_its_partition_is_there(ledger: Ledger) -> None:
    id_ = PartitionId(StoreId(GEN, 0, "default"), 0)
    listed = keys.files(id_)
    assert announce(ledger.client, id_, []) is None
    assert announce(ledger.client, id_, [], is_new=True)
    assert 0 < ledger.raw.ttl(listed) <= 86_400
    # A list that stays, as of a manifest that was lost, goes on staying.
    ledger.raw.persist(listed)
    assert announce(ledger.client, id_, [], is_new=True)
    assert ledger.raw.ttl(listed) == -1
    ledger.raw.expire(listed, 100)
    ledger.raw.hset(keys.meta(id_), "f", "1")
    assert announce(ledger.client, id_, [])
    assert ledger.raw.ttl(listed) == -1
    assert len(rows_of(ledger.client, id_)) == 3


def test_small_state_goes_to_redis(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(born, "MOVED_BYTES_MAX", 8 * MIB)
    assert brought(ledger) == 0
    assert len(ledger.in_redis()) == 1
    assert rows_of(ledger.client, ledger.id) == []
    assert (ledger.folder / ledger.gen / "_writer").read_text() == ledger.gen


def test_buckets_of_several_groups_come_into_order(
    redis_server: RedisServer,
    raw: Any,
    reader: Reader,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An export has the rows by bucket modulo the groups, a region by bucket."""
    monkeypatch.setattr(born, "MOVED_BYTES_MAX", 0)
    planted = Planted(raw, buckets=2)
    planted.register()
    rows = [({"carrier": f"d{n}"}, {"count": n, "total": 0.5}) for n in range(6000)]
    planted.commit(1, rows[:100])
    planted.buckets = None
    planted.commit(2, rows)
    wanted = rows_read(reader)
    export = reader.export("flights", folder)
    parts = [part for store in export.stores for part in store.partitions]
    assert any(1 < part.groups < part.buckets for part in parts)
    raw.flushdb()
    plan = imported(redis_server, folder, places_folder=str(tmp_path / "files"))
    assert len(plan.missing) == planted.partitions
    assert not [name for name in raw.keys("*") if b":d:" in name or b":s:" in name]
    with Reader(parse({"url": redis_server.url})) as again:
        assert rows_read(again) == wanted
    places = json.loads(raw.hget(keys.query(GEN), "places"))
    assert (places["folder"], places["history"]) == (f"file:{tmp_path}/files", "redis")


def test_bound_without_a_folder_is_refused(ledger: Ledger) -> None:
    export = ExportFolder(ledger.folder.parent / "export")
    with closing(ledger.client) as client:
        with pytest.raises(ConfigError, match="--places-folder"):
            plan_import(client, export, redis_memory=2 * MIB)
        with pytest.raises(ConfigError, match="too few for 1 partitions"):
            plan_import(client, export, redis_memory=MIB, places_folder="/x")
        with pytest.raises(ConfigError, match="relative path"):
            plan_import(client, export, places_folder="x")
    assert ledger.raw.dbsize() == 0
