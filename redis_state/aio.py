"""Live reads for asyncio: awaitable versions of the calls in `redis_state.reader`.

Each call runs in a thread of a small pool, with the same code as the synchronous reader, so the
loop never waits for a server. An awaited call returns the result of the synchronous one. An
iterator becomes asynchronous, and fetches its rows in pieces. A cancelled call runs on in its
thread, at most until the option `deadline`, and its result is dropped. That is safe, because reads
change nothing. A feed that follows holds a thread while it waits; closing or cancelling frees it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from redis_state import live, reader
from redis_state.errors import ConfigError, UsageError
from redis_state.exports.export import FILE_BYTES
from redis_state.exports.manifest import COLUMNS, Export
from redis_state.process import Home
from redis_state.progress import Progress, silent
from redis_state.reader.version_request import CONFIRMED

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

THREADS = 8
"""Default number of concurrent calls; further calls wait for a thread."""

_ROWS_AT_ONCE = 1_000
_BATCHES_AT_ONCE = 1

T = TypeVar("T")
F = TypeVar("F", bound="type[_Face]")


class _Calls:
    """Runs calls in threads."""

    def __init__(self, threads: int) -> None:
        self._home = Home()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="redis-state-aio")
        self._feeds: set[threading.Event] = set()
        self._closed = False

    async def run(self, call: Callable[[], T]) -> T:
        self._home.check(where="redis_state.aio")
        self._check_open()

        def once() -> T:
            # The reader may have been closed while the call waited for a thread.
            self._check_open()
            return call()

        return await asyncio.get_running_loop().run_in_executor(self._pool, once)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(
                "reading state",
                found="the reader was closed",
                advice="Close the reader after its last use; connect() makes another one.",
            )

    async def stream(self, call: Callable[[], Any], at_once: int) -> AsyncIterator[Any]:
        rows = iter(await self.run(call))
        while piece := await self.run(lambda: list(islice(rows, at_once))):
            for row in piece:
                yield row

    async def feed(
        self, call: Callable[[], Any], stop: threading.Event
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Yields batches until `stop` is set. Closing the reader or this iterator sets it."""
        self._feeds.add(stop)
        try:
            batches = await self.run(call)
            while not stop.is_set():
                batch = await self.run(lambda: next(batches, None))
                if batch is None:
                    return
                yield ChangeBatch(batch, self)
        finally:
            stop.set()
            self._feeds.discard(stop)

    async def close(self, then: Callable[[], None]) -> None:
        """Ends waiting feeds, waits for running calls, and then calls `then`, even if cancelled."""
        self._closed = True
        for stop in list(self._feeds):
            stop.set()

        def end() -> None:
            self._pool.shutdown()
            then()

        await asyncio.to_thread(end)


class _Face:
    """Asynchronous wrapper of an object of `redis_state.reader`."""

    _front: Any
    _calls: _Calls

    def __init__(self, front: Any, calls: _Calls) -> None:
        self._front = front
        self._calls = calls

    def __repr__(self) -> str:
        return f"aio.{self._front!r}"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _face_of(front: type) -> Callable[[F], F]:
    """Adds awaitable versions of a class's methods to its wrapper.

    Methods that return iterators return asynchronous ones. Properties stay synchronous, as do
    methods without a request to Redis, such as `operator`.
    """

    def made(face: F) -> F:
        for name, member in inspect.getmembers(front):
            if name.startswith("_") or hasattr(face, name):
                continue
            if isinstance(member, property):
                setattr(face, name, _attribute(name, member.__doc__))
            elif inspect.isfunction(member):
                setattr(face, name, _method(name, member))
        return face

    return made


def _attribute(name: str, doc: str | None) -> property:
    return property(lambda self: getattr(self._front, name), doc=doc)


