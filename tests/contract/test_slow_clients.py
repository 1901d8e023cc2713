"""Exporter and dashboard where clients are slow, silent, many, or speak something else.

Each wait here ends with the server's next step, and is bounded only so that a failure ends.
"""

from __future__ import annotations

import gc
import select
import socket
import ssl
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from prometheus_client import CollectorRegistry, Gauge

from redis_state.accepting import Acceptor
from redis_state.cli.operate.metrics_server import HEAD_BYTES_MAX, MetricsServer
from redis_state.dashboard import server as dashboard
from tests.support.tls import Certificates, make_certificates
from tests.support.waiting import wait_until

LATE_S = 0.5
"""Deadline of a server that is waited for."""
NEVER_S = 600.0
"""Deadline of a server whose clients are let go for another reason, or never."""
BOUND_S = 60
MANY = 300
WHOLE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = "x" * (16 << 20)


@dataclass
class Board:
    """A server under test, and the ways to it."""

    port: int
    tls: ssl.SSLContext | None
    acceptors: Callable[[], Sequence[Acceptor]]

    @property
    def accepted(self) -> int:
        return sum(one.connections for one in self.acceptors())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=BOUND_S)

    def secured(self) -> socket.socket:
        """Returns a connection whose TLS handshake is done."""
        plain = self.connect()
        return (
            plain if self.tls is None else self.tls.wrap_socket(plain, server_hostname="localhost")
        )

    def scrape(self) -> str:
        scheme = "http" if self.tls is None else "https"
        address = f"{scheme}://localhost:{self.port}/metrics"
        with urllib.request.urlopen(address, context=self.tls, timeout=BOUND_S) as answer:
            return str(answer.read().decode())


Start = Callable[..., AbstractContextManager[Board]]


