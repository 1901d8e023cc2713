"""Live reads for asyncio: the names of `redis_state.reader`, to be awaited.

Every call runs in a thread of a small pool of its own, by the same code as elsewhere: there is one
reader, and the loop never waits for a server. What a call of the reader gives is what the awaited
one gives; where it gives an iterator, `async for` takes the rows, which come in pieces. A call that
is cancelled goes on in its thread to its end, at the latest to the option `deadline`, and its
answer is dropped; nothing is left half done by that, since reads change nothing. A feed that
follows holds one of the threads while it waits; closing or cancelling it lets the thread go.
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
from redis_state.reader.versions import CONFIRMED

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

THREADS = 8
"""Calls that run at once, unless it is said; others wait for one of them."""

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
            # It may have waited for a thread until the reader was closed.
            self._check_open()
            return call()

        return await asyncio.get_running_loop().run_in_executor(self._pool, once)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(
                "reading state",
                found="the reader was closed",
                advice="Close it when all who read by it are done; connect() makes another one.",
            )

    async def stream(self, call: Callable[[], Any], at_once: int) -> AsyncIterator[Any]:
        rows = iter(await self.run(call))
        while piece := await self.run(lambda: list(islice(rows, at_once))):
            for row in piece:
                yield row

    async def feed(
        self, call: Callable[[], Any], stop: threading.Event
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Batches as they come, until `stop` is set, which closing any of the two does."""
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
        """End what waits, wait for the calls that run, and do something, also when cancelled."""
        self._closed = True
        for stop in list(self._feeds):
            stop.set()

        def end() -> None:
            self._pool.shutdown()
            then()

        await asyncio.to_thread(end)


class _Face:
    """Stands in front of an object of `redis_state.reader`."""

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
    """Gives a class what the other one offers, to be awaited.

    Methods that give iterators give asynchronous ones. What asks nothing of Redis, as `operator`
    and properties, stays as it is.
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
    """`redis_state.reader.ChangeBatch`; `async for` takes its pairs of key and value."""

    _front: reader.ChangeBatch

    @property
    def number(self) -> int:
        """Which batch; -1 for the state before all batches."""
        return self._front.number

    @property
    def token(self) -> str:
        """Where to go on once the batch is dealt with: ``changes(since=token)``."""
        return self._front.token

    @property
    def whole(self) -> bool:
        """The rows are the whole state after the batch, and no other key has a value."""
        return self._front.whole

    def __aiter__(self) -> AsyncIterator[tuple[Any, Any]]:
        return self._calls.stream(self._front.__iter__, _ROWS_AT_ONCE)


@_face_of(reader.OperatorState)
class OperatorState(_Face):
    """`redis_state.reader.OperatorState`, to be awaited; rows come by `async for`."""

    def changes(
        self,
        since: str | int | None = None,
        *,
        follow: bool = False,
        interval_s: float = 1.0,
        stop: threading.Event | None = None,
    ) -> AsyncGenerator[ChangeBatch, None]:
        """What each batch changed, one batch after the other, as soon as it is there.

        Closing the iterator or the reader, or cancelling who waits, ends a feed that follows.

        Args:
            since: As that of `redis_state.reader.OperatorState`, and so are the others.
            stop: Ends a follower that waits; it is set when the feed ends otherwise, too.

        Raises:
            RedisStateError: As `redis_state.reader.OperatorState.changes`, when batches are taken.
        """
        ends = threading.Event() if stop is None else stop
        call = partial(self._front.changes, since, follow=follow, interval_s=interval_s, stop=ends)
        return self._calls.feed(call, ends)


class _StoresFace(_Face):
    @property
    def info(self) -> reader.QueryInfo:
        """What the list of checkpoints says of the query."""
        found: reader.QueryInfo = self._front.info
        return found

    def operator(self, *args: Any, **given: Any) -> OperatorState:
        """As that of `redis_state.reader.Query`; asks nothing of Redis, so it is not awaited."""
        return OperatorState(self._front.operator(*args, **given), self._calls)


@_face_of(reader.Query)
class Query(_StoresFace):
    """`redis_state.reader.Query`, to be awaited."""

    def live_view(self, *args: Any, **given: Any) -> LiveView:
        """As that of `redis_state.reader.Query`; asks nothing of Redis, so it is not awaited."""
        return LiveView(self._front.live_view(*args, **given), self._calls)


@_face_of(reader.QueryView)
class QueryView(_StoresFace):
    """`redis_state.reader.QueryView`, to be awaited."""


@_face_of(reader.LiveView)
class LiveView(_StoresFace):
    """`redis_state.reader.LiveView`, to be awaited."""


@_face_of(live.Reader)
class Reader(_Face):
    """`redis_state.live.Reader`, to be awaited; `connect` makes it."""

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
        """Write one version of a whole query into a folder, as Parquet files; docs/export.md.

        Cancelled, it goes on in its thread. What a killed process leaves, the same call completes.

        Args:
            which: As that of `redis_state.reader.Reader`, and so are the others.
            progress: Called in a thread of the reader's.

        Raises:
            RedisStateError: As `redis_state.reader.Reader.export`.
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
        """Wait for the calls that run, and close the connections.

        Calls that wait for a thread then, and later ones, raise `UsageError`.
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
    """Prepare to read state, as `redis_state.connect`; the first call connects.

    Args:
        url: As `redis_state.connect`.
        threads: Calls that run at once, and so connections.
        replica: As `redis_state.connect`.
        options: As `redis_state.connect`.

    Raises:
        ConfigError: The URL or an option is wrong.
    """
    if threads < 1:
        raise ConfigError(
            "preparing to read", found="there are no threads", advice="Give threads=1 or more."
        )
    return Reader(live.connect(url, replica=replica, **options), _Calls(threads))
