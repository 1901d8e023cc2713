"""The client with a server that refuses, is down, or is not the expected one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config
from redis_state.backend.client import Client
from redis_state.backend.script import Command, script
from redis_state.backend.transport import ServerTransport
from redis_state.errors import ConfigError, FullError, Kind, RedisStateError, UnavailableError
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer, free_port


@contextmanager
def _client(url: str, *, clock: ManualClock | None = None, **options: Any) -> Iterator[Client]:
    options = {"deadline": "2s", **options}
    parsed = config.parse({"url": url, **options})
    with closing(Client(parsed, clock=clock or ManualClock())) as client:
        yield client


def _ping(url: str, **options: Any) -> list[Any]:
    with _client(url, **options) as client:
        return client.call("greeting the server", [("PING",)])


def _refusal(url: str, **options: Any) -> RedisStateError:
    with pytest.raises(RedisStateError) as caught:
        _ping(url, **options)
    for secret in ("wrong-secret", "right-secret"):
        assert secret not in str(caught.value)
    return caught.value


def test_replies_are_bytes_and_only_the_command_is_sent(redis_server: RedisServer) -> None:
    with redis_server.client() as raw:
        raw.config_resetstat()
    with _client(redis_server.url) as client:
        sent = client.call("writing", [("SET", b"\xff", b"\x00\xfe"), ("GET", b"\xff")])
        (stats,) = client.call("counting", [("INFO", "commandstats")])
    assert sent == [True, b"\x00\xfe"]
    # Redis 6.2 counts `CONFIG RESETSTAT` under the command, later servers under the subcommand.
    counted = {name.partition("|")[0] for name in stats}
    assert counted == {"cmdstat_config", "cmdstat_set", "cmdstat_get"}


def test_wrong_or_missing_password_raises_permission(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(password="right-secret")
    assert _ping(server.url, password="right-secret") == [True]
    for options in ({"password": "wrong-secret"}, {}):
        error = _refusal(server.url, **options)
        assert isinstance(error, ConfigError)
        assert error.kind is Kind.PERMISSION


def test_missing_right_is_named(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    with server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "dash", "on", ">right-secret", "~*", "+get")
    error = _refusal(server.url, username="dash", password="right-secret")
    assert error.kind is Kind.PERMISSION
    assert "ping" in str(error)


def test_missing_database_raises_config(redis_server: RedisServer) -> None:
    error = _refusal(redis_server.url.removesuffix("/0") + "/99")
    assert isinstance(error, ConfigError)
    assert "database" in str(error).lower()


def test_tls_to_a_plain_port_advises_a_redis_url(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("redis://", "rediss://")
    error = _refusal(url, socket_timeout="200ms", deadline="1000ms")
    assert isinstance(error, UnavailableError)
    assert "use a redis:// URL" in str(error)


def test_plain_to_a_tls_port_advises_a_rediss_url(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(tls=True)
    error = _refusal(server.url.replace("rediss://", "redis://"))
    assert isinstance(error, UnavailableError)
    assert "rediss://" in str(error)


def test_tls_connects_with_the_authority_and_fails_without_it(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(tls=True)
    assert server.certificates is not None
    assert _ping(server.url, tls_ca_file=str(server.certificates.authority)) == [True]
    error = _refusal(server.url)
    assert isinstance(error, ConfigError)
    assert "certificate" in str(error)


def test_missing_certificate_file_raises_config(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("redis://", "rediss://")
    error = _refusal(url, tls_ca_file="missing.pem")
    assert isinstance(error, ConfigError)


def test_connection_refused_raises_unavailable_at_the_deadline() -> None:
    clock = ManualClock()
    error = _refusal(f"redis://127.0.0.1:{free_port()}", clock=clock, deadline="60s")
    assert isinstance(error, UnavailableError)
    assert error.retryable
    assert sum(clock.slept_s) == pytest.approx(60)
    assert max(clock.slept_s) <= 2
    assert clock.slept_s[0] <= 0.05


def test_missing_socket_is_named(tmp_path: Path) -> None:
    error = _refusal(f"unix://{tmp_path}/none", clock=ManualClock())
    assert "there is no such socket" in str(error)


@pytest.mark.parametrize("name", ["none", "."])
@pytest.mark.parametrize("option", [{"tls.caFile"}, {"tls.certFile", "tls.keyFile"}])
def test_unreadable_file_of_certificates_is_named(
    redis_server: RedisServer, tmp_path: Path, option: set[str], name: str
) -> None:
    files = dict.fromkeys(option, str(tmp_path / name))
    error = _refusal(redis_server.url.replace("redis:", "rediss:"), clock=ManualClock(), **files)
    assert isinstance(error, ConfigError)
    assert f"{tmp_path / name} is not a file that this user may read" in str(error)


def test_full_server_raises_full(redis_server: RedisServer) -> None:
    with redis_server.client() as raw:
        raw.config_set("maxmemory", 1)
        with _client(redis_server.url) as client, pytest.raises(FullError):
            client.call("writing", [("SET", "a", "b")])


def test_restarted_server_is_reconnected(redis_server: RedisServer) -> None:
    class Reviver(ManualClock):
        def sleep_s(self, seconds: float) -> None:
            super().sleep_s(seconds)
            if len(self.slept_s) == 3:
                redis_server.restart()

    with _client(redis_server.url, clock=Reviver(), deadline="60s") as client:
        assert client.call("greeting", [("PING",)]) == [True]
        redis_server.kill()
        assert client.call("greeting", [("PING",)]) == [True]


def test_unknown_scripts_are_loaded_in_the_same_round_trip(redis_server: RedisServer) -> None:
    keys = ["{x:0}:m", "{x:1}:m"]
    commands = script("open").many([(key, ("", "opened", "")) for key in keys])
    with _client(redis_server.url) as client:
        for _ in range(2):
            assert client.call("opening", commands) == [[b"EMPTY"], [b"EMPTY"]]
            with redis_server.client() as raw:
                raw.script_flush()
        assert client.round_trips == 2


def test_closed_connection_is_retried() -> None:
    """The connection is lost after the command was sent; a repetition gets the answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    answers = [b"", b"+PONG\r\n"]

    def serve() -> None:
        for answer in answers:
            with listener.accept()[0] as peer:
                peer.recv(4096)
                peer.sendall(answer)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    with closing(listener):
        assert _ping(f"redis://127.0.0.1:{listener.getsockname()[1]}") == [True]
        server.join(10)
    assert not server.is_alive()


