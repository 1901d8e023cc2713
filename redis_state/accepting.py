"""Accepts connections of clients that may be slow, silent or many, for exporter and dashboard.

Connections are bounded in two ways. Each has a deadline. At the limit, a new connection replaces
the oldest one that waits for its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

CONNECTIONS_MAX = 100
CLIENT_S = 10.0
"""Deadline for a TLS handshake, for the head of a request, and for the client to read an answer."""

_REST_S = 0.1
"""Pause after an accept that failed for lack of a resource, such as file descriptors."""

_LOG = logging.getLogger("redis_state.accepting")


class AcceptedConnection(Protocol):
    """The part of a protocol that an acceptor uses.

    Attributes:
        lost: Set once the connection is gone.
    """

    lost: asyncio.Event

    @property
    def waits_for_client(self) -> bool:
        """True if the next step is the client's, not this process's."""


@dataclass(slots=True, eq=False)
class _Slot:
    """An accepted connection; `connection` is ``None`` during the TLS handshake."""

    task: asyncio.Task[None]
    connection: AcceptedConnection | None = None

    @property
    def waits_for_client(self) -> bool:
        return self.connection is None or self.connection.waits_for_client


class Acceptor:
    """Accepts connections on a listening socket.

    Args:
        listening: The listening socket, which the caller closes.
        new_connection: Creates the protocol of a connection.
        tls: ``None`` serves without TLS.
        handshake_s: Deadline of the TLS handshake.
        connections_max: Limit of concurrent connections.
    """

    def __init__(
        self,
        listening: socket.socket,
        new_connection: Callable[[], AcceptedConnection],
        *,
        tls: ssl.SSLContext | None = None,
        handshake_s: float = CLIENT_S,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._listening = listening
        self._new_connection = new_connection
        self._tls = tls
        self._handshake_s = handshake_s
        self._connections_max = connections_max
        self._places: dict[_Slot, None] = {}
        self._accepting: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """Number of connections, including those in the TLS handshake."""
        return len(self._places)

    def start(self) -> None:
        """Starts accepting, in the running loop."""
        self._listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self) -> None:
        """Stops accepting; open connections stay."""
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting

    async def drop(self) -> None:
        """Ends all connections at once."""
        tasks = [place.task for place in self._places]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                _LOG.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_REST_S)
                continue
            self._make_room()
            place = _Slot(task=None)  # type: ignore[arg-type]  # its task needs it
            place.task = loop.create_task(self._hold(place, accepted))
            self._places[place] = None
            # Lets the task start before another connection can take its place.
            await asyncio.sleep(0)

    def _make_room(self) -> None:
        if len(self._places) < self._connections_max:
            return
        waiting = (place for place in self._places if place.waits_for_client)
        oldest = next(waiting, None) or next(iter(self._places))
        del self._places[oldest]
        oldest.task.cancel()

    async def _hold(self, place: _Slot, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None = None
        try:
            connection = self._new_connection()
            transport, _ = await loop.connect_accepted_socket(
                lambda: cast("asyncio.Protocol", connection),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_s,
            )
            place.connection = connection
            await connection.lost.wait()
        except OSError as error:
            _LOG.debug("a client was rejected: %s", error)
        finally:
            self._places.pop(place, None)
            lost = place.connection is not None and place.connection.lost.is_set()
            if isinstance(transport, asyncio.WriteTransport) and not lost:
                transport.abort()
