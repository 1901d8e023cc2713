"""Live reads by asyncio: the same names and answers, and a loop that never waits for a server."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state import aio, live, reader
from redis_state.errors import ConfigError, NotFoundError, UsageError
from tests.contract.planting import Planted
from tests.support.forking import in_child
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

FACES = [
    (reader.ChangeBatch, aio.ChangeBatch),
    (reader.OperatorState, aio.OperatorState),
    (reader.Query, aio.Query),
    (reader.QueryView, aio.QueryView),
    (reader.LiveView, aio.LiveView),
    (live.Reader, aio.Reader),
]


@pytest.fixture
def flights(redis_server: RedisServer) -> str:
    planted = Planted(redis_server.client())
    planted.register()
    rows = [({"carrier": f"c{n}"}, {"count": n, "total": n / 2}) for n in range(2_500)]
    planted.commit(1, [(dict(key), dict(value)) for key, value in rows])
    return redis_server.url


@pytest.mark.parametrize(("front", "face"), FACES)
def test_async_and_sync_readers_have_the_same_names(front: type, face: type) -> None:
    names = {name for name in dir(front) if not name.startswith("_")}
    # What the constructor of the one sets is a property of the other.
    assert names == {name for name in dir(face) if not name.startswith("_")} - {"info"}
    for name in names:
        member, awaited = getattr(front, name), getattr(face, name)
        if inspect.isfunction(member) and name not in ("operator", "live_view", "changes"):
            streams = str(member.__annotations__["return"]).startswith("Iterator")
            assert streams or inspect.iscoroutinefunction(awaited), name


def test_async_export_equals_sync_export(flights: str, tmp_path: Path) -> None:
    told: list[str] = []

    async def export() -> Any:
        async with await aio.connect(flights, deadline="5s") as connected:
            return await connected.export(
                "flights", tmp_path / "awaited", progress=lambda what, *_: told.append(what)
            )

    awaited = asyncio.run(export())
    with redis_state.connect(flights) as connected:
        called = connected.export("flights", tmp_path / "called")
    assert awaited.rows == called.rows == 2_500
    assert told


def test_async_answers_equal_sync_answers(flights: str) -> None:
    async def read() -> dict[str, Any]:
        async with await aio.connect(flights, deadline="5s") as connected:
            query = await connected.query("flights")
            state = query.operator(0)
            view = await query.view()
            pinned = await state.view()
            return {
                "one": await state.get({"carrier": "c7"}),
                "many": await state.get_many([["c1"], ["none"], ["c2"]]),
                "items": [row async for row in state.items()],
                "scan": [row async for row in state.scan(prefix="c9")],
                "batches": [batch.num_rows async for batch in state.to_batches(rows=1_000)],
                "count": await view.operator(0).count(),
                "table": await pinned.to_arrow(),
                "places": (view.version, query.info.name, len(await query.operators())),
                "names": [info.name for info in await connected.queries()],
            }

    found = asyncio.run(read())
    with redis_state.connect(flights) as connected:
        state = connected.query("flights").operator(0)
        assert found["one"] == state.get({"carrier": "c7"})
        assert found["many"] == state.get_many([["c1"], ["none"], ["c2"]])
        assert found["items"] == list(state.items())
        assert found["scan"] == list(state.scan(prefix="c9"))
        assert found["table"] == state.to_arrow()
    assert (found["batches"], found["count"]) == ([1_000, 1_000, 500], 2_500)
    assert (found["places"], found["names"]) == ((1, "flights", 1), ["flights"])


def test_async_errors_equal_sync_errors(flights: str) -> None:
    async def read() -> None:
        with pytest.raises(ConfigError):
            await aio.connect(flights, threads=0)
        async with await aio.connect(flights) as connected:
            assert repr(connected).startswith("aio.Reader(url=")
            with pytest.raises(NotFoundError, match="Did you mean 'flights'"):
                await connected.query("flight")

    asyncio.run(read())


def test_event_loop_runs_while_the_server_hangs(flights: str, redis_server: RedisServer) -> None:
    async def read() -> None:
        async with await aio.connect(flights, deadline="30s", threads=2) as connected:
            state = (await connected.query("flights")).operator(0)
            assert await state.get(["c1"]) is not None
            redis_server.pause()
            try:
                calls = [asyncio.create_task(state.get([f"c{n}"])) for n in range(6)]
                rows = asyncio.create_task(_all(state.items()))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not any(call.done() for call in [*calls, rows])
                for call in [*calls[:3], rows]:
                    call.cancel()
            finally:
                redis_server.resume()
            left = await asyncio.gather(*calls, rows, return_exceptions=True)
            cancelled = [isinstance(one, asyncio.CancelledError) for one in left]
            assert cancelled == [True] * 3 + [False] * 3 + [True]
            # What was cancelled has left nothing behind on a connection.
            assert await state.get_many([["c1"], ["c2"]]) == [
                {"count": 1, "total": 0.5},
                {"count": 2, "total": 1.0},
            ]

    asyncio.run(read())


def test_closing_the_reader_fails_pending_calls(flights: str, redis_server: RedisServer) -> None:
    async def read() -> None:
        connected = await aio.connect(flights, deadline="30s", threads=1)
        state = (await connected.query("flights")).operator(0)
        assert await state.get(["c1"]) is not None
        rows = state.items()
        await rows.__anext__()
        redis_server.pause()
        try:
            calls = [asyncio.create_task(state.get([f"c{n}"])) for n in range(3)]
            await asyncio.sleep(0.1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(connected.close(), 0.1)
        finally:
            redis_server.resume()
        first, *left = await asyncio.gather(*calls, return_exceptions=True)
        assert first == {"count": 0, "total": 0.0}
        for told in left:
            assert isinstance(told, UsageError)
            assert "the reader was closed" in str(told)
        for late in (state.get(["c1"]), _all(rows)):
            with pytest.raises(UsageError, match="the reader was closed"):
                await late
        await connected.close()

    asyncio.run(read())
    with redis_server.client() as client:
        wait_until(lambda: client.info("clients")["connected_clients"] == 1, "no connection")


async def _all(rows: Any) -> list[Any]:
    return [row async for row in rows]


def test_reader_in_a_forked_process_raises_usage(flights: str) -> None:
    async def read() -> aio.Reader:
        connected = await aio.connect(flights)
        await connected.queries()
        return connected

    connected = asyncio.run(read())
    with pytest.raises(UsageError, match="another process"):
        in_child(lambda: asyncio.run(connected.queries()))
    asyncio.run(connected.close())


class Told(threading.Event):
    """An event that tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.set()
        return super().wait(timeout)


