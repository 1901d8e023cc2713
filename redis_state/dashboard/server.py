"""Runs the dashboard until a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from redis_state.accepting import CLIENT_S, CONNECTIONS_MAX, Acceptor
from redis_state.dashboard.app import application
from redis_state.dashboard.settings import Settings
from redis_state.dashboard.watch import Watch
from redis_state.errors import ConfigError
from redis_state.live import Reader

HEAD_S = CLIENT_S
"""Seconds in which a connection has to send the head of a request, or to accept output."""

_HEAD_BYTES_MAX = 16 * 1024
_KEEP_ALIVE_S = 5
_END_S = 5


def serve(reader: Reader, settings: Settings, *, tell: Callable[[str], None]) -> None:
    """Answers browsers until SIGTERM or SIGINT.

    Args:
        tell: Called with the address once it is open.

    Raises:
        ConfigError: The address cannot be opened, or the certificate cannot be read.
    """
    with Watch(reader, interval_s=settings.interval_s) as watch:
        config = uvicorn.Config(
            application(reader, watch, settings),
            http=_TimedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # The acceptor limits connections; this limit would refuse the latest ones instead.
            limit_concurrency=None,
            loop="asyncio",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_END_S,
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            ssl_certfile=settings.cert_file,
            ssl_keyfile=settings.key_file,
        )
        _load(config, settings)
        server = _DashboardServer(config)
        with closing(_listen(settings)) as listening, _ended_by_signals(server):
            tell(_address(settings, listening))
            server.run(sockets=[listening])


class _DashboardServer(uvicorn.Server):
    """uvicorn server with an acceptor of our own.

    uvicorn gives a TLS handshake a minute, and counts connections only after it. Once silent
    connections have taken all places, it refuses every new one.
    """

    acceptors: Sequence[Acceptor] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        await super().startup(sockets=[])
        config = self.config
        self.acceptors = [
            Acceptor(
                one,
                lambda: _TimedConnection(config, self.server_state, self.lifespan.state),
                tls=config.ssl,
                handshake_s=HEAD_S,
                connections_max=CONNECTIONS_MAX,
            )
            for one in sockets
        ]
        for acceptor in self.acceptors:
            acceptor.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self.acceptors:
            await acceptor.stop()
        await super().shutdown(sockets=sockets)
        for acceptor in self.acceptors:
            await acceptor.drop()


class _TimedConnection(H11Protocol):
    """Connection that is dropped if its client is late with a request's head or with reading.

    uvicorn itself waits for both without a limit.
    """

    _late: asyncio.TimerHandle | None = None
    _is_full = False

    def __init__(self, *of_uvicorn: Any) -> None:
        super().__init__(*of_uvicorn)
        self.lost = asyncio.Event()

    @property
    def waits_for_client(self) -> bool:
        return not self._is_answering or self._is_full

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_full = True
        self._expect()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_full = False
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)
        # uvicorn closes it only after an orderly end.
        self.transport.close()
        self.lost.set()

    def _expect(self) -> None:
        """Times the client while the server waits for it; data in the meantime adds no time."""
        if not self.waits_for_client:
            self._rest()
        elif self._late is None:
            # Aborts also with output pending, as after a close: a late client does not accept it.
            self._late = self.loop.call_later(HEAD_S, self.transport.abort)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _load(config: uvicorn.Config, settings: Settings) -> None:
    try:
        config.load()
    except OSError as error:  # what ssl raises is one, too
        unfit = "they do not belong together, or are not PEM files"
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
    """Installs signal handlers for the moments before the server sets its own.

    They also catch the signal that ended the server, which it raises again after restoring them.
    """

    def end(_number: int, _frame: object) -> None:
        server.should_exit = True

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