def _method(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    gives = str(member.__annotations__.get("return"))
    if gives.startswith("Iterator"):
        at_once = _BATCHES_AT_ONCE if "RecordBatch" in gives else _ROWS_AT_ONCE

        @wraps(member)
        def stream(self: _Face, *args: Any, **given: Any) -> AsyncIterator[Any]:
            call = partial(getattr(self._front, name), *args, **given)
            return self._calls.stream(call, at_once)

        return stream

    @wraps(member)
    async def awaited(self: _Face, *args: Any, **given: Any) -> Any:
        call = partial(getattr(self._front, name), *args, **given)
        return _faced(await self._calls.run(call), self._calls)

    return awaited


class ChangeBatch(_Face):
    """`redis_state.reader.ChangeBatch`; `async for` yields its pairs of key and value."""

    _front: reader.ChangeBatch

    @property
    def number(self) -> int:
        """Number of the batch; -1 for the state before all batches."""
        return self._front.number

    @property
    def token(self) -> str:
        """Token to continue after this batch: ``changes(since=token)``."""
        return self._front.token

    @property
    def whole(self) -> bool:
        """True if the rows are the whole state after the batch, and no other key has a value."""
        return self._front.whole

    def __aiter__(self) -> AsyncIterator[tuple[Any, Any]]:
        return self._calls.stream(self._front.__iter__, _ROWS_AT_ONCE)


@_face_of(reader.OperatorState)
class OperatorState(_Face):
    """Awaitable `redis_state.reader.OperatorState`; `async for` yields the rows."""

    def changes(
        self,
        since: str | int | None = None,
        *,
        follow: bool = False,
        interval_s: float = 1.0,
        stop: threading.Event | None = None,
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Yields the changes of each batch, one batch after the other, as soon as it exists.

        Closing the iterator or the reader, or cancelling the waiting task, ends a feed that
        follows.

        Args:
            since: See `redis_state.reader.OperatorState.changes`, also for the other arguments.
            stop: Ends a waiting feed; also set when the feed ends otherwise.

        Raises:
            RedisStateError: See `redis_state.reader.OperatorState.changes`; raised when batches are
                read.
        """
        ends = threading.Event() if stop is None else stop
        call = partial(self._front.changes, since, follow=follow, interval_s=interval_s, stop=ends)
        return self._calls.feed(call, ends)


class _StoresFace(_Face):
    @property
    def info(self) -> reader.QueryInfo:
        """The query's entry in the list of checkpoints."""
        found: reader.QueryInfo = self._front.info
        return found

    def operator(self, *args: Any, **given: Any) -> OperatorState:
        """Returns what `redis_state.reader.Query.operator` does; synchronous, without I/O."""
        return OperatorState(self._front.operator(*args, **given), self._calls)


@_face_of(reader.Query)
class Query(_StoresFace):
    """Awaitable `redis_state.reader.Query`."""

    def live_view(self, *args: Any, **given: Any) -> LiveView:
        """Returns what `redis_state.reader.Query.live_view` does; synchronous, without I/O."""
        return LiveView(self._front.live_view(*args, **given), self._calls)


@_face_of(reader.QueryView)
class QueryView(_StoresFace):
    """Awaitable `redis_state.reader.QueryView`."""


@_face_of(reader.LiveView)
class LiveView(_StoresFace):
    """Awaitable `redis_state.reader.LiveView`."""


@_face_of(live.Reader)
class Reader(_Face):
    """Awaitable `redis_state.live.Reader`, created by `connect`."""

    async def export(
        self,
        which: str,
        to: str | Path,
        *,
        at: str | int = CONFIRMED,
        operator: int | None = None,
        contents: str = COLUMNS,
        file_bytes: int = FILE_BYTES,
        progress: Progress = silent,
    ) -> Export:
        """Exports one version of a whole query to a folder, as Parquet files; docs/export.md.

        A cancelled export runs on in its thread. The same call completes what a killed process
        left.

        Args:
            which: See `redis_state.live.Reader.export`, also for the other arguments.
            progress: Called in a thread of the reader.

        Raises:
            RedisStateError: See `redis_state.live.Reader.export`.
        """
        call = partial(
            self._front.export,
            which,
            to,
            at=at,
            operator=operator,
            contents=contents,
            file_bytes=file_bytes,
            progress=progress,
        )
        found: Export = await self._calls.run(call)
        return found

    async def close(self) -> None:
        """Waits for running calls, and closes the connections.

        Calls that still wait for a thread, and later ones, raise `UsageError`.
        """
        await self._calls.close(self._front.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


_FACES: dict[type, type[_Face]] = {
    reader.OperatorState: OperatorState,
    reader.Query: Query,
    reader.QueryView: QueryView,
    reader.LiveView: LiveView,
}


def _faced(found: Any, calls: _Calls) -> Any:
    face = _FACES.get(type(found))
    return found if face is None else face(found, calls)


async def connect(
    url: str, *, threads: int = THREADS, replica: bool = False, **options: Unpack[Options]
) -> Reader:
    """Prepares to read state, like `redis_state.connect`; the first call connects.

    Args:
        url: See `redis_state.connect`.
        threads: Number of concurrent calls, and thus of connections.
        replica: See `redis_state.connect`.
        options: See `redis_state.connect`.

    Raises:
        ConfigError: The URL or an option is wrong.
    """
    if threads < 1:
        raise ConfigError(
            "preparing to read", found="threads is below 1", advice="Give threads=1 or more."
        )
    return Reader(live.connect(url, replica=replica, **options), _Calls(threads))
