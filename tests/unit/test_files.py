"""Checkpoint files: addresses, an interrupted rewind, and what drivers get wrong."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from redis_state.config import parse
from redis_state.errors import ConfigError, RedisStateError, UnavailableError, UsageError
from redis_state.files import Folder, folder_at, read_storage_options, remote
from redis_state.files.open import options_at
from redis_state.files.remote import RemoteFiles
from redis_state.files.urls import options_of, place_of
from redis_state.places.declaring import places_by
from redis_state.recovery.marker import gen_of
from redis_state.recovery.rewind import plan_rewind
from tests.support.interruptions import Interrupted, interrupting

NEWEST = 4
TO_BATCH = 2
GEN = "0123456789abcdef0123456789abcdef"

# Hadoop's qualified path of each address, which the marker file has the hash of.
ADDRESSES = {
    "s3a://bucket/a/b": ("s3", "bucket/a/b", "s3a://bucket/a/b"),
    "s3://bucket/a/b/": ("s3", "bucket/a/b", "s3a://bucket/a/b"),
    "S3A://bucket/what?#%20": ("s3", "bucket/what?#%20", "s3a://bucket/what?#%20"),
    "gs://bucket/a//b": ("gcs", "bucket/a//b", "gs://bucket/a/b"),
    "abfss://box@name.dfs.core.windows.net/a": (
        "abfs",
        "box/a",
        "abfss://box@name.dfs.core.windows.net/a",
    ),
    "wasbs://box@name.blob.core.windows.net/a": (
        "abfs",
        "box/a",
        "wasbs://box@name.blob.core.windows.net/a",
    ),
    "hdfs://node:9000/a": ("webhdfs", "/a", "hdfs://node:9000/a"),
    "hdfs://node:8020/a": ("webhdfs", "/a", "hdfs://node/a"),
    "hdfs://node/a": ("webhdfs", "/a", "hdfs://node:8020/a"),
    "webhdfs://node:9870/a": ("webhdfs", "/a", "hdfs://node:8020/a"),
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_spark_address_is_parsed(address: str) -> None:
    protocol, path, _ = ADDRESSES[address]
    place = place_of(address)
    assert (place.protocol, place.path) == (protocol, path)


@pytest.mark.parametrize(
    "address",
    [one for one in ADDRESSES if ADDRESSES[one][0] in ("s3", "webhdfs")],
)
def test_spellings_include_hadoops(address: str) -> None:
    assert ADDRESSES[address][2] in folder_at(address).spellings()


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_local_address_opens_a_local_folder(prefix: str, tmp_path: Path) -> None:
    folder = folder_at(f"{prefix}{tmp_path}")
    assert str(folder) == str(tmp_path)
    assert f"file:{tmp_path}" in folder.spellings()
    assert folder.items() == []
    assert (folder / "none").items() is None
    assert (folder / "none").read("none") is None


def test_driver_options_are_derived_from_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "spark")
    found = options_of(place_of("hdfs://node:8020/a"), {})
    assert (found["host"], found["port"], found["user"]) == ("node", 9870, "spark")
    found = options_of(place_of("hdfs://cluster/a"), {"host": "node", "kerberos": True})
    assert (found["host"], found["kerberos"], "user" in found) == ("node", True, False)
    found = options_of(place_of("swebhdfs://node/a"), {})
    assert (found["port"], found["use_https"]) == (9871, True)
    found = options_of(place_of("abfss://box@name.dfs.core.windows.net/a"), {})
    assert (found["account_name"], found["anon"]) == ("name", False)
    assert "account_host" not in found
    found = options_of(place_of("abfss://box@name.dfs.core.chinacloudapi.cn/a"), {})
    assert found["account_host"] == "name.blob.core.chinacloudapi.cn"
    assert options_of(place_of("s3a://bucket/a"), {})["use_listings_cache"] is False


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3a:///a", "it names no bucket, container or host"),
        ("gs://bucket/a", "the package gcsfs is missing"),
        ("nonesuch://host/a", "Protocol not known: nonesuch"),
    ],
)
def test_invalid_address_raises_config(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        folder_at(address)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"pip install 'redis-state\[checkpoints\]' s3fs"):
        folder_at("s3a://bucket/a")
    assert folder_at(str(tmp_path)).items() == []


def test_a_wrong_option_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match="an option is wrong") as told:
        folder_at("hdfs://node/a", storage_options={"kerberos": True, "user": "hunter2"})
    assert "hunter2" not in str(told.value)


def test_port_of_hdfs_is_that_of_fsspecs_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "webhdfs", {"port": "50070", "host": "elsewhere"})
    at = options_of(place_of("hdfs://node:8020/a"), {}, fsspec.config.conf["webhdfs"])
    assert (at["host"], at["port"]) == ("node", "50070")
    at = options_of(place_of("webhdfs://node:99/a"), {}, fsspec.config.conf["webhdfs"])
    assert at["port"] == 99
    at = options_of(place_of("hdfs://node/a"), {"port": 7}, fsspec.config.conf["webhdfs"])
    assert at["port"] == 7


def test_storage_options_are_never_quoted(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text('{"secret": "hunter2"')
    with pytest.raises(ConfigError, match="it is not a JSON object") as told:
        read_storage_options(str(path))
    assert "hunter2" not in str(told.value)
    path.write_text('{"endpoint_url": "http://localhost"}')
    assert read_storage_options(str(path)) == {"endpoint_url": "http://localhost"}
    with pytest.raises(ConfigError, match="No such file"):
        read_storage_options(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "address",
    [
        "s3a://KEY:hunter2@bucket/segments",
        "s3a://KEY:hun/ter2@bucket/segments",
        "https://me:hunter2@host/segments",
        "https://me:hunter2@host:8080/segments",
        "ftp://me:hunter2@host/segments",
        "hdfs://me:hunter2@node:8020/segments",
        "abfss://box:hunter2@name.dfs.core.windows.net/segments",
    ],
)
def test_password_in_an_address_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(ConfigError, match="has a password") as told:
        folder_at(address)
    assert "hun" not in str(told.value)
    config = parse({"url": "redis://localhost", "history": "files", "placesFolder": address})
    with pytest.raises(ConfigError, match="has a password"):
        places_by(config)


@pytest.mark.parametrize(
    "address",
    [
        "abfss://box@name.dfs.core.windows.net/a",
        "hdfs://me@node:8020/a@b",
        "webhdfs://node:9870/a:b@c",
        "webhdfs://[::1]:9870/a@c",
        "/data/a:b@c",
        "file:///data/a:b@c",
    ],
)
def test_address_without_a_password_is_accepted(address: str) -> None:
    assert place_of(address).path


@pytest.mark.usefixtures("memory")
class TestRanges:
    """Ranges of a file of fsspec, whose drivers return an error in place of a range."""

    def read(self, *spans: tuple[int, int]) -> list[bytes] | None:
        return folder_at("memory://flights").read_ranges("one.seg", spans)

    def test_missing_file_has_no_ranges(self) -> None:
        assert self.read((0, 2), (4, 2)) is None

    def test_short_file_has_no_ranges(self) -> None:
        folder_at("memory://flights").write_pieces("one.seg", [b"abcdef"])
        assert self.read((0, 2), (4, 2)) == [b"ab", b"ef"]
        assert self.read((0, 2), (5, 2)) is None
        assert self.read((7, 2)) is None

    @pytest.mark.parametrize(
        ("error", "kind", "text"),
        [
            (PermissionError("denied"), ConfigError, "refuses access: denied"),
            (TimeoutError(), UnavailableError, "does not answer: TimeoutError"),
            (OSError(22, "The requested range is not satisfiable"), None, ""),
        ],
    )
    def test_error_in_place_of_a_range(
        self,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
        kind: type[RedisStateError] | None,
        text: str,
    ) -> None:
        def cat_file(*_: Any, **__: Any) -> bytes:
            raise error

        monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
        if kind is None:
            assert self.read((0, 2)) is None
            return
        with pytest.raises(kind, match=text):
            self.read((0, 2))


@pytest.fixture
def memory() -> Iterator[Any]:
    files = MemoryFileSystem()
    files.makedirs("/flights", exist_ok=True)
    yield files
    files.rm("/flights", recursive=True)


@pytest.fixture(params=["local", "memory"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """Batches 0 to 4 are committed, and batch 5 is planned; one that renames, one that does not."""
    if request.param == "local":
        folder = folder_at(str(tmp_path))
    else:
        request.getfixturevalue("memory")
        folder = folder_at("memory://flights")
    for log, newest in (("offsets", NEWEST + 1), ("commits", NEWEST)):
        for batch in range(newest + 1):
            folder.files.create((folder / log / str(batch)).path, f"{log} {batch}".encode())
            if folder.files.renames:
                folder.files.create((folder / log / f".{batch}.crc").path, b"crc")
        folder.files.create((folder / log / f".{newest + 1}.8a0f.tmp").path, b"half")
    return folder


def left(folder: Folder, log: str) -> list[int]:
    return sorted(int(item.name) for item in (folder / log).items() or () if item.name.isdecimal())


def content(folder: Folder) -> dict[str, bytes | None]:
    """Content of a folder and of all folders below."""
    found: dict[str, bytes | None] = {}
    for item in folder.items() or ():
        if item.is_folder:
            inside = content(folder / item.name)
            found |= {f"{item.name}/{name}": raw for name, raw in inside.items()}
        else:
            found[item.name] = folder.read(item.name)
    return found


@pytest.mark.parametrize("after", [True, False])
def test_killed_rewind_leaves_a_readable_checkpoint(checkpoint: Folder, *, after: bool) -> None:
    """Killed before or after each step, and finished by the same command."""
    before, steps = content(checkpoint), 0
    while True:
        plan = plan_rewind(interrupting(checkpoint, at=int(not after), after=after), TO_BATCH)
        try:
            plan.carry_out()
        except Interrupted:
            steps += 1
            planned, committed = left(checkpoint, "offsets"), left(checkpoint, "commits")
            assert planned == list(range(len(planned)))
            assert committed in (planned, planned[:-1]), "as a driver leaves it that ends"
            assert len(committed) > TO_BATCH
            continue
        break
    assert steps > NEWEST - TO_BATCH
    assert left(checkpoint, "offsets") == left(checkpoint, "commits") == [0, 1, 2]
    moved = content(checkpoint / "rewound-to-2.1")
    assert {**content(checkpoint), **moved}.items() >= before.items()
    assert (checkpoint / "rewound-to-2.2").items() is None


def test_error_of_what_is_written_is_none_of_the_file_system(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"begin"
        raise LookupError("a segment was replaced")

    with pytest.raises(LookupError, match="a segment was replaced"):
        folder_at(str(tmp_path)).write_pieces("one.seg", pieces())
    (tmp_path / "one.seg").unlink()
    (tmp_path / "one.seg").mkdir()
    with pytest.raises(ConfigError, match="IsADirectoryError"):
        folder_at(str(tmp_path)).write_pieces("one.seg", [b"begin"])


def test_second_rewind_to_a_batch_gets_its_own_folder(checkpoint: Folder) -> None:
    plan_rewind(checkpoint, TO_BATCH).carry_out()
    for log in ("offsets", "commits"):
        path = (checkpoint / log / str(TO_BATCH + 1)).path
        checkpoint.files.create(path, b"the same batch, at another time")
    assert plan_rewind(checkpoint, TO_BATCH).folder == "rewound-to-2.2"


def test_concurrent_rewinds_do_not_overwrite_files(checkpoint: Folder) -> None:
    first, second = (plan_rewind(checkpoint, TO_BATCH) for _ in range(2))
    first.carry_out()
    with pytest.raises(UsageError, match="Another command or the query uses this folder"):
        second.carry_out()
    checkpoint.files.create((checkpoint / "offsets/9").path, b"one")
    checkpoint.files.create((checkpoint / "aside/9").path, b"another")
    with pytest.raises(UsageError, match="exists with other bytes"):
        checkpoint.move("offsets/9", "aside/9")
    assert checkpoint.read("offsets/9") == b"one"


def test_marker_file_on_another_file_system_is_checked(memory: Any) -> None:
    address = "memory://flights"
    digest = hashlib.sha256(f"{address}/state".encode()).hexdigest()
    marker = {"format": 1, "gen": GEN, "path": digest}
    memory.pipe_file("/flights/state/_redis_state", json.dumps(marker).encode())
    assert gen_of(folder_at(address)) == GEN
    marker["path"] = hashlib.sha256(b"memory://other/state").hexdigest()
    memory.pipe_file("/flights/state/_redis_state", json.dumps(marker).encode())
    with pytest.raises(RedisStateError, match="CHECKPOINT_MOVED_OR_COPIED"):
        gen_of(folder_at(address))


class Failing(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A file system that gives out what drivers do give out."""

    protocol = "failing"
    cut = b""
    error: Exception | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("failing://", "memory://"))
        return stripped

    def ls(self, path: str, detail: bool = True, **settings: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().ls(path, detail=detail, **settings)

    def cat_file(self, path: str, *arguments: Any, **settings: Any) -> Any:
        return self.cut or super().cat_file(path, *arguments, **settings)


@pytest.fixture
def failing(memory: Any) -> Iterator[type[Failing]]:
    fsspec.register_implementation("failing", Failing, clobber=True)
    memory.pipe_file("/flights/offsets/0", b"v1")
    yield Failing
    Failing.cut, Failing.error = b"", None


def test_error_page_is_not_read_as_a_file(failing: type[Failing]) -> None:
    failing.cut = b"<html>502 Bad Gateway</html>"
    with pytest.raises(ConfigError, match="it has 2 bytes, but 28 were read"):
        folder_at("failing://flights").read("offsets/0")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            PermissionError("Access Denied"),
            ConfigError,
            "the file system refuses access: Access Denied",
        ),
        (ConnectionResetError(), UnavailableError, "does not answer: ConnectionResetError"),
        (TimeoutError(), UnavailableError, "does not answer: TimeoutError"),
        (ValueError("token=hunter2"), ConfigError, "listing failing://flights; ValueError"),
    ],
)
def test_driver_error_is_wrapped(
    failing: type[Failing], error: Exception, kind: type[RedisStateError], said: str
) -> None:
    failing.error = error
    with pytest.raises(kind, match=said) as told:
        folder_at("failing://flights").items()
    assert "hunter2" not in str(told.value)


