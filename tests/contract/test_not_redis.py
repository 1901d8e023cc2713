"""Calls to a port that does not speak Redis raise a named error with advice."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state import connect
from redis_state.errors import ConfigError, Kind, UnavailableError
from tests.support.tls import make_certificates

Handler = Callable[[socket.socket], None]
Start = Callable[[Handler], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers on loopback that give each connection to a function."""
    servers = []

    def begin(handle: Handler) -> int:
        class OneConnection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the client hung up, as it should
                    handle(self.request)

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), OneConnection)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return int(server.server_address[1])

    yield begin
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def speaks_http(connection: socket.socket) -> None:
    connection.recv(1024)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def says_nothing(connection: socket.socket) -> None:
    while connection.recv(1024):
        pass


def closes_at_once(connection: socket.socket) -> None:
    connection.close()


@pytest.fixture(scope="module")
def speaks_tls(tmp_path_factory: pytest.TempPathFactory) -> Handler:
    made = make_certificates(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)

    def handle(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1024)

    return handle


def read(url: str, **options: Any) -> None:
    with connect(url, deadline="1s", socket_timeout="100ms", **options) as reader:
        reader.queries()


@pytest.mark.parametrize("options", [{}, {"username": "joe", "password": "geheim"}])
def test_http_server_raises_config(start: Start, options: dict[str, object]) -> None:
    port = start(speaks_http)
    with pytest.raises(ConfigError) as caught:
        read(f"redis://127.0.0.1:{port}/0", **options)
    assert caught.value.kind is Kind.CONFIG
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "is not Redis" in str(caught.value)
    assert "Check host and port" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_tls_server_advises_a_rediss_url(start: Start, speaks_tls: Handler) -> None:
    port = start(speaks_tls)
    with pytest.raises((ConfigError, UnavailableError)) as caught:
        read(f"redis://127.0.0.1:{port}/0")
    assert "use a rediss:// URL" in str(caught.value)


def test_rediss_url_to_a_server_without_tls_raises_config(start: Start) -> None:
    port = start(speaks_http)
    with pytest.raises(ConfigError, match="does not speak TLS on this port"):
        read(f"rediss://127.0.0.1:{port}/0")


def test_silent_server_raises_unavailable(start: Start) -> None:
    port = start(says_nothing)
    with pytest.raises(UnavailableError) as caught:
        read(f"redis://127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "TimeoutError" in str(caught.value)


def test_closed_connections_raise_unavailable(start: Start) -> None:
    port = start(closes_at_once)
    with pytest.raises(UnavailableError) as caught:
        read(f"redis://127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "Check that the server runs" in str(caught.value)
