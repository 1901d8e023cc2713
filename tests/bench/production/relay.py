"""One thread that passes bytes between clients and a server, each chunk when it is due.

`select` waits with the precision of the system's timer; asyncio rounds up to a millisecond.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tests.bench.production.pacing import Flow, Lateness

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_WAITING_BYTES_MAX = 4 << 20
_CONNECTIONS_MAX = 400  # `select` knows descriptors below 1024

Latency = Callable[[bytes], float]
"""Seconds by which a chunk of a connection is delayed."""


class Policy(Protocol):
    """Delays and bandwidth of a proxy's connections.

    Attributes:
        bytes_per_s: Of each connection and direction; `None` for no limit.
    """

    bytes_per_s: float | None

    def to_server(self) -> Latency:
        """Returns the latency of chunks that the client of a new connection sends."""

    def to_client(self) -> Latency:
        """Returns the latency of chunks that the server of a new connection sends."""


class _Direction:
    """Copies chunks from one socket to another."""

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        latency: Latency,
        bytes_per_s: float | None,
    ) -> None:
        self.source = source
        self.target = target
        self.flow = Flow(bytes_per_s)
        self.unsent = b""
        self.ended = False
        self._latency = latency
        self._shut = False

    def reads(self) -> bool:
        return not self.ended and self.flow.waiting_bytes < _WAITING_BYTES_MAX

    def receive(self) -> None:
        try:
            chunk = self.source.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self.flow.put(chunk, time.monotonic(), self._latency(chunk))
        else:
            self.ended = True

    def send(self, lateness: Lateness) -> None:
        """Sends what is due, as far as the socket takes it."""
        while True:
            if not self.unsent:
                now = time.monotonic()
                popped = self.flow.pop(now)
                if popped is None:
                    break
                lateness.add(now - popped[0])
                self.unsent = popped[1]
            try:
                sent = self.target.send(self.unsent)
            except BlockingIOError:
                return
            self.unsent = self.unsent[sent:]
        if self.ended and self.flow.next_due is None and not self._shut:
            self._shut = True
            self.target.shutdown(socket.SHUT_WR)

    def is_over(self) -> bool:
        return self._shut


class Relay:
    """Listens on a free port of the loopback address and passes connections on to `port`."""

    def __init__(self, port: int, policy: Policy) -> None:
        self._upstream = port
        self._policy = policy
        self._pairs: list[tuple[_Direction, _Direction]] = []
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.lateness = Lateness()

    def run(self, control: int, obey: Callable[[], bool]) -> None:
        """Passes bytes on until `obey` returns false; it is called when `control` is readable."""
        try:
            while self._turn(control, obey):
                pass
        finally:
            for pair in list(self._pairs):
                self._close(pair)
            self._server.close()

    def _turn(self, control: int, obey: Callable[[], bool]) -> bool:
        directions = {one.source: one for pair in self._pairs for one in pair if one.reads()}
        blocked = [one.target for pair in self._pairs for one in pair if one.unsent]
        accepting = [self._server] if len(self._pairs) < _CONNECTIONS_MAX else []
        watched: list[int | socket.socket] = [control, *accepting, *directions]
        readable, _, _ = select.select(watched, blocked, [], self._wait_s())
        for ready in readable:
            if ready is self._server:
                self._accept()
            elif isinstance(ready, socket.socket):
                self._attempt(directions[ready], directions[ready].receive)
        for pair in list(self._pairs):
            for one in pair:
                self._attempt(one, partial(one.send, self.lateness))
            if all(one.is_over() for one in pair):
                self._close(pair)
        return control not in readable or obey()

    def _wait_s(self) -> float | None:
        """Seconds until a chunk is due; `None` if no chunk waits for its time alone."""
        dues = [
            one.flow.next_due
            for pair in self._pairs
            for one in pair
            if one.flow.next_due is not None and not one.unsent
        ]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _accept(self) -> None:
        client, _ = self._server.accept()
        try:
            server = socket.create_connection((HOST, self._upstream))
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
        rate = self._policy.bytes_per_s
        forward = _Direction(client, server, self._policy.to_server(), rate)
        backward = _Direction(server, client, self._policy.to_client(), rate)
        self._pairs.append((forward, backward))

    def _attempt(self, direction: _Direction, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, ValueError):
            for pair in self._pairs:
                if direction in pair:
                    self._close(pair)
                    return

    def _close(self, pair: tuple[_Direction, _Direction]) -> None:
        if pair in self._pairs:
            self._pairs.remove(pair)
        for one in pair:
            one.source.close()
