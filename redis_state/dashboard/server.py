"""Runs the dashboard until a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from redis_state.dashboard.app import application
from redis_state.dashboard.settings import Settings
from redis_state.dashboard.watch import Watch
from redis_state.errors import ConfigError
from redis_state.reader import Reader

CONNECTIONS_MAX = 100
HEAD_S = 10.0
"""Within which a connection has to send the head of a request."""

_HEAD_BYTES_MAX = 16 * 1024
_KEEP_ALIVE_S = 5
_END_S = 5


def serve(reader: Reader, settings: Settings, *, tell: Callable[[str], None]) -> None:
    """Answer browsers until SIGTERM or SIGINT.

    Args:
        tell: Is called with the address once it is open.

    Raises:
        ConfigError: The address cannot be opened, or the certificate cannot be read.
    """
    with Watch(reader, interval_s=settings.interval_s) as watch:
        config = uvicorn.Config(
            application(reader, watch, settings),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_END_S,
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            ssl_certfile=settings.cert_file,
            ssl_keyfile=settings.key_file,
        )
        _load(config, settings)
        server = uvicorn.Server(config)
        with closing(_listen(settings)) as listening, _ended_by_signals(server):
            tell(_address(settings, listening))
            server.run(sockets=[listening])


class _Connection(H11Protocol):
    """A connection that is closed if the head of a request is not there in time.

    uvicorn waits for one as long as the client likes, and counts the connection meanwhile.
    """

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            self._stop()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def _load(config: uvicorn.Config, settings: Settings) -> None:
    try:
        config.load()
    except OSError as error:  # what ssl raises is one, too
        unfit = "they do not fit together, or are no PEM files"
        raise ConfigError(
            f"reading the certificate {settings.cert_file} and its key",
            found=unfit if isinstance(error, ssl.SSLError) else str(error.strerror),
            advice="Give --serve-cert-file and --serve-key-file as PEM files.",
        ) from error


def _listen(settings: Settings) -> socket.socket:
    where = f"listening on {settings.address} port {settings.port}"
    try:
        family, _, _, _, place = socket.getaddrinfo(
            settings.address, settings.port, type=socket.SOCK_STREAM
        )[0]
        return socket.create_server(place[:2], family=family)
    except OSError as error:
        raise ConfigError(
            where,
            found=error.strerror or "it cannot be opened",
            advice="Give another --listen or --port; --port 0 takes any free one.",
        ) from error


def _address(settings: Settings, listening: socket.socket) -> str:
    host = f"[{settings.address}]" if ":" in settings.address else settings.address
    return f"{'https' if settings.tls else 'http'}://{host}:{listening.getsockname()[1]}/"


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Handlers for the moments before the server sets its own.

    They also take the signal that ended it, which it raises once more when it has put them back.
    """

    def end(_number: int, _frame: object) -> None:
        server.should_exit = True

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
