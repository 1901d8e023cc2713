"""`redis-state export` and `import`: round trips, interruptions, what is refused."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

import redis_state
from redis_state import config, keys
from redis_state.acl import Role, rules
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.config import PASSWORD_VARIABLE
from redis_state.errors import ConfigError, FormatError, FullError, Kind, StateError, UsageError
from redis_state.format.header import Family
from redis_state.provider import StateStoreProvider
from redis_state.reader import Reader
from redis_state.reader.exports.folder import Folder
from redis_state.reader.exports.manifest import Export, read_export, read_sealed, sealed
from redis_state.recovery.imports import Import, plan_import
from tests.contract.planting import GEN, Planted, family, plant_checkpoint, schema, uid
from tests.contract.test_reader_consistency import ACCOUNTS, SUM, Bank, committing
from tests.support.exporting import check_round_trip, digests
from tests.support.redis_server import RedisServer

VERSIONS = 4
SEED = 20261123


class Stopped(BaseException):
    """Ends a command where it stands, as Ctrl-C does."""


@pytest.fixture
def raw(redis_server: RedisServer) -> Any:
    return redis_server.client()


@pytest.fixture
def planted(raw: Any) -> Planted:
    planted = Planted(raw)
    planted.register()
    for version in range(1, VERSIONS + 1):
        rows = [({"carrier": f"c{n}"}, {"count": version * n, "total": 0.5}) for n in range(200)]
        planted.commit(version, rows[: 200 // version])
    return planted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "export"


def imported(server: RedisServer, folder: Path, **given: Any) -> Import:
    """Plan an import and carry it out."""
    with closing(Client(config.parse({"url": server.url}))) as client:
        plan = plan_import(client, Folder(folder), **given)
        plan.carry_out(client)
        return plan


def rows_of(reader: Reader, which: str = "flights") -> dict[str, Any]:
    return {key["carrier"]: value for key, value in reader.query(which).operator().items()}


def queried(statement: str) -> list[Any]:
    relation = duckdb.sql(statement)
    assert relation is not None
    return list(relation.fetchall())


def stop_at(number: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, _total: int) -> None:
        if what.startswith(("exporting", "importing")) and done == number:
            raise Stopped

    return progress


@pytest.mark.usefixtures("planted")
def test_an_export_is_queried_and_comes_back(
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
    assert "4 partitions serve it already" in capsys.readouterr().out


@pytest.mark.usefixtures("planted")
def test_every_version_makes_a_round_trip(redis_server: RedisServer) -> None:
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
def test_every_kind_of_key(redis_server: RedisServer, layout: Family) -> None:
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


def test_an_interrupted_export_goes_on(
    planted: Planted, redis_server: RedisServer, reader: Reader, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        reader.export("flights", folder, progress=stop_at(2))
    with pytest.raises(UsageError, match=r"was interrupted.*same `redis-state export` again"):
        read_export(Folder(folder))
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
def test_of_two_exports_into_one_folder_the_later_one_ends(reader: Reader, folder: Path) -> None:
    made: list[Export] = []

    def meanwhile(what: str, done: int, _total: int) -> None:
        if what.startswith("exporting") and done == 2 and not made:
            made.append(reader.export("flights", folder))

    with pytest.raises(UsageError, match="another export has taken this folder over"):
        reader.export("flights", folder, progress=meanwhile)
    assert read_export(Folder(folder)).to_json() == made[0].to_json()
    there = {str(path.relative_to(folder)) for path in folder.glob("data/*/*/*")}
    assert there == {file.path for file in made[0].files}


def test_a_version_that_retention_passes(planted: Planted, reader: Reader, folder: Path) -> None:
    def passed(what: str, done: int, _total: int) -> None:
        if what.startswith("exporting") and done == 1:
            for partition in range(planted.partitions):
                planted.snapshot(partition, VERSIONS + 1, {})
                meta = keys.meta(planted.id(partition))
                planted.client.hset(meta, mapping={"o": VERSIONS + 1, "ou": uid(VERSIONS + 1)})

    with pytest.raises(StateError, match=r"retention has passed it.*versionsToRetain") as raised:
        reader.export("flights", folder, progress=passed)
    assert (raised.value.kind, raised.value.version) == (Kind.VERSION_EXPIRED, VERSIONS)
    with pytest.raises(StateError, match="retention has passed it"):
        reader.export("flights", folder)


def test_a_query_that_is_purged_meanwhile(
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


def test_nothing_to_export(planted: Planted, reader: Reader, tmp_path: Path, raw: Any) -> None:
    with pytest.raises(ConfigError, match="no contents 'both'"):
        reader.export("flights", tmp_path / "x", contents="both")
    with pytest.raises(ConfigError, match="neither pyarrow nor fsspec"):
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
    with pytest.raises(UsageError, match="no batch of it is confirmed yet"):
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
def test_a_disk_that_takes_nothing_more(reader: Reader, folder: Path, size: int) -> None:
    with disk_of(size), pytest.raises(ConfigError, match=r"File too large.*space there"):
        reader.export("flights", folder)
    assert not list(folder.rglob("*.tmp"))
    assert reader.export("flights", folder).rows == 200


@pytest.mark.usefixtures("planted")
def test_any_file_system_of_fsspec(redis_server: RedisServer, raw: Any, reader: Reader) -> None:
    place = "memory://exports/flights"
    before = rows_of(reader)
    with pytest.raises(Stopped):
        reader.export("flights", place, progress=stop_at(2))
    export = reader.export("flights", place)
    raw.flushdb()
    with closing(Client(config.parse({"url": redis_server.url}))) as client:
        plan_import(client, Folder(place)).carry_out(client)
    assert rows_of(reader) == before
    assert export.rows == len(before)


def test_one_version_while_the_store_commits(
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
    bank.run()
    bank.run()
    assert sum(value for _, value in state.items(at=batch + 2)) == SUM
    bank.close()


def test_hostile_files(
    planted: Planted, redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    """Any changed byte of any file is found before anything is sent."""
    reader.export("flights", folder)
    raw.flushdb()
    generator = random.Random(SEED)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        good = path.read_bytes()
        for _ in range(4):
            place = generator.randrange(len(good))
            if good[place : place + 1].isspace():
                continue
            other = bytes([good[place] ^ 1 << generator.randrange(7)])
            path.write_bytes(good[:place] + other + good[place + 1 :])
            with pytest.raises((FormatError, UsageError)):
                imported(redis_server, folder)
        path.unlink()
        assert main(["import", str(folder), "--url", redis_server.url, "--yes"]) == 1
        path.write_bytes(good)
    assert raw.dbsize() == 0
    assert len(imported(redis_server, folder).missing) == planted.partitions


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda it: it.update(format=2),
    "no checkpoint": lambda it: it["query"].update(gen="../x"),
    "a path outside": lambda it: it["stores"][0]["partitions"][0]["files"][0].update(
        path="data/../../secret/x.parquet"
    ),
    "a file twice": lambda it: it["stores"][0]["partitions"][0].update(
        files=it["stores"][0]["partitions"][1]["files"]
    ),
    "other counts": lambda it: it["stores"][0]["partitions"][0].update(rows=7),
    "no power of two": lambda it: it["stores"][0]["partitions"][0].update(groups=3),
    "a partition is missing": lambda it: it["stores"][0]["partitions"].pop(0),
    "no table": lambda it: it["stores"][0].update(tables=[]),
}


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path, what: str
) -> None:
    reader.export("flights", folder)
    raw.flushdb()
    content = read_sealed(Folder(folder), "manifest.json")
    HOSTILE[what](content)
    (folder / "manifest.json").write_bytes(sealed(content))
    with pytest.raises(FormatError):
        imported(redis_server, folder)
    assert raw.dbsize() == 0


@pytest.mark.usefixtures("planted")
def test_rows_that_are_not_those_of_the_digest(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    """Staged, but never visible."""
    reader.export("flights", folder)
    raw.flushdb()
    content = read_sealed(Folder(folder), "manifest.json")
    content["stores"][0]["partitions"][2]["digest"] = "0" * 32
    (folder / "manifest.json").write_bytes(sealed(content))
    with pytest.raises(FormatError, match="are not those that the manifest counts"):
        imported(redis_server, folder)
    assert {key.decode()[-2:] for key in raw.keys("*:m")} == {":m"}
    assert len(raw.keys("*:m")) == 2
    assert not raw.exists(keys.query(GEN))


def test_an_interrupted_import_goes_on(
    planted: Planted, redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    before = rows_of(reader)
    reader.export("flights", folder)
    raw.flushdb()
    with closing(Client(config.parse({"url": redis_server.url}))) as client:
        plan = plan_import(client, Folder(folder))
        with pytest.raises(Stopped):
            plan.carry_out(client, stop_at(2))
        assert reader.queries() == [], "it is found when all of it is there"
        plan = plan_import(client, Folder(folder))
        assert (plan.there, len(plan.missing)) == (2, 2)
        plan.carry_out(client)
    assert rows_of(reader) == before
    assert planted.partitions == 4


@pytest.mark.usefixtures("planted")
def test_ctrl_c_leaves_what_can_be_gone_on_with(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    """Both commands, as processes that are interrupted again and again as they get on."""
    before = rows_of(reader)

    def files() -> int:
        return sum(path.is_file() for path in folder.rglob("*"))

    export = ["export", "flights", "--to", str(folder), "--file-bytes", "500"]
    interrupt_again_and_again([*export, "--url", redis_server.url], files)
    raw.flushdb()
    restored = ["import", str(folder), "--yes", "--force", "--url", redis_server.url]
    interrupt_again_and_again(restored, raw.dbsize)
    assert rows_of(reader) == before
    left = [key for key in raw.keys("*:s:*") if raw.ttl(key) == -1]
    assert len(left) == 4, "what was staged is gone, or will be"


def interrupt_again_and_again(words: list[str], done: Callable[[], int]) -> None:
    """Run a command until it ends; each time Ctrl-C strikes when a little more is done."""
    for more in (1, 4):
        wanted = done() + more
        with subprocess.Popen(
            [sys.executable, "-m", "redis_state", *words],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            while process.poll() is None:
                if done() >= wanted:
                    process.send_signal(signal.SIGINT)
                    break
            _, told = process.communicate()
        assert process.returncode in (0, 130, -signal.SIGINT), told
        if process.returncode == 0:
            return
    assert main(words) == 0


@pytest.mark.usefixtures("planted")
def test_two_imports_at_once(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    before = rows_of(reader)
    reader.export("flights", folder)
    raw.flushdb()
    failed: list[BaseException] = []
    start = threading.Barrier(3)

    def work() -> None:
        try:
            with closing(Client(config.parse({"url": redis_server.url}))) as client:
                plan = plan_import(client, Folder(folder))
                start.wait()
                plan.carry_out(client)
        except BaseException as error:  # noqa: BLE001  # told in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert rows_of(reader) == before
    assert len(raw.keys("*:s:*")) == 4, "what the slower ones staged is gone"


def test_what_redis_has_is_never_replaced(
    planted: Planted, redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    reader.export("flights", folder, at=1)
    planted.drop(0, f"d:1:{uid(1)}")
    before = {key: raw.dump(key) for key in raw.keys("*")}
    with pytest.raises(StateError, match="existing state is never replaced"):
        imported(redis_server, folder)
    assert {key: raw.dump(key) for key in raw.keys("*")} == before


@pytest.mark.usefixtures("planted")
def test_an_export_of_another_timeline(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path, tmp_path: Path
) -> None:
    reader.export("flights", folder)
    raw.flushdb()
    checkpoint = plant_checkpoint(tmp_path, batches=VERSIONS)
    batch = str(VERSIONS - 1)
    later = raw.time()[0] * 1000 + 60_000
    (checkpoint / "offsets" / batch).write_text(f'v1\n{{"batchTimestampMs":{later}}}\n')
    with pytest.raises(StateError, match="planned again after the export was made"):
        imported(redis_server, folder, checkpoint=checkpoint)
    (checkpoint / "offsets" / batch).write_text('v1\n{"batchTimestampMs":1}\n')
    ids = json.dumps({"stateUniqueIds": {"0": [[uid(9)]] * 4}})
    (checkpoint / "commits" / batch).write_text(f"v2\n{ids}")
    with pytest.raises(StateError, match="names other attempts"):
        imported(redis_server, folder, checkpoint=checkpoint)
    with pytest.raises(FormatError, match="of another checkpoint"):
        imported(redis_server, folder, checkpoint=checkpoint, marker_gen="f" * 32)
    with pytest.raises(UsageError, match="belongs to its checkpoint folder"):
        imported(redis_server, folder, name="copy")
    assert raw.dbsize() == 0
    ids = json.dumps({"stateUniqueIds": {"0": [[uid(VERSIONS)]] * 4}})
    (checkpoint / "commits" / batch).write_text(f"v2\n{ids}")
    imported(redis_server, folder, checkpoint=checkpoint)


@pytest.mark.usefixtures("planted")
def test_too_little_memory(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    reader.export("flights", folder)
    raw.flushdb()
    raw.config_set("maxmemory", raw.info("memory")["used_memory"] + 2_000)
    assert main(["import", str(folder), "--url", redis_server.url]) == 1
    with pytest.raises(FullError, match=r"of memory in Redis, and [\d,]+ are free"):
        imported(redis_server, folder)
    raw.config_set("maxmemory", 0)
    assert raw.dbsize() == 0


@pytest.mark.usefixtures("planted")
def test_the_rights_of_a_job_are_enough(
    redis_server: RedisServer,
    raw: Any,
    reader: Reader,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = raw.info()["redis_version"]
    for user, role in (("job", Role.JOB), ("looker", Role.READER)):
        raw.execute_command("ACL", "SETUSER", user, *rules(role, version=version), "on", ">secret")
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    url = ["--url", redis_server.url]
    assert main(["export", "flights", "--to", str(folder), *url, "--username", "looker"]) == 0
    before = rows_of(reader)
    raw.flushdb()
    assert main(["import", str(folder), *url, "--username", "job", "--yes"]) == 0
    assert rows_of(reader) == before


def cart(server: RedisServer, name: str = "cart") -> StateStoreProvider:
    id_ = redis_state.StateStoreProviderId(redis_state.StateStoreId(name, 0, 0))
    return StateStoreProvider(id_, config=server.url)


def test_a_store_of_python_and_a_copy_of_it(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    with closing(cart(redis_server)) as provider:
        store = provider.get_store(0)
        for n in range(300):
            store.put(("user", n), {"n": n})
        version = store.commit()
        provider.get_store(version).abort()
        reader.export("cart", folder)
        plan = imported(redis_server, folder, name="copy")
        assert plan.gen != plan.export.gen
        store = provider.get_store(version)
        store.put("more", 1)
        store.commit()
    assert imported(redis_server, folder, name="copy").there == 1
    assert dict(reader.query("copy").operator().items())[("user", 7)] == {"n": 7}
    with closing(cart(redis_server, "copy")) as provider:
        store = provider.get_store(version)
        assert store.get(("user", 7)) == {"n": 7}
        store.put(("user", 7), "changed")
        provider.get_store(store.commit()).abort()
    assert reader.query("cart").operator().get(("user", 7)) == {"n": 7}
    assert imported(redis_server, folder).there == 1
    raw.flushdb()
    imported(redis_server, folder)
    with closing(cart(redis_server)) as provider:
        assert provider.latest() == version
        assert provider.get_read_store(version).get(("user", 299)) == {"n": 299}


def test_a_name_that_was_begun_anew(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    for _ in range(2):
        with closing(cart(redis_server)) as provider:
            store = provider.get_store(0)
            store.put("k", 1)
            provider.get_store(store.commit()).abort()
        if not folder.exists():
            reader.export("cart", folder)
            raw.flushdb()
    before = {key: raw.dump(key) for key in raw.keys("*")}
    with pytest.raises(StateError, match="begun anew, under another id"):
        imported(redis_server, folder)
    with pytest.raises(UsageError, match="no batches of Spark"):
        imported(redis_server, folder, name="other", checkpoint=folder)
    assert {key: raw.dump(key) for key in raw.keys("*")} == before
    imported(redis_server, folder, name="other")
