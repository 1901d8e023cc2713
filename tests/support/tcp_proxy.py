"""A TCP proxy on the loopback address that does to connections what bad networks do.

A fate is drawn for every chunk that a client sends: nothing, or one of the faults, each with its
chance. A chance of 1 switches a fault on for all, an empty table switches all off.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_SLICE_BYTES_MAX = 5
_SLICES_MAX = 60  # of a chunk; the rest goes at once
_JOIN_S = 10
DELAY_S = 0.2


class Fault(Enum):
    """Fault of a chunk, and of the connection that carries it."""

    CUT = "cut"  # it is lost, and the connection with it
    DELAY = "delay"  # it arrives, late
    BLACK_HOLE = "black hole"  # it and all after it are swallowed; the connection stays open
    REPLY_LOST = "reply lost"  # it arrives; the answer does not, the connection is cut
    SLICES = "slices"  # it and its answer come in pieces of a few bytes


class _Link:
    """One client and its connection to the server."""

    def __init__(self, client: asyncio.StreamWriter, dice: random.Random) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.dice = dice
        self.loses_reply = False
        self.is_sliced = False

    def cut(self) -> None:
        """Resets both sides, as a broken line does."""
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()


class TcpProxy:
    """Passes what comes to `port` on to a server; a context manager.

    Args:
        port: Of the server, on the loopback address.
        seed: Of the fates. Connections are numbered, and each draws from its own row of numbers.
        before: Called before a chunk is passed to the server; where it says false, the connection
            ends instead.
    """

    def __init__(
        self, port: int, *, seed: int = 0, before: Callable[[bytes], bool] | None = None
    ) -> None:
        self._server_port = port
        self._seed = seed
        self._before = before
        self._chances: tuple[tuple[Fault, float], ...] = ()
        self._links: set[_Link] = set()
        self._made = 0
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._socket = socket.create_server((_HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self.met: Counter[Fault] = Counter()

    @property
    def url(self) -> str:
        """The address of the server behind the proxy."""
        return f"redis://{_HOST}:{self.port}/0"

    def set(self, chances: Mapping[Fault, float]) -> None:
        """Sets the chance of each fault for the following chunks."""
        if sum(chances.values()) > 1:
            raise ValueError(f"chances above 1: {dict(chances)}")
        self._chances = tuple(chances.items())

    def cut(self) -> None:
        """Cut every connection that there is now."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_JOIN_S)
        assert not self._thread.is_alive(), "the proxy does not stop"

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket)
        await self._stopping.wait()
        server.close()
        while self._links:
            self._cut_all()
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cut_all(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._made += 1
        link = _Link(writer, random.Random(f"{self._seed}:{self._made}"))
        self._links.add(link)
        try:
            answers, link.server = await asyncio.open_connection(_HOST, self._server_port)
            back = asyncio.ensure_future(self._backward(link, answers))
            await self._forward(link, reader)
            await back
        except OSError:
            pass  # one side is gone, so the other one goes
        finally:
            link.cut()
            self._links.discard(link)

    async def _forward(self, link: _Link, reader: asyncio.StreamReader) -> None:
        assert link.server is not None
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                if self._before is not None and not self._before(chunk):
                    return
                fault = self._fate(link.dice)
                if fault is Fault.CUT:
                    return
                if fault is Fault.BLACK_HOLE:
                    while await reader.read(_CHUNK_BYTES):
                        pass
                    return
                if fault is Fault.DELAY:
                    await asyncio.sleep(DELAY_S)
                link.loses_reply |= fault is Fault.REPLY_LOST
                link.is_sliced = fault is Fault.SLICES
                await self._pass_on(link, link.server, chunk)
        finally:
            link.cut()

    async def _backward(self, link: _Link, reader: asyncio.StreamReader) -> None:
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                if link.loses_reply:
                    return
                await self._pass_on(link, link.client, chunk)
        except OSError:
            pass
        finally:
            link.cut()

    def _fate(self, dice: random.Random) -> Fault | None:
        drawn = dice.random()
        for fault, chance in self._chances:
            drawn -= chance
            if drawn < 0:
                self.met[fault] += 1
                return fault
        return None

    async def _pass_on(self, link: _Link, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        begun = 0
        if link.is_sliced:
            for _ in range(_SLICES_MAX):
                length = link.dice.randint(1, _SLICE_BYTES_MAX)
                writer.write(chunk[begun : begun + length])
                await writer.drain()
                await asyncio.sleep(0)
                begun += length
                if begun >= len(chunk):
                    return
        writer.write(chunk[begun:])
        await writer.drain()