def test_rotated_password_is_read_from_its_file(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = start_redis(password="first-secret")
    file = tmp_path / "password"
    file.write_text("first-secret\n")
    with _client(server.url, passwordFile=str(file)) as client, server.client() as admin:
        assert client.call("greeting the server", [("PING",)]) == [True]
        admin.config_set("requirepass", "right-secret")
        admin.execute_command("CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal")
        file.unlink()
        with pytest.raises(ConfigError, match="passwordFile"):
            client.call("greeting the server", [("PING",)])
        file.write_text("right-secret\n")
        assert client.call("greeting the server", [("PING",)]) == [True]


def test_busy_connection_outlives_idle_ones(redis_server: RedisServer) -> None:
    replies: list[Any] = []
    with _client(redis_server.url) as client, redis_server.client() as other:

        def wait_for_it() -> None:
            replies.extend(client.call("waiting", [("BLPOP", "queue", "30")]))

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        while not any(one["cmd"] == "blpop" for one in other.client_list()):
            pass
        client.close()
        other.rpush("queue", "came")
        waiting.join(30)
        assert replies == [(b"queue", b"came")]
        assert client.round_trips == 1


def test_interrupt_between_replies_mixes_up_no_replies(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two replies of a pipeline, while the second one is still to come."""
    parse = redis.client.Pipeline.parse_response
    read: list[Any] = []

    def interrupted(self: Any, *args: Any, **options: Any) -> Any:
        if read:
            raise KeyboardInterrupt
        read.append(parse(self, *args, **options))  # type: ignore[no-untyped-call]
        return read[-1]

    with _client(redis_server.url) as client:
        client.call("writing", [("SET", "name", "value")])
        with monkeypatch.context() as patch:
            patch.setattr(redis.client.Pipeline, "parse_response", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.call("waiting", [("GET", "name"), ("WAIT", "1", "200")])
        assert read == [b"value"]
        assert client.call("reading", [("GET", "name")]) == [b"value"]


def test_process_suspended_past_the_deadline_retries_once(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    exchange = ServerTransport.exchange
    sent: list[object] = []

    def stopped(self: ServerTransport, commands: Sequence[Command]) -> list[Any]:
        sent.append(commands)
        if len(sent) == 1:
            clock.now_s += 3600
            raise redis.ConnectionError("its connection was closed meanwhile")
        return exchange(self, commands)

    with _client(redis_server.url, clock=clock, deadline="60s") as client:
        monkeypatch.setattr(ServerTransport, "exchange", stopped)
        assert client.call("greeting the server", [("PING",)]) == [True]
    assert len(sent) == 2
