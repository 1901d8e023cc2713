"""A server whose disk takes nothing more: named errors, reads go on, and nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redis_state import config
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.errors import FullError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

Start = Callable[..., RedisServer]
Rows = dict[bytes, bytes]
ID = StateStoreProviderId(StateStoreId("orders", 0, 0), "run")


def cured_at_third_wait(cure: Callable[[], object]) -> ManualClock:
    """A clock on which the third wait cures."""
    clock = ManualClock()
    clock.sleeps_are = lambda: cure() if len(clock.slept_s) == 3 else None
    return clock


def rows_of(version: int) -> Rows:
    """More than any buffer on the way to the disk would take."""
    return {b"%06d" % n: random.Random(n + version).randbytes(200) for n in range(500)}


@pytest.fixture
def providers() -> Iterator[Callable[..., StateStoreProvider]]:
    made: list[StateStoreProvider] = []

    def new(server: RedisServer, **options: Any) -> StateStoreProvider:
        made.append(StateStoreProvider(ID, config=server.url, codec=RAW, **options))
        return made[-1]

    yield new
    for provider in made:
        provider.close()


def commit(provider: StateStoreProvider, version: int) -> None:
    store = provider.get_store(version)
    store.put_many(rows_of(version + 1))
    assert store.commit() == version + 1


def check(provider: StateStoreProvider, versions: int) -> None:
    for version in range(1, versions + 1):
        assert dict(provider.get_read_store(version).iterator()) == rows_of(version)


def refuses(server: RedisServer) -> bool:
    with server.client() as direct:
        return str(direct.info("persistence")["aof_last_write_status"]) == "err"


def has_written(server: RedisServer) -> bool:
    """True if the file has all writes; a pending write on a slow disk fails the next command."""
    with server.client() as direct:
        found = direct.info("persistence")
        return not int(found["aof_buffer_length"]) and not int(found["aof_pending_bio_fsync"])


@pytest.mark.parametrize("room", [0, 60], ids=["nothing", "half a command"])
def test_full_disk_of_the_append_only_file_raises_full_and_recovers(
    start_redis: Start,
    providers: Callable[..., StateStoreProvider],
    tmp_path: Path,
    room: int,
) -> None:
    server = start_redis(folder=tmp_path)
    writer = providers(server)
    commit(writer, 0)
    store = writer.get_store(1)
    store.put_many(rows_of(2))
    wait_until(lambda: has_written(server), "the file to have the first commit")
    server.fill_disk(room=room)
    # The server notices by a write, which it has in its memory and answers all the same.
    assert store.commit() == 2
    wait_until(lambda: refuses(server), "the server to notice")
    with pytest.raises(FullError, match="MISCONF"):
        commit(writer, 2)
    check(providers(server), 2)
    server.clear_disk()
    wait_until(lambda: not refuses(server), "the server to notice")
    commit(writer, 2)
    wait_until(lambda: has_written(server), "the file to have the last commit")
    server.kill()
    server.restart()
    check(providers(server), 3)
    commit(providers(server), 3)


def test_full_disk_of_the_snapshot_file_raises_full_and_recovers(
    start_redis: Start, providers: Callable[..., StateStoreProvider], tmp_path: Path
) -> None:
    server = start_redis(options={"dir": str(tmp_path), "save": "3600 1"})

    def status_after_save() -> str:
        with server.client() as direct:
            direct.bgsave()
            wait_until(
                lambda: not direct.info("persistence")["rdb_bgsave_in_progress"], "the save to end"
            )
            return str(direct.info("persistence")["rdb_last_bgsave_status"])

    writer = providers(server)
    commit(writer, 0)
    server.fill_disk()
    assert status_after_save() == "err"
    with pytest.raises(FullError, match="MISCONF"):
        commit(writer, 1)
    check(providers(server), 1)
    server.clear_disk()
    assert status_after_save() == "ok"
    commit(writer, 1)
    check(providers(server), 2)


def test_server_exit_under_appendfsync_always_retries_the_commit(
    start_redis: Start, providers: Callable[..., StateStoreProvider], tmp_path: Path
) -> None:
    """A server with `appendfsync always` cannot take its answer back, and exits instead."""
    server = start_redis(folder=tmp_path, options={"appendfsync": "always"})

    def start_again() -> None:
        server.kill()  # It has ended by itself.
        server.restart()

    clock = cured_at_third_wait(start_again)
    options = config.parse({"url": server.url, "deadline": "60s"})
    with closing(Client(options, clock=clock)) as client:
        writer = providers(server, client=client)
        commit(writer, 0)
        server.fill_disk(room=60)
        commit(writer, 1)
    assert len(clock.slept_s) == 3
    server.kill()
    server.restart()
    check(providers(server), 2)
    commit(providers(server), 2)
