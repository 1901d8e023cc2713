"""Web server of `redis-state exporter`.

One event loop serves all clients, and one thread computes the responses. A client cannot block
either: each of its steps has a deadline, and the clients are bounded (`redis_state.accepting`).
"""

from __future__ import annotations

import asyncio
import http.client
import io
import logging
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from prometheus_client import make_wsgi_app

from redis_state.accepting import CLIENT_S, CONNECTIONS_MAX, Acceptor

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

HEAD_BYTES_MAX = 16 * 1024
HEALTH_PATH = "/healthy"
_WORDS = 3
_BREAKS = (b"\r\n\r\n", b"\n\n")
_LOG = logging.getLogger("redis_state.exporter")

Environ = dict[str, str]
_Answer = Callable[[Environ], "asyncio.Future[bytes]"]


class MetricsServer:
    """Server that listens once it is created, and responds while `run` is running.

    Args:
        port: 0 means any free one.
        cert_file: PEM file of the certificate for TLS; `key_file` has its private key.
        client_s: Seconds in which a client completes each of its steps: the TLS handshake, the
            head of its request, and reading the response.
        clients_max: How many clients may be connected at once.

    Raises:
        OSError: The address cannot be opened, or a file cannot be read.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        address: str,
        port: int,
        *,
        cert_file: str | None = None,
        key_file: str | None = None,
        client_s: float = CLIENT_S,
        clients_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._tls: ssl.SSLContext | None = None
        if cert_file is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(cert_file, key_file)
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        self._listening = socket.create_server(found[4][:2], family=found[0])
        self._app = make_wsgi_app(registry)
        # Requests of clients that left stay queued until their turn: hence twice the bound.
        self._asked: queue.Queue[tuple[Environ, Future[bytes]] | None] = queue.Queue(
            2 * clients_max
        )
        self.acceptor = Acceptor(
            self._listening,
            lambda: _ScrapeClient(self._answer, client_s),
            tls=self._tls,
            handshake_s=client_s,
            connections_max=clients_max,
        )
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()

    @property
    def server_port(self) -> int:
        """Port that the server listens on."""
        port: int = self._listening.getsockname()[1]
        return port

    def run(self) -> None:
        """Responds until `stop` is called."""
        threading.Thread(target=self._work, name="redis-state-metrics", daemon=True).start()
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._listening.close()
            self._loop.close()

    def stop(self) -> None:
        """Ends `run`; called once, from any thread."""
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _serve(self) -> None:
        self.acceptor.start()
        await self._stopped.wait()
        await self.acceptor.stop()
        await self.acceptor.drop()

    def _answer(self, environ: Environ) -> asyncio.Future[bytes]:
        future: Future[bytes] = Future()
        if environ["PATH_INFO"] == HEALTH_PATH:
            # Does not depend on Redis: a restart of the exporter would not bring Redis back.
            future.set_result(_message(HTTPStatus.OK))
            return asyncio.wrap_future(future, loop=self._loop)
        try:
            self._asked.put_nowait((environ, future))
        except queue.Full:
            future.set_result(_message(HTTPStatus.SERVICE_UNAVAILABLE))
        return asyncio.wrap_future(future, loop=self._loop)

    def _work(self) -> None:
        """Computes responses one by one; each waits for Redis no longer than its deadline."""
        while True:
            asked = self._asked.get()
            if asked is None:
                return
            environ, future = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(_made_by(self._app, environ))
                except Exception:  # noqa: BLE001  # the next client gets an answer in any case
                    _LOG.exception("a request could not be answered")
                    future.set_result(_message(HTTPStatus.INTERNAL_SERVER_ERROR))


class _ScrapeClient(asyncio.Protocol):
    """Connection for one request and its response."""

    def __init__(self, answer: _Answer, client_s: float) -> None:
        self.lost = asyncio.Event()
        self._answer = answer
        self._client_s = client_s
        self._head = bytearray()
        self._asked: asyncio.Future[bytes] | None = None
        self._late: asyncio.TimerHandle | None = None

    @property
    def waits_for_client(self) -> bool:
        return self._asked is None or self._asked.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._expect()

    def data_received(self, data: bytes) -> None:
        if self._asked is not None or self._transport.is_closing():
            return
        begin = max(0, len(self._head) - len(_BREAKS[0]))
        self._head += data
        if any(self._head.find(one, begin) >= 0 for one in _BREAKS):
            self._ask()
        elif len(self._head) > HEAD_BYTES_MAX:
            self._send(_message(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def eof_received(self) -> bool:
        # A client that closed its sending side may still read; TLS cannot be closed by half.
        plain = self._transport.get_extra_info("sslcontext") is None
        return plain and self._asked is not None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the base's
        self._rest()
        if self._asked is not None:
            self._asked.cancel()
        self._transport.close()
        self.lost.set()

    def _ask(self) -> None:
        try:
            environ = _environ_of(bytes(self._head))
        except (ValueError, http.client.HTTPException):
            self._send(_message(HTTPStatus.BAD_REQUEST))
            return
        self._rest()
        self._transport.pause_reading()
        self._asked = self._answer(environ)
        self._asked.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[bytes]) -> None:
        if not answer.cancelled():
            self._send(answer.result())

    def _send(self, answer: bytes) -> None:
        self._rest()
        self._transport.write(answer)
        self._transport.close()
        self._expect()

    def _expect(self) -> None:
        """Starts the deadline for the next step of the client."""
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(self._client_s, self._transport.abort)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _environ_of(head: bytes) -> Environ:
    """Returns the WSGI environment of a request, as far as the Prometheus client reads it.

    Raises:
        ValueError: The first line is malformed.
        http.client.HTTPException: There are too many header lines, or too long ones.
    """
    line, _, rest = head.partition(b"\n")
    words = line.decode("latin-1").split()
    if len(words) != _WORDS or not words[2].startswith("HTTP/1."):
        raise ValueError("the first line is not a request")
    path, _, query = words[1].partition("?")
    headers = http.client.parse_headers(io.BytesIO(rest))
    environ = {"REQUEST_METHOD": words[0], "PATH_INFO": path, "QUERY_STRING": query}
    for name in ("Accept", "Accept-Encoding"):
        values = headers.get_all(name)
        if values:
            environ[f"HTTP_{name.upper().replace('-', '_')}"] = ",".join(values)
    return environ


def _made_by(app: Callable[..., Iterable[bytes]], environ: Environ) -> bytes:
    begun: list[tuple[str, Iterable[tuple[str, str]]]] = []

    def start_response(status: str, headers: Iterable[tuple[str, str]]) -> None:
        begun.append((status, headers))

    body = b"".join(app(dict[str, Any](environ), start_response))
    status, headers = begun[0]
    return _response(status, dict(headers), body)


def _message(status: HTTPStatus) -> bytes:
    text = f"{status.phrase}\n".encode()
    return _response(f"{status.value} {status.phrase}", {"Content-Type": "text/plain"}, text)


def _response(status: str, headers: Mapping[str, str], body: bytes) -> bytes:
    sent = {**headers, "Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
