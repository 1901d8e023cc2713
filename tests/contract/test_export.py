"""`redis-state export` and `import`: round trips, interruptions, what is refused."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFile

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.errors import ConfigError, Kind, StateError, UsageError
from redis_state.exports import plan_import
from redis_state.exports.folder import ExportFolder
from redis_state.exports.manifest import Export, read_export
from redis_state.format.header import Family
from redis_state.live import Reader
from tests.contract.export_support import (
    VERSIONS,
    Stopped,
    folder,
    imported,
    planted,
    queried,
    raw,
    rows_of,
    stop_at,
)
from tests.contract.planting import GEN, Planted, family, plant_checkpoint, schema, uid
from tests.contract.test_reader_consistency import ACCOUNTS, SUM, Bank, committing
from tests.support.exporting import check_round_trip, digests
from tests.support.redis_server import RedisServer

__all__ = ["folder", "planted", "raw"]


@pytest.mark.usefixtures("planted")
def test_exported_files_are_queryable_and_importable(
    redis_server: RedisServer,
    raw: Any,
    reader: Reader,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = rows_of(reader)
    described = raw.hgetall(keys.query(GEN))
    url = ["--url", redis_server.url]
    assert main(["export", "flights", "--to", str(folder), *url]) == 0
    told = capsys.readouterr().out
    assert f"query flights, the state after batch {VERSIONS - 1}: 200 rows" in told
    assert "digest" in told
    found = queried(f"select carrier, count from '{folder}/data/*/*/*.parquet'")
    assert dict(found) == {name: value["count"] for name, value in before.items()}
    assert sorted(one.name for one in folder.iterdir()) == ["data", "manifest.json"]
    checkpoint = plant_checkpoint(tmp_path, batches=VERSIONS + 1)
    raw.flushdb()
    given = ["import", str(folder), *url, "--checkpoint", str(checkpoint)]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "4 partitions would be imported" in told
    assert f"commits/{VERSIONS} -> rewound-to-{VERSIONS - 1}.1/commits/{VERSIONS}" in told
    assert raw.dbsize() == 0
    assert main([*given, "--yes"]) == 0
    assert "4 partitions were imported" in capsys.readouterr().out
    assert rows_of(reader) == before
    meta = raw.hgetall(keys.meta(Planted(raw).id(0)))
    assert (meta[b"o"], meta[b"ou"], meta[b"n"]) == (b"4", uid(VERSIONS).encode(), b"2")
    again = raw.hgetall(keys.query(GEN))
    assert described.items() - again.items() == {(b"epoch", b"1")}
    assert {raw.ttl(key) for key in raw.keys("*")} == {-1}
    left = {path.name for path in (checkpoint / "commits").iterdir()}
    assert str(VERSIONS) not in left
    assert main(["doctor", *url, "--checkpoint", str(checkpoint)]) == 0
    assert main([*given, "--force", "--yes"]) == 0
    told = capsys.readouterr().out
    assert "4 partitions already have this version" in told
    assert "4 partitions were already there with that version, and were not read again" in told
    assert "imported" not in told


@pytest.mark.usefixtures("planted")
def test_each_version_survives_export_and_import(redis_server: RedisServer) -> None:
    for batch in range(VERSIONS):
        assert check_round_trip(redis_server.url, "flights", at=batch).batch == batch


KINDS: list[Family] = [
    family(schema(k="string", n="long"), schema(v="long"), kind="prefix", params=[1]),
    family(
        schema(n="long", k="string"), schema(v="binary", at="timestamp"), kind="range", params=[0]
    ),
    family(schema(k="string", __event_time="long"), schema(v="double"), kind="ts-postfix"),
    family(schema(_key="string", _KEY="string"), schema(_value="long", v="interval")),
]


@pytest.mark.parametrize("layout", KINDS, ids=["prefix", "range", "ts-postfix", "odd names"])
def test_each_kind_of_key_survives_export_and_import(
    redis_server: RedisServer, layout: Family
) -> None:
    planted = Planted(redis_server.client(), layout)
    planted.register()
    keys_of = json.loads(layout.key_schema)["fields"]
    values_of = json.loads(layout.value_schema)["fields"]
    made: dict[str, Callable[[int], Any]] = {
        "string": lambda n: f"k{n % 7}",
        "long": lambda n: n,
        "double": lambda n: n / 2,
        "binary": lambda n: bytes([n % 256]) * 40,
    }

    def of(fields: list[dict[str, Any]], n: int) -> dict[str, Any]:
        nothing: Callable[[int], Any] = lambda _: None  # noqa: E731
        return {one["name"]: made.get(one["type"], nothing)(n) for one in fields}

    rows = [(of(keys_of, n), of(values_of, n)) for n in range(700)]
    by_partition: dict[int, dict[bytes, Any]] = {n: {} for n in range(planted.partitions)}
    for number, (key, value) in enumerate(rows):
        by_partition[number % 3][planted.key(key)] = planted.value(value)
    for partition, content in by_partition.items():
        planted.delta(partition, 1, content)
    check_round_trip(redis_server.url, "flights")


def test_interrupted_export_is_resumed(
    planted: Planted, redis_server: RedisServer, reader: Reader, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        reader.export("flights", folder, progress=stop_at(2))
    with pytest.raises(UsageError, match=r"was interrupted.*same `redis-state export` again"):
        read_export(ExportFolder(folder))
    assert main(["import", str(folder), "--url", redis_server.url]) == 1
    kept = {path: path.stat().st_ino for path in folder.glob("data/*/*/*.parquet")}
    assert len(kept) == 2
    damaged, whole = sorted(kept)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (folder / "data" / "stray.parquet.tmp").write_bytes(b"half")
    planted.commit(VERSIONS + 1, [({"carrier": "new"}, {"count": 1, "total": 1.0})])
    with pytest.raises(UsageError, match="of another query, batch, operator or format"):
        reader.export("flights", folder, contents="raw")
    export = reader.export("flights", folder)
    assert export.version == VERSIONS, "that with which it began"
    assert whole.stat().st_ino == kept[whole]
    assert not damaged.exists()
    assert not (folder / "data" / "stray.parquet.tmp").exists()
    whole_one = reader.export("flights", tmp_path / "other", at=VERSIONS - 1)
    assert digests(export) == digests(whole_one)
    with pytest.raises(UsageError, match="there is a complete export in this folder"):
        reader.export("flights", folder)


@pytest.mark.usefixtures("planted")
def test_later_of_two_exports_into_one_folder_wins(reader: Reader, folder: Path) -> None:
    made: list[Export] = []

    def meanwhile(what: str, done: int, _total: int) -> None:
        if what.startswith("exporting") and done == 2 and not made:
            made.append(reader.export("flights", folder))

    with pytest.raises(UsageError, match="another export has taken over this folder"):
        reader.export("flights", folder, progress=meanwhile)
    assert read_export(ExportFolder(folder)).to_json() == made[0].to_json()
    there = {str(path.relative_to(folder)) for path in folder.glob("data/*/*/*")}
    assert there == {file.path for file in made[0].files}


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("sleeps", ["before the plan", "before it takes over", "as it checks"])
def test_overtaken_export_leaves_a_complete_folder_unchanged(
    reader: Reader, folder: Path, monkeypatch: pytest.MonkeyPatch, sleeps: str
) -> None:
    """The other one completes the folder just before, or just after, a step of the first one."""
    with pytest.raises(Stopped):
        reader.export("flights", folder, progress=stop_at(2))
    made: list[Export] = []
    read, write, names = ExportFolder.read, ExportFolder.write, ExportFolder.names

    def other() -> None:
        if not made:
            monkeypatch.undo()
            made.append(reader.export("flights", folder))

    def before_read(self: ExportFolder, name: str, *, most: int) -> bytes:
        other()
        return read(self, name, most=most)

    def before_write(self: ExportFolder, name: str, content: bytes) -> None:
        other()
        write(self, name, content)

    def after_names(self: ExportFolder, under: str = "") -> list[str]:
        found = names(self, under)
        other()
        return found

    step: dict[str, tuple[str, Callable[..., Any]]] = {
        "before the plan": ("read", before_read),
        "before it takes over": ("write", before_write),
        "as it checks": ("names", after_names),
    }
    monkeypatch.setattr(ExportFolder, *step[sleeps])
    with pytest.raises(UsageError, match="another export completed this folder meanwhile"):
        reader.export("flights", folder)
    assert sorted(one.name for one in folder.iterdir()) == ["data", "manifest.json"]
    assert read_export(ExportFolder(folder)).to_json() == made[0].to_json()
    there = {str(path.relative_to(folder)) for path in folder.glob("data/*/*/*")}
    assert there == {file.path for file in made[0].files}


def test_export_fails_when_retention_drops_its_version(
    planted: Planted, reader: Reader, folder: Path
) -> None:
    def passed(what: str, done: int, _total: int) -> None:
        if what.startswith("exporting") and done == 1:
            for partition in range(planted.partitions):
                planted.snapshot(partition, VERSIONS + 1, {})
                meta = keys.meta(planted.id(partition))
                planted.client.hset(meta, mapping={"o": VERSIONS + 1, "ou": uid(VERSIONS + 1)})

    with pytest.raises(StateError, match=r"retention removed it.*versionsToRetain") as raised:
        reader.export("flights", folder, progress=passed)
    assert (raised.value.kind, raised.value.version) == (Kind.VERSION_EXPIRED, VERSIONS)
    with pytest.raises(StateError, match="retention removed it"):
        reader.export("flights", folder)


def test_export_fails_when_its_query_is_purged(
    planted: Planted, redis_server: RedisServer, reader: Reader, folder: Path
) -> None:
    def purge(what: str, done: int, _total: int) -> None:
        if what.startswith("exporting") and done == 1:
            purged = ["purge", "--gen", GEN, "--yes", "--force", "--url", redis_server.url]
            assert main([*purged, "--now"]) == 0

    with pytest.raises(StateError):
        reader.export("flights", folder, progress=purge)
    assert planted.client.exists(keys.meta(planted.id(0))) == 0
    assert not (folder / "manifest.json").exists()


def test_invalid_export_arguments_are_refused(
    planted: Planted, reader: Reader, tmp_path: Path, raw: Any
) -> None:
    with pytest.raises(ConfigError, match="contents cannot be 'both'"):
        reader.export("flights", tmp_path / "x", contents="both")
    with pytest.raises(ConfigError, match="no driver of fsspec opens"):
        reader.export("flights", "nowhere://x/y")
    with pytest.raises(ConfigError, match="nowhere://host/y") as caught:
        reader.export("flights", "nowhere://user:secret@host/y?key=secret")
    assert "secret" not in str(caught.value)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.parquet").write_text("")
    with pytest.raises(UsageError, match="the folder holds other files"):
        reader.export("flights", tmp_path)
    assert (tmp_path / "data" / "mine.parquet").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        reader.export("flights", tmp_path / "file" / "x")
    for partition in range(planted.partitions):
        raw.delete(keys.meta(planted.id(partition)))
    with pytest.raises(UsageError, match="no batch of the query is confirmed yet"):
        reader.export("flights", tmp_path / "x")


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("size", [1 << 10, 3 << 10])
def test_export_to_a_full_disk_fails_and_is_resumed(
    reader: Reader, folder: Path, size: int
) -> None:
    with disk_of(size), pytest.raises(ConfigError, match=r"File too large.*free space"):
        reader.export("flights", folder)
    assert not list(folder.rglob("*.tmp"))
    assert reader.export("flights", folder).rows == 200


@pytest.mark.usefixtures("planted")
def test_export_writes_to_any_fsspec_file_system(
    redis_server: RedisServer, raw: Any, reader: Reader
) -> None:
    place = "memory://exports/flights"
    before = rows_of(reader)
    with pytest.raises(Stopped):
        reader.export("flights", place, progress=stop_at(2))
    export = reader.export("flights", place)
    raw.flushdb()
    with closing(Client(config.parse({"url": redis_server.url}))) as client:
        plan_import(client, ExportFolder(place)).carry_out(client)
    assert rows_of(reader) == before
    assert export.rows == len(before)


@pytest.mark.usefixtures("planted")
def test_export_accepts_local_folders_in_sparks_spelling(reader: Reader, folder: Path) -> None:
    reader.export("flights", f"file:{folder}")
    assert (folder / "manifest.json").exists()


@pytest.mark.usefixtures("planted")
def test_driver_error_is_reported_without_its_text(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DriverError(Exception):
        """Exception of no kind that Python knows, with a secret in its text."""

    def fails(*_: Any, **__: Any) -> None:
        raise DriverError("token=secret")

    monkeypatch.setattr(MemoryFile, "write", fails)
    with pytest.raises(ConfigError, match=r"writing memory://x/.*DriverError") as caught:
        reader.export("flights", "memory://x/flights")
    assert "secret" not in str(caught.value)


def test_export_reads_one_version_during_commits(
    redis_server: RedisServer, reader: Reader, tmp_path: Path
) -> None:
    bank = Bank(redis_server.url)
    bank.run()
    bank.run()
    seen = set()
    with committing(bank):
        for number in range(5):
            export = reader.export(bank.name, tmp_path / str(number))
            seen.add(export.batch)
            values = queried(
                f"select count(*), sum(value::int) from '{tmp_path}/{number}/data/*/*/*.parquet'"
            )
            assert values == [(ACCOUNTS, SUM)]
    assert len(seen) > 1
    raw = redis_server.client()
    raw.flushdb()
    plan = imported(redis_server, tmp_path / "4")
    state = reader.query(bank.name).operator()
    batch = plan.export.batch
    assert batch is not None
    assert sum(value for _, value in state.items(at=batch)) == SUM
    bank.batch = batch + 3
    with pytest.raises(UsageError, match=str(batch)):
        bank.run()
    bank.batch = batch + 1
    # It knows of later batches than the state that was brought back.
    bank.changed |= set(range(ACCOUNTS))
    bank.run()
    bank.run()
    assert sum(value for _, value in state.items(at=batch + 2)) == SUM
    bank.close()
