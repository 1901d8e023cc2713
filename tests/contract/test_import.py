"""`redis-state import`: what is refused, interrupted, done twice; and stores of Python."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state import config, keys
from redis_state.acl import Role, rules
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.config import PASSWORD_VARIABLE
from redis_state.errors import FormatError, FullError, StateError, UsageError
from redis_state.exports import plan_import
from redis_state.exports.folder import ExportFolder
from redis_state.exports.layout import MANIFEST
from redis_state.exports.sealed import read_sealed, sealed
from redis_state.files import folder_at
from redis_state.live import Reader
from redis_state.store.provider import StateStoreProvider
from tests.contract.export_support import (
    SEED,
    VERSIONS,
    Stopped,
    folder,
    imported,
    planted,
    raw,
    rows_of,
    stop_at,
)
from tests.contract.planting import GEN, Planted, plant_checkpoint, uid
from tests.support.redis_server import RedisServer

__all__ = ["folder", "planted", "raw"]


def test_damaged_file_is_found_before_anything_is_sent(
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
def test_hostile_manifest_raises_format(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path, what: str
) -> None:
    reader.export("flights", folder)
    raw.flushdb()
    content = read_sealed(ExportFolder(folder), "manifest.json")
    HOSTILE[what](content)
    (folder / "manifest.json").write_bytes(sealed(content))
    with pytest.raises(FormatError):
        imported(redis_server, folder)
    assert raw.dbsize() == 0


@pytest.mark.usefixtures("planted")
def test_wrong_digest_raises_and_publishes_nothing(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    """Staged, but never visible."""
    reader.export("flights", folder)
    raw.flushdb()
    content = read_sealed(ExportFolder(folder), "manifest.json")
    content["stores"][0]["partitions"][2]["digest"] = "0" * 32
    (folder / "manifest.json").write_bytes(sealed(content))
    with pytest.raises(FormatError, match="do not match the counts of the manifest"):
        imported(redis_server, folder)
    assert {key.decode()[-2:] for key in raw.keys("*:m")} == {":m"}
    assert len(raw.keys("*:m")) == 2
    assert not raw.exists(keys.query(GEN))


def test_interrupted_import_is_resumed(
    planted: Planted, redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    before = rows_of(reader)
    reader.export("flights", folder)
    raw.flushdb()
    with closing(Client(config.parse({"url": redis_server.url}))) as client:
        plan = plan_import(client, ExportFolder(folder))
        with pytest.raises(Stopped):
            plan.carry_out(client, stop_at(2))
        assert reader.queries() == [], "it is found when all of it is there"
        plan = plan_import(client, ExportFolder(folder))
        assert (plan.there, len(plan.missing)) == (2, 2)
        plan.carry_out(client)
    assert rows_of(reader) == before
    assert planted.partitions == 4


@pytest.mark.usefixtures("planted")
def test_export_and_import_resume_after_ctrl_c(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    """Both commands, as processes that are interrupted again and again as they get on."""
    before = rows_of(reader)

    def files() -> int:
        return sum(path.is_file() for path in folder.rglob("*"))

    export = ["export", "flights", "--to", str(folder), "--file-bytes", "500"]
    whole = folder / MANIFEST
    interrupt_again_and_again([*export, "--url", redis_server.url], files, whole.is_file)
    raw.flushdb()
    restored = ["import", str(folder), "--yes", "--force", "--url", redis_server.url]
    interrupt_again_and_again(restored, raw.dbsize)
    assert rows_of(reader) == before
    left = [key for key in raw.keys("*:s:*") if raw.ttl(key) == -1]
    assert len(left) == 4, "what was staged is gone, or will be"


def interrupt_again_and_again(
    words: list[str], done: Callable[[], int], is_whole: Callable[[], bool] = bool
) -> None:
    """Runs a command until it ends; each time Ctrl-C strikes when a little more is done."""
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
        # Ctrl-C may strike when all is done, and the process has only to end.
        if process.returncode == 0 or is_whole():
            return
    assert main(words) == 0


@pytest.mark.usefixtures("planted")
def test_concurrent_imports_restore_the_state_once(
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
                plan = plan_import(client, ExportFolder(folder))
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


def test_import_never_replaces_existing_state(
    planted: Planted, redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    reader.export("flights", folder, at=1)
    planted.drop(0, f"d:1:{uid(1)}")
    before = {key: raw.dump(key) for key in raw.keys("*")}
    with pytest.raises(StateError, match="existing state is never replaced"):
        imported(redis_server, folder)
    assert {key: raw.dump(key) for key in raw.keys("*")} == before


@pytest.mark.usefixtures("planted")
def test_export_of_an_older_timeline_is_refused(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path, tmp_path: Path
) -> None:
    reader.export("flights", folder)
    raw.flushdb()
    checkpoint = plant_checkpoint(tmp_path, batches=VERSIONS)
    batch = str(VERSIONS - 1)
    later = raw.time()[0] * 1000 + 60_000
    (checkpoint / "offsets" / batch).write_text(f'v1\n{{"batchTimestampMs":{later}}}\n')
    with pytest.raises(StateError, match="planned again after the export was made"):
        imported(redis_server, folder, checkpoint=folder_at(str(checkpoint)))
    (checkpoint / "offsets" / batch).write_text('v1\n{"batchTimestampMs":1}\n')
    ids = json.dumps({"stateUniqueIds": {"0": [[uid(9)]] * 4}})
    (checkpoint / "commits" / batch).write_text(f"v2\n{ids}")
    with pytest.raises(StateError, match="names other attempts"):
        imported(redis_server, folder, checkpoint=folder_at(str(checkpoint)))
    with pytest.raises(FormatError, match="of another checkpoint"):
        imported(redis_server, folder, checkpoint=folder_at(str(checkpoint)), marker_gen="f" * 32)
    with pytest.raises(UsageError, match="belongs to its checkpoint folder"):
        imported(redis_server, folder, name="copy")
    assert raw.dbsize() == 0
    ids = json.dumps({"stateUniqueIds": {"0": [[uid(VERSIONS)]] * 4}})
    (checkpoint / "commits" / batch).write_text(f"v2\n{ids}")
    # Where attempts are named, nobody's clock counts.
    (checkpoint / "offsets" / batch).write_text(f'v1\n{{"batchTimestampMs":{later}}}\n')
    imported(redis_server, folder, checkpoint=folder_at(str(checkpoint)))


def test_newest_batch_of_the_lost_state_is_reset_by_the_import(
    planted: Planted, redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    """The first attempt at the import may have ended when all partitions existed."""
    field = "batch:0:default"
    raw.hset(keys.query(GEN), field, f"{VERSIONS - 1} 0 4 old shuffle")
    reader.export("flights", folder)
    raw.hset(keys.query(GEN), field, f"{VERSIONS + 3} 0 4 old shuffle")
    for partition in range(planted.partitions):
        raw.delete(keys.meta(planted.id(partition)))
    with closing(Client(config.parse({"url": redis_server.url}))) as client:
        with pytest.raises(Stopped):
            plan_import(client, ExportFolder(folder)).carry_out(client, stop_at(planted.partitions))
        assert plan_import(client, ExportFolder(folder)).missing == ()
    imported(redis_server, folder)
    expected = f"{VERSIONS - 1} 0 4 imported shuffle".encode()
    assert raw.hget(keys.query(GEN), field) == expected


@pytest.mark.usefixtures("planted")
def test_import_without_enough_memory_raises_full(
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
def test_import_needs_only_the_rights_of_a_job(
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


def test_python_store_is_imported_under_its_name_and_as_a_copy(
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


def test_name_in_use_again_is_refused(
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
    with pytest.raises(StateError, match="created anew with another id"):
        imported(redis_server, folder)
    with pytest.raises(UsageError, match="not batches of Spark"):
        imported(redis_server, folder, name="other", checkpoint=folder_at(str(folder)))
    assert {key: raw.dump(key) for key in raw.keys("*")} == before
    imported(redis_server, folder, name="other")


def test_copy_with_the_name_of_another_store_is_refused(
    redis_server: RedisServer, raw: Any, reader: Reader, folder: Path
) -> None:
    for name, partitions in (("cart", 1), ("other", 2)):
        for partition in range(partitions):
            id_ = redis_state.StateStoreProviderId(redis_state.StateStoreId(name, 0, partition))
            with closing(StateStoreProvider(id_, config=redis_server.url)) as provider:
                store = provider.get_store(0)
                store.put(name, partition)
                provider.get_store(store.commit()).abort()
    reader.export("other", folder)
    before = {key: raw.dump(key) for key in raw.keys("*")}
    with pytest.raises(StateError, match="another store has the name 'cart'"):
        imported(redis_server, folder, name="cart")
    assert {key: raw.dump(key) for key in raw.keys("*")} == before
