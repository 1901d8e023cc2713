"""The dashboard where many ask at once, or say nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from redis_state import connect
from redis_state.dashboard import server
from tests.support.dashboard import Dashboard, write_query
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

StartRedis = Callable[..., RedisServer]


def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent one, one that stops within its head, and one that stops within its second head."""
    monkeypatch.setattr(server, "HEAD_S", 0.5)
    board = server._DashboardServer(
        uvicorn.Config(_answers, http=server._TimedConnection, lifespan="off", log_config=None)
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = listening.getsockname()
        thread = threading.Thread(target=board.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            whole = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for sent in (b"", whole[:-2], whole + whole[:-2]):
                with socket.create_connection(place, timeout=30) as client:
                    client.sendall(sent)
                    answer = b"".join(iter(lambda: client.recv(4096), b""))
                    assert answer.count(b"200 OK") == sent.count(whole)
        finally:
            board.should_exit = True
            thread.join()


async def _answers(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_pending_look_ups_do_not_block_other_pages(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis()
    write_query(server.url, "orders")
    with Dashboard(server.url, "--deadline", "5s", log=tmp_path / "log") as board:
        with connect(server.url) as reader:
            (query,) = reader.queries()
        key = f"/query/{query.gen}/key"
        assert board.post(key, {"column.0": "ann"}).status == 200
        server.pause()
        try:
            with ThreadPoolExecutor(20) as pool:
                waiting = [pool.submit(board.post, key, {"column.0": "ann"}) for _ in range(20)]
                wait_until(lambda: sum(one.done() for one in waiting) >= 12, "some to be refused")
                assert board.get("/").status == 200
                answers = [one.result() for one in waiting]
        finally:
            server.resume()
        refused = [one for one in answers if "Many look-ups wait for Redis" in one.text]
        assert len(refused) == 12
        assert {one.status for one in refused} == {503}
        assert board.post(key, {"column.0": "ann"}).status == 200
