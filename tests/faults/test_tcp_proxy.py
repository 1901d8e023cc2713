"""The proxy does to connections what it is told."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import DELAY_S, Fault, TcpProxy

SOON_S = 10.0
SHORT_S = 0.3


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(redis_server.port, seed=7) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), SOON_S) as client:
        assert ask(client, b"PING") == b"+PONG\r\n"
        yield client


def ask(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line + b"\r\n")
    return answer(client)


def answer(client: socket.socket) -> bytes:
    """A line, or nothing if the connection was cut before it came."""
    found = b""
    try:
        while not found.endswith(b"\r\n"):
            piece = client.recv(1024)
            if not piece:
                return b""
            found += piece
    except ConnectionResetError:
        return b""
    return found


def test_a_cut_request_never_arrives(
    proxy: TcpProxy, client: socket.socket, redis_server: RedisServer
) -> None:
    proxy.set({Fault.CUT: 1})
    assert ask(client, b"INCR n") == b""
    with redis_server.client() as direct:
        assert direct.get("n") is None
    assert proxy.met[Fault.CUT] == 1


def test_a_request_whose_reply_is_lost_takes_effect_once(
    proxy: TcpProxy, client: socket.socket, redis_server: RedisServer
) -> None:
    proxy.set({Fault.REPLY_LOST: 1})
    assert ask(client, b"INCR n") == b""
    with redis_server.client() as direct:
        assert direct.get("n") == b"1"


def test_black_hole_swallows_data_and_stays_open(
    proxy: TcpProxy, client: socket.socket, redis_server: RedisServer
) -> None:
    proxy.set({Fault.BLACK_HOLE: 1})
    client.settimeout(SHORT_S)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            ask(client, b"INCR n")
        proxy.set({})  # the connection is lost all the same
    with redis_server.client() as direct:
        assert direct.get("n") is None
    with socket.create_connection(("127.0.0.1", proxy.port), SOON_S) as other:
        assert ask(other, b"PING") == b"+PONG\r\n"


def test_a_delayed_request_arrives_late(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.set({Fault.DELAY: 1})
    begun = time.monotonic()
    assert ask(client, b"PING") == b"+PONG\r\n"
    # At least: how late a machine is beyond that proves nothing.
    assert time.monotonic() - begun >= DELAY_S


def test_sliced_data_arrives_whole(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.set({Fault.SLICES: 1})
    text = b"x" * 5000
    assert ask(client, b"SET k " + text) == b"+OK\r\n"
    client.sendall(b"STRLEN k\r\n")
    assert answer(client) == b":5000\r\n"


def test_every_connection_is_cut(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.cut()
    assert answer(client) == b""


def test_stopped_server_cuts_the_connection(proxy: TcpProxy, redis_server: RedisServer) -> None:
    redis_server.kill()
    with socket.create_connection(("127.0.0.1", proxy.port), SOON_S) as client:
        assert answer(client) == b""


def test_seed_repeats_the_same_faults(redis_server: RedisServer) -> None:
    rows = []
    for _ in range(2):
        with TcpProxy(redis_server.port, seed=3) as proxy:
            proxy.set({Fault.CUT: 0.2})
            rows.append([_lives(proxy) for _ in range(5)])
    assert rows[0] == rows[1]
    assert len(set(rows[0])) > 1


def _lives(proxy: TcpProxy) -> int:
    """Number of requests that a connection answers."""
    with socket.create_connection(("127.0.0.1", proxy.port), SOON_S) as client:
        answers = 0
        try:
            while ask(client, b"PING"):
                answers += 1
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answers
