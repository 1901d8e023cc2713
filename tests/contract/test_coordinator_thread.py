"""The heartbeat's thread: real time with bounded polls, a server that hangs, a killed process."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.coordinator import Instance, StateStoreCoordinator
from redis_state.coordinator.heartbeat import Heartbeat
from redis_state.ids import PartitionId, StoreId
from redis_state.protocol import checkpoint_gen
from tests.contract.test_coordinator import NAME, RUN, provider
from tests.support.redis_server import RedisServer

TTL_MS = 600
POLL_S = 0.01
POLLS_MAX = 3_000
ROOT = Path(__file__).parents[2]
CHILD = """
import sys
from redis_state.coordinator import StateStoreCoordinator
from tests.contract.test_coordinator import NAME, provider
coordinator = StateStoreCoordinator(sys.argv[1], ttl_ms=int(sys.argv[2]))
coordinator.reference(NAME).report_active_instance(provider(), "child", "7")
print("reported", flush=True)
sys.stdin.read()
"""


def until(condition: Callable[[], bool]) -> None:
    """Polls the condition for half a minute at most."""
    pause = threading.Event()
    for _ in range(POLLS_MAX):
        if condition():
            return
        pause.wait(POLL_S)
    raise AssertionError("it did not come true")


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def key(redis_server: RedisServer) -> str:
    client = Client(config.parse({"url": redis_server.url}))
    gen = checkpoint_gen(client, NAME, create=True)
    client.close()
    assert gen is not None
    return keys.instance(provider().store_id.partition(gen))


def test_the_thread_renews_until_it_is_stopped(
    redis_server: RedisServer, raw: redis.Redis, key: str
) -> None:
    coordinator = StateStoreCoordinator(redis_server.url, ttl_ms=TTL_MS)
    coordinator.reference(NAME).report_active_instance(provider(), "h", "1")
    until(lambda: raw.exists(key) == 1)
    for _ in range(3):
        # A renewal is seen where the time left has grown.
        left = [raw.pttl(key)]

        def grown(left: list[int] = left) -> bool:
            left.append(raw.pttl(key))
            return left[-1] > left[-2]

        until(grown)
        assert min(left) > 0
    coordinator.stop()
    assert raw.exists(key) == 0


def test_an_instance_of_a_killed_process_is_gone_after_its_ttl(
    redis_server: RedisServer, raw: redis.Redis, key: str
) -> None:
    arguments = [sys.executable, "-c", CHILD, redis_server.url, str(TTL_MS)]
    child = subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reported\n"
        until(lambda: raw.get(key) == Instance("child", "7", RUN).encode())
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        assert raw.pttl(key) <= TTL_MS
        until(lambda: raw.exists(key) == 0)


class HangingClient:
    """Never answers until it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.released = threading.Event()

    def call(self, _attempted: str, commands: list[object]) -> list[object]:
        self.asked.set()
        assert self.released.wait(60)
        return [[b"OK"]] * len(commands)


def test_hanging_server_blocks_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    client = HangingClient()
    heartbeat = Heartbeat(client, queue_max=4)  # type: ignore[arg-type]
    store = StoreId("0" * 32, 0)

    def report(number: int) -> None:
        heartbeat.report(number, lambda: PartitionId(store, number), Instance("h", "1", RUN))

    report(0)
    assert client.asked.wait(60)
    with caplog.at_level(logging.WARNING, "redis_state.coordinator"):
        for number in range(1, 7):
            report(number)
    assert caplog.text.count("queue is full") == 2
    heartbeat.stop(timeout_s=0)
    client.released.set()
    until(lambda: not any(t.name == "redis-state-heartbeat" for t in threading.enumerate()))


class StumblingClient:
    """Raises once what nobody has foreseen."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, _attempted: str, commands: list[object]) -> list[object]:
        self.calls += 1
        if self.calls == 1:
            raise TypeError
        return [[b"OK"]] * len(commands)


def test_heartbeat_thread_survives_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    client = StumblingClient()
    heartbeat = Heartbeat(client, ttl_ms=TTL_MS)  # type: ignore[arg-type]
    id_ = PartitionId(StoreId("0" * 32, 0), 0)
    with caplog.at_level(logging.ERROR, "redis_state.coordinator"):
        heartbeat.report("owner", lambda: id_, Instance("h", "1", RUN))
        until(lambda: client.calls >= 3)
    heartbeat.stop()
    assert caplog.text.count("a heartbeat failed") == 1


def test_process_exit_does_not_wait_for_a_hanging_server(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, server.url, str(TTL_MS)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert (done.returncode, done.stdout) == (0, b"reported\n")


def test_a_forked_process_does_not_renew_the_instances_of_its_parent() -> None:
    client = HangingClient()
    client.released.set()
    heartbeat = Heartbeat(client, threaded=False)  # type: ignore[arg-type]
    store = StoreId("0" * 32, 0)
    heartbeat.report(0, lambda: PartitionId(store, 0), Instance("h", "1", RUN))
    heartbeat.tick()
    assert len(heartbeat.instances) == 1
    heartbeat.after_fork()
    heartbeat.report(1, lambda: PartitionId(store, 1), Instance("h", "1", RUN))
    heartbeat.tick()
    assert [id_.partition for id_ in heartbeat.instances] == [1]
