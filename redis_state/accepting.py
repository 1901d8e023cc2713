"""Accepts connections of clients that may be slow, silent or many: for exporter and dashboard.

A place is bounded in two ways. Whoever holds one too long loses it by a deadline of its own. When
all places are taken, a new connection gets that of the oldest one that waits for its client.
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
"""Within which a client completes a TLS handshake, sends the head of a request, takes an answer."""

_REST_S = 0.1
"""After an accept that failed for want of something, such as files."""

_LOG = logging.getLogger("redis_state.accepting")


class AcceptedConnection(Protocol):
    """What an acceptor needs to know of a protocol.

    Attributes:
        lost: Set once the connection is gone.
    """

    lost: asyncio.Event

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to do the next step, rather than this process."""


@dataclass(slots=True, eq=False)
class _Slot:
    """A connection that was accepted; without a `connection` during the handshake of TLS."""

    task: asyncio.Task[None]
    connection: AcceptedConnection | None = None

    @property
    def waits_for_client(self) -> bool:
        return self.connection is None or self.connection.waits_for_client


class Acceptor:
    """Accepts connections on a listening socket.

    Args:
        listening: Is closed by whoever opened it.
        new_connection: Makes the protocol of a connection.
        tls: ``None`` serves without TLS.
        handshake_s: Within which a client completes the handshake of TLS.
        connections_max: How many there are at once.
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
        """How many there are now, those in the handshake of TLS among them."""
        return len(self._places)

    def start(self) -> None:
        """Accept from now on, in the running loop."""
        self._listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self) -> None:
        """Accept no more; the connections that there are stay."""
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting

    async def drop(self) -> None:
        """End all connections at once."""
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
            # Its task begins before another connection can take the place.
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
            _LOG.debug("a client was not let in: %s", error)
        finally:
            self._places.pop(place, None)
            lost = place.connection is not None and place.connection.lost.is_set()
            if isinstance(transport, asyncio.WriteTransport) and not lost:
                transport.abort()