def test_storage_options_may_be_of_one_address() -> None:
    given = {
        "timeout": 1,
        "s3a://": {"key": "a", "timeout": 2},
        "s3a://other": {"key": "b"},
        "hdfs://": {"port": 9871},
    }
    assert options_at("s3a://bucket/flights", given) == {"timeout": 2, "key": "a"}
    assert options_at("s3a://other/flights", given) == {"timeout": 2, "key": "b"}
    assert options_at("hdfs://host/flights", given) == {"timeout": 1, "port": 9871}
    assert options_at("gs://bucket/flights", given) == {"timeout": 1}
    with pytest.raises(ConfigError, match="those of s3a:// are not"):
        options_at("gs://bucket/flights", {"s3a://": "key"})


def test_hdfs_keeps_a_connection_for_each_read_that_is_sent_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads = 24
    together = threading.Barrier(threads)

    class Node(BaseHTTPRequestHandler):
        """Answers when as many requests wait as are sent at once."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            together.wait(10)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_args: Any) -> None:
            """Writes nothing to the standard error of the tests."""

    class Server(ThreadingHTTPServer):
        request_queue_size = threads

    with Server(("127.0.0.1", 0), Node) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        session = RemoteFiles(place_of("hdfs://node/a"), {"user": "someone"})._fs.session
        url = f"http://127.0.0.1:{server.server_port}/"
        with caplog.at_level("WARNING"), ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(lambda _: session.get(url, timeout=10).content, range(threads)))
        session.close()
        server.shutdown()
    assert found == [b"ok"] * threads
    assert caplog.records == []


def test_driver_with_one_request_at_a_time_reads_ranges_in_threads() -> None:
    class Slow:
        """Answers when two requests wait."""

        def __init__(self) -> None:
            self.two = threading.Barrier(2)

        def cat_file(self, path: str, start: int, end: int) -> bytes:
            self.two.wait(10)
            if start == 4:
                raise FileNotFoundError(path)
            return b"%d-%d" % (start, end)

    files = RemoteFiles(place_of("hdfs://node/a"), {"user": "someone"})
    files._fs = Slow()
    assert files.read_ranges("/a/b", [(0, 2), (8, 1)]) == [b"0-2", b"8-9"]
    with pytest.raises(FileNotFoundError):
        files.read_ranges("/a/b", [(0, 2), (4, 1)])


def test_node_that_never_answers_raises_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"webhdfs://127.0.0.1:{server.getsockname()[1]}/flights"
        with pytest.raises(UnavailableError, match="does not answer"):
            folder_at(address).items()


def test_node_that_reads_slowly_has_more_time_than_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = threading.Event()

    class Node(BaseHTTPRequestHandler):
        """Reads nothing before a connection would have been given up."""

        def do_POST(self) -> None:
            never.wait(0.5)
            size = int(self.headers["Content-Length"])
            self.send_response(200 if len(self.rfile.read(size)) == size else 400)
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            """Writes nothing to the standard error of the tests."""

    monkeypatch.setattr(remote, "_CONNECT_S", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        session = RemoteFiles(place_of("hdfs://node/a"), {"user": "someone"})._fs.session
        # More than the buffers of the system take.
        found = session.post(f"http://127.0.0.1:{server.server_port}/", data=b"x" * (24 << 20))
        session.close()
        server.shutdown()
    assert found.status_code == 200