def test_async_feed_yields_each_batch_on_arrival(flights: str, redis_server: RedisServer) -> None:
    planted = Planted(redis_server.client())
    key, value = {"carrier": "new"}, {"count": 1, "total": 0.5}

    async def read() -> None:
        connected = await aio.connect(flights, deadline="30s", threads=2)
        state = (await connected.query("flights")).operator(0)
        feed = state.changes(since=0, follow=True, interval_s=0.01)
        coming = asyncio.ensure_future(anext(feed))
        await asyncio.to_thread(planted.commit, 2, [(key, value)])
        batch = await asyncio.wait_for(coming, 30)
        assert (batch.number, batch.whole) == (1, False)
        redis_server.pause()
        try:
            rows = asyncio.create_task(_all(batch))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not rows.done(), "the loop goes on, and rows come from the server"
        finally:
            redis_server.resume()
        assert await rows == [(key, value)]
        # What waits in a thread for a day ends when its feed is closed, or the reader is.
        await asyncio.wait_for(feed.aclose(), 30)
        waits = {"follow": True, "interval_s": 86_400.0}
        after = [one async for one in state.changes(since=batch.token)]
        assert after == []
        stops = [Told(), Told()]
        ended, waiting = (
            asyncio.create_task(_all(state.changes(since=batch.token, stop=stop, **waits)))
            for stop in stops
        )
        for stop in stops:
            assert await asyncio.to_thread(stop.waits.wait, 30)
        ended.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended
        assert stops[0].is_set()
        assert not stops[1].is_set()
        await asyncio.wait_for(connected.close(), 30)
        assert await waiting == []
        assert stops[1].is_set()

    asyncio.run(read())