@contextmanager
def metrics(
    made: Certificates | None, *, client_s: float, clients_max: int = 100, text: str = ""
) -> Iterator[Board]:
    registry = CollectorRegistry()
    Gauge("large", "A long label.", ["text"], registry=registry).labels(text).set(1)
    Gauge("answered", "A metric.", registry=registry).set(1)
    files = {} if made is None else {"cert_file": str(made.certificate), "key_file": str(made.key)}
    server = MetricsServer(
        registry, "127.0.0.1", 0, client_s=client_s, clients_max=clients_max, **files
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Board(server.server_port, _trusting(made), lambda: [server.acceptor])
    finally:
        server.stop()
        thread.join()


@contextmanager
def pages(
    made: Certificates | None, *, client_s: float, clients_max: int = 100, text: str = ""
) -> Iterator[Board]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dashboard, "HEAD_S", client_s)
        patch.setattr(dashboard, "CONNECTIONS_MAX", clients_max)
        config = uvicorn.Config(
            partial(_answer, text), interface="asgi3", http=dashboard._TimedConnection,
            lifespan="off", log_config=None, loop="asyncio",
            h11_max_incomplete_event_size=HEAD_BYTES_MAX, timeout_keep_alive=600,
            ssl_certfile=None if made is None else str(made.certificate),
            ssl_keyfile=None if made is None else str(made.key),
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        config.load()
        server = dashboard._DashboardServer(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            try:
                yield Board(port, _trusting(made), lambda: server.acceptors)
            finally:
                server.should_exit = True
                thread.join()


async def _answer(text: str, _scope: Any, _receive: Any, send: Any) -> None:
    body = f"{text}answered 1.0\n".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def _trusting(made: Certificates | None) -> ssl.SSLContext | None:
    return None if made is None else ssl.create_default_context(cafile=str(made.authority))


@pytest.fixture(params=[metrics, pages], ids=["exporter", "dashboard"])
def serving(request: pytest.FixtureRequest) -> Start:
    start: Start = request.param
    return start


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Certificates | None:
    return make_certificates(tmp_path) if request.param else None


def rest_of(client: socket.socket) -> bytes:
    """Reads until the server ends the connection, in whatever way."""
    got = b""
    try:
        while chunk := client.recv(1 << 16):
            got += chunk
    except (ConnectionError, ssl.SSLError):
        pass
    return got


def trickle(client: socket.socket, what: bytes) -> bytes:
    """Send bytes one by one, as far as the server lets, and give what comes then."""
    for at in range(len(what)):
        if select.select([client], [], [], 0.01)[0]:
            break
        try:
            client.send(what[at : at + 1])
        except (ConnectionError, ssl.SSLError):
            return b""
    else:
        pytest.fail("the server took a head without an end")
    return rest_of(client)


def test_silent_clients_are_disconnected(serving: Start, made: Certificates | None) -> None:
    with serving(made, client_s=LATE_S) as board:
        with board.connect() as silent:
            assert rest_of(silent) == b""
        with board.secured() as silent:
            assert rest_of(silent) == b""
        assert "answered 1.0" in board.scrape()


def test_client_that_sends_its_head_byte_by_byte_is_disconnected(
    serving: Start, made: Certificates | None
) -> None:
    """Each byte comes in time; the head as a whole does not."""
    head = b"GET /metrics HTTP/1.1\r\nX: " + b"y" * (HEAD_BYTES_MAX // 2)
    with serving(made, client_s=LATE_S) as board, board.secured() as slow:
        assert trickle(slow, head) == b""


def test_endless_tls_handshake_is_disconnected(serving: Start, tmp_path: Path) -> None:
    with serving(make_certificates(tmp_path), client_s=LATE_S) as board:
        # The head of a TLS record of 512 bytes, and then its bytes one by one.
        with board.connect() as slow:
            assert trickle(slow, b"\x16\x03\x01\x02\x00" + b"\x01\x00\x01\xfc" + b"\0" * 507) == b""
        with board.connect() as other:
            other.sendall(WHOLE)
            rest_of(other)
        assert "answered 1.0" in board.scrape()


def test_client_that_never_reads_is_disconnected(serving: Start, made: Certificates | None) -> None:
    with serving(made, client_s=LATE_S, text=LARGE) as board, board.secured() as deaf:
        deaf.sendall(WHOLE)
        assert deaf.recv(1) == b"H"
        wait_until(lambda: board.accepted == 0, "the server to give the connection up")
        assert len(rest_of(deaf)) < len(LARGE)
        assert "answered 1.0" in board.scrape()


def test_many_clients_do_not_block_new_ones(serving: Start, made: Certificates | None) -> None:
    """All places are taken, no deadline passes, and each new client is answered."""
    with serving(made, client_s=NEVER_S, clients_max=50) as board, ExitStack() as held:
        threads = threading.active_count()
        for number in range(MANY):
            client = held.enter_context(board.connect())
            client.sendall((b"", b"G", WHOLE[:-2])[number % 3])
        for _ in range(3):
            assert "answered 1.0" in board.scrape()
        assert board.accepted <= 50
        assert threading.active_count() <= threads + 1


def test_idle_and_deaf_clients_do_not_block_new_ones(
    serving: Start, made: Certificates | None
) -> None:
    """They have sent whole requests: some read the answer and stay, some read nothing."""
    with serving(made, client_s=NEVER_S, clients_max=5, text=LARGE) as board, ExitStack() as held:
        for number in range(20):
            client = held.enter_context(board.secured())
            client.sendall(WHOLE)
            if number % 2:
                client.recv(1)
        assert "answered 1.0" in board.scrape()


def test_malformed_request_is_refused_at_once(serving: Start) -> None:
    with serving(None, client_s=NEVER_S) as board:
        for sent in (
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"\xff\xfe\0\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n",
            b"GET /" + b"x" * (4 * HEAD_BYTES_MAX),
            b"GET / HTTP/1.1\r\nX: " + b"y" * (4 * HEAD_BYTES_MAX),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            with board.secured() as odd, suppress(ConnectionError):
                odd.sendall(sent)
                first = odd.recv(12)
                assert first == b"" or first.startswith(b"HTTP/1.1 "), sent[:24]
        assert "answered 1.0" in board.scrape()


def test_connections_that_clients_reset_are_closed(
    serving: Start, made: Certificates | None
) -> None:
    """On Python 3.10, asyncio warns of each TLS transport that was not."""
    with serving(made, client_s=NEVER_S, text=LARGE) as board:
        for sent in (b"", WHOLE[:20], WHOLE):
            with board.secured() as gone:
                gone.sendall(sent)
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert "answered 1.0" in board.scrape()
    gc.collect()


@pytest.mark.parametrize("asked", ["OPTIONS", "POST", "HEAD"])
def test_other_methods_than_get_return_no_metrics(asked: str) -> None:
    with metrics(None, client_s=NEVER_S) as board, board.connect() as client:
        client.sendall(WHOLE.replace(b"GET", asked.encode()))
        answer = rest_of(client)
        assert answer.startswith(b"HTTP/1.1 200 " if asked == "OPTIONS" else b"HTTP/1.1 405 ")
        assert b"answered" not in answer


def test_client_with_a_half_closed_connection_is_answered() -> None:
    with metrics(None, client_s=NEVER_S) as board, board.connect() as client:
        client.sendall(WHOLE)
        client.shutdown(socket.SHUT_WR)
        assert b"answered 1.0" in rest_of(client)
