"""The proxies of `tests.bench.production`: order and times of chunks, requests on a connection."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.bench.production.pacing import Flow, Lateness
from tests.bench.production.proxy import Link, Objects
from tests.bench.production.relay import HOST, Relay
from tests.bench.production.s3_requests import RequestStream, kind_of

PUT = b"PUT /state-redis/a HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
GET = b"GET /state-redis/a HTTP/1.1\r\n\r\n"
LARGE_BYTES = 6_000_000  # more than a relay reads ahead


@pytest.fixture
def upstream() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(10)
        yield server


@pytest.fixture
def relay(upstream: socket.socket) -> Iterator[Relay]:
    """A relay without delays, on a thread."""
    relay = Relay(upstream.getsockname()[1], Link(0.0))
    control, end = os.pipe()
    thread = threading.Thread(target=relay.run, args=(control, lambda: False))
    thread.start()
    yield relay
    os.close(end)
    thread.join(10)
    os.close(control)
    assert not thread.is_alive()


def connected(relay: Relay, upstream: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection((HOST, relay.port), timeout=10)
    server, _ = upstream.accept()
    server.settimeout(10)
    return client, server


def received(one: socket.socket) -> bytes:
    """All that comes until the other side ends."""
    chunks = []
    while chunk := one.recv(1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def drain(flow: Flow, now: float) -> list[bytes]:
    found = []
    while popped := flow.pop(now):
        found.append(popped[1])
    return found


def test_each_chunk_leaves_after_its_own_delay() -> None:
    flow = Flow()
    flow.put(b"a", 10.0, 1.0)
    flow.put(b"b", 10.5, 1.0)
    assert drain(flow, 10.9) == []
    assert flow.next_due == 11.0
    assert drain(flow, 11.4) == [b"a"]
    assert drain(flow, 11.5) == [b"b"]
    assert flow.next_due is None


def test_chunks_keep_their_order_when_the_delay_shrinks() -> None:
    flow = Flow()
    flow.put(b"a", 10.0, 3.0)
    flow.put(b"b", 10.5, 0.0)
    assert drain(flow, 12.9) == []
    assert drain(flow, 13.0) == [b"a", b"b"]


def test_bandwidth_spaces_chunks_and_adds_to_the_latency() -> None:
    flow = Flow(bytes_per_s=100.0)
    flow.put(b"x" * 50, 10.0, 1.0)
    flow.put(b"y" * 50, 10.0, 0.0)
    assert flow.waiting_bytes == 100
    assert flow.next_due == 11.5
    assert drain(flow, 11.5) == [b"x" * 50]
    assert flow.next_due == 12.0


def test_idle_time_is_not_saved_up_as_bandwidth() -> None:
    flow = Flow(bytes_per_s=100.0)
    flow.put(b"x" * 100, 10.0, 0.0)
    assert drain(flow, 11.0)
    flow.put(b"x" * 100, 20.0, 0.0)
    assert flow.next_due == 21.0


def test_lateness_reports_the_bucket_of_a_quantile() -> None:
    lateness = Lateness()
    for late in (1e-6, 1e-6, 1e-6, 1e-3):
        lateness.add(late)
    assert lateness.quantile_ms(0.5) == pytest.approx(0.02)
    assert lateness.quantile_ms(0.99) == pytest.approx(1.02, abs=0.02)


@pytest.mark.parametrize(
    ("method", "target", "copies", "expected"),
    [
        ("PUT", "/b/state/0/1.delta", False, ("b", "PUT")),
        ("PUT", "/b/state/0/1.delta", True, ("b", "COPY")),
        ("POST", "/b/large?uploads", False, ("b", "POST")),
        ("POST", "/b/?delete", False, ("b", "DELETE")),
        ("POST", "/b?delete", False, ("b", "DELETE")),
        ("DELETE", "/b/a", False, ("b", "DELETE")),
        ("GET", "/b?list-type=2&prefix=a%2F", False, ("b", "LIST")),
        ("GET", "/b/?uploads", False, ("b", "LIST")),
        ("GET", "/b?location", False, ("b", "GET")),
        ("GET", "/b/a?list-type=2", False, ("b", "GET")),
        ("GET", "/", False, ("", "LIST")),
        ("HEAD", "/b/a", False, ("b", "HEAD")),
    ],
)
def test_request_is_priced_by_its_kind(
    method: str, target: str, copies: bool, expected: tuple[str, str]
) -> None:
    assert kind_of(method, target, copies=copies) == expected


def test_requests_are_found_on_a_connection_kept_alive() -> None:
    found: list[tuple[str, str]] = []
    stream = RequestStream(lambda *one: found.append(one))
    copy = GET.replace(b"GET", b"PUT").replace(b"\r\n\r\n", b"\r\nX-Amz-Copy-Source: /b/c\r\n\r\n")
    assert stream.feed(PUT)
    assert not stream.feed(b"GET /")  # the body of the PUT, after 100 Continue
    assert stream.feed(GET + copy)
    assert found == [("state-redis", kind) for kind in ("PUT", "GET", "COPY")]


def test_chunked_body_with_trailers_is_not_taken_for_requests() -> None:
    found: list[tuple[str, str]] = []
    stream = RequestStream(lambda *one: found.append(one))
    head = b"PUT /b/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"12;chunk-signature=ab\r\nGET / HTTP/1.1\r\n\r\n\r\n0\r\nx-amz-checksum: z\r\n\r\n"
    assert stream.feed(head + body)
    assert stream.feed(GET)
    assert [kind for _, kind in found] == ["PUT", "GET"]


def test_requests_are_the_same_however_the_bytes_are_cut() -> None:
    raw = (PUT + b"12345" + GET) * 3
    for length in range(1, len(raw)):
        found: list[tuple[str, str]] = []
        stream = RequestStream(lambda *one: found.append(one))  # noqa: B023 - called in this turn
        begun = sum(stream.feed(raw[at : at + length]) for at in range(0, len(raw), length))
        assert [kind for _, kind in found] == ["PUT", "GET"] * 3
        assert 1 <= begun <= 6


def test_latency_is_that_of_the_chunk_in_which_a_request_begins() -> None:
    policy = Objects(latency_s=0.5, bytes_per_s=1e9)
    latency = policy.to_server()
    assert [latency(chunk) for chunk in (PUT[:9], PUT[9:], b"12345", GET)] == [0.5, 0.0, 0.0, 0.5]
    assert policy.counts.by_bucket() == {"state-redis": {"GET": 1, "PUT": 1}}


def test_link_delays_by_half_a_round_trip_in_each_direction() -> None:
    link = Link(0.5)
    there, back = link.to_server(), link.to_client()
    assert there(b"PING") + back(b"PONG") == 0.5
    link.round_trip_s = 3.0
    assert there(b"PING") + back(b"PONG") == 3.0


def test_relay_passes_large_data_and_ends_both_ways(relay: Relay, upstream: socket.socket) -> None:
    client, server = connected(relay, upstream)
    data = os.urandom(LARGE_BYTES)
    with client, server:

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert received(server) == data
        sender.join()
        server.sendall(b"answer")
        server.shutdown(socket.SHUT_WR)
        assert received(client) == b"answer"


def test_relay_outlives_connections_that_are_reset(relay: Relay, upstream: socket.socket) -> None:
    for _ in range(3):
        client, server = connected(relay, upstream)
        server.sendall(b"x" * 100_000)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        with server, suppress(ConnectionError):
            while server.recv(100_000):
                pass
    client, server = connected(relay, upstream)
    with client, server:
        client.sendall(b"PING")
        assert server.recv(4) == b"PING"


def test_malformed_request_ends_its_connection_alone(upstream: socket.socket) -> None:
    relay = Relay(upstream.getsockname()[1], Objects(0.0, 1e9))
    control, end = os.pipe()
    thread = threading.Thread(target=relay.run, args=(control, lambda: False))
    thread.start()
    try:
        client, server = connected(relay, upstream)
        with client, server:
            client.sendall(b"nonsense\r\n\r\n")
            assert received(client) == b""
        client, server = connected(relay, upstream)
        with client, server:
            client.sendall(GET)
            assert server.recv(len(GET)) == GET
    finally:
        os.close(end)
        thread.join(10)
        os.close(control)
