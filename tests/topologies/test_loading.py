"""A server that is still loading its data: what is asked of it waits, and nothing is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_state.errors import CommitOutcomeUnknownError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from tests.topologies.conftest import ActsOnSleep, Connect

Start = Callable[..., RedisServer]
ROWS = {f"key {number}": number for number in range(100)}
# A server looks at its connections each time that it has loaded so many bytes, here after each key,
INTERVAL = 1024
# which takes so many microseconds: half a minute for all, so that it ends when the test says so.
SLOW = "5000"
FILLING = 6_000


@contextmanager
def provider(connect: Connect, url: str, clock: ActsOnSleep) -> Iterator[StateStoreProvider]:
    client = connect(url=url, clock=clock)
    made = StateStoreProvider(
        StateStoreProviderId(StateStoreId("orders", 0, 0), "run"),
        config=client._config,
        client=client,
        clock=clock,
    )
    yield made
    made.close()


def is_loading(server: RedisServer) -> bool:
    with server.client(retry=Retry(NoBackoff(), 0)) as direct:
        try:
            direct.ping()
        except redis.BusyLoadingError:
            return True
    return False


def go_on(server: RedisServer) -> None:
    with server.client() as direct:
        direct.config_set("key-load-delay", 0)
    wait_until(lambda: not is_loading(server), "the server to have loaded its data")


@pytest.fixture
def server(start_redis: Start, tmp_path: Path) -> RedisServer:
    """Server with an RDB file that takes more than a moment to load."""
    server = start_redis(options={"dir": str(tmp_path), "rdbcompression": "no"})
    with server.client() as direct:
        if not direct.config_get("loading-process-events-interval-bytes"):
            pytest.skip("this server answers only after each 2 MiB that it has loaded")
        pipeline = direct.pipeline(transaction=False)
        for number in range(FILLING):
            pipeline.set(f"filling {number}", "x" * INTERVAL)
        pipeline.execute()
    return server


def begin_loading(server: RedisServer) -> None:
    with server.client() as direct:
        direct.save()
    server.kill()
    slow = {"key_load_delay": SLOW, "loading_process_events_interval_bytes": str(INTERVAL)}
    server.restart(loaded=False, **slow)
    assert is_loading(server)


def test_commit_waits_for_a_loading_server(server: RedisServer, connect: Connect) -> None:
    clock = ActsOnSleep(lambda sleeps: go_on(server) if sleeps == 3 else None)
    with provider(connect, server.url, clock) as writer:
        store = writer.get_store(0)
        store.put_many(ROWS)
        store.commit()
        store = writer.get_store(1)
        store.put("key 0", "changed")
        begin_loading(server)
        assert store.commit() == 2
    assert clock.sleeps == 3
    with provider(connect, server.url, ActsOnSleep()) as reader:
        assert dict(reader.get_read_store(1).iterator()) == ROWS
        assert dict(reader.get_read_store(2).iterator()) == {**ROWS, "key 0": "changed"}


def test_new_process_waits_for_a_loading_server_and_never_starts_empty(
    server: RedisServer, connect: Connect
) -> None:
    with provider(connect, server.url, ActsOnSleep()) as writer:
        store = writer.get_store(0)
        store.put_many(ROWS)
        store.commit()
    begin_loading(server)
    clock = ActsOnSleep(lambda sleeps: go_on(server) if sleeps == 3 else None)
    with provider(connect, server.url, clock) as later:
        assert dict(later.get_store(1).iterator()) == ROWS
    assert clock.sleeps == 3


def test_loading_server_is_named_at_the_deadline(server: RedisServer, connect: Connect) -> None:
    begin_loading(server)
    client = connect(url=server.url, clock=ActsOnSleep(), deadline="10s")
    with pytest.raises(CommitOutcomeUnknownError, match="LOADING"):
        client.transaction("writing", [("SET", "k", "1")])
    go_on(server)
    with server.client() as direct:
        assert direct.exists("k") == 0
