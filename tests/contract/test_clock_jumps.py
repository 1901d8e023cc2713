"""The server's clock jumps, while the processes' own clocks go on (docs/reliability.md, "Clocks").

A jump shows in two things: keys live so much shorter or longer, and the number that a new run gets
begins elsewhere. So it is played by changing both, which is the same on every server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.codec import RAW
from redis_state.coordinator import StateStoreCoordinator
from redis_state.errors import ConflictError, Kind, StateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import checkpoint_gen
from redis_state.protocol.runs import RegisteredRun, register_run
from redis_state.store.provider import StateStoreProvider
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer, bytes_of

HOUR_MS = 3_600_000
JUMPS = pytest.mark.parametrize(
    "jump_ms", [HOUR_MS, -HOUR_MS, 25 * HOUR_MS], ids=["+1h", "-1h", "+25h"]
)
NAME = "orders"
STORE = StateStoreId(NAME, 0, 0)
Rows = dict[bytes, bytes]
New = Callable[..., StateStoreProvider]


def jump(raw: redis.Redis, by_ms: int) -> None:
    """As if the server's clock stood so much later from now on."""
    for key in raw.scan_iter(count=1000):
        left = raw.pttl(key)
        if left > 0:
            raw.pexpire(key, left - by_ms)
        if raw.type(key) == b"hash":
            _age_epochs(raw, key, by_ms)


def _age_epochs(raw: redis.Redis, key: bytes, by_ms: int) -> None:
    for field, reply in raw.hgetall(key).items():
        if key.endswith((b":q", b":m")) and (field in (b"epoch", b"e") or field[:4] == b"run:"):
            epoch, blank, source = bytes_of(reply).partition(b" ")
            raw.hset(key, field, b"%d%b%b" % (max(1, int(epoch) - by_ms), blank, source))


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def new(redis_server: RedisServer) -> Iterator[New]:
    made: list[StateStoreProvider] = []

    def provider(run_id: str = "run-1", **options: Any) -> StateStoreProvider:
        options = {"config": config.parse({"url": redis_server.url}), "codec": RAW, **options}
        made.append(StateStoreProvider(StateStoreProviderId(STORE, run_id), **options))
        return made[-1]

    yield provider
    for one in made:
        one.close()


def rows_of(seed: int, count: int = 300) -> Rows:
    return {b"%06d" % n: random.Random(n + seed).randbytes(200) for n in range(count)}


def commit(provider: StateStoreProvider, version: int, rows: Rows) -> None:
    store = provider.get_store(version)
    store.put_many(rows)
    store.commit()


def registered(server: RedisServer, raw: redis.Redis, run_id: str) -> RegisteredRun:
    """As a driver does before its tasks start."""
    gen = bytes_of(raw.hget(keys.names(), keys.name_field(NAME)))
    with closing(Client(config.parse({"url": server.url}))) as client:
        return register_run(client, gen.decode(), run_id, by_driver=True)


@JUMPS
def test_clock_jump_keeps_published_state_and_the_job_running(
    new: New, raw: redis.Redis, jump_ms: int
) -> None:
    writer, slow = new(), new()
    commit(writer, 0, rows_of(1))
    writer.get_store(1)
    late = slow.get_store(1)
    late.put_many(rows_of(99))
    late.commit()
    # Takes the place of the one before, which has an expiry now.
    commit(writer, 1, rows_of(2))
    jump(raw, jump_ms)
    commit(writer, 2, rows_of(3))
    for version in (1, 2, 3):
        assert dict(new("reader").get_read_store(version).iterator()) == rows_of(version)


@JUMPS
def test_open_reader_survives_a_clock_jump_after_a_drop(
    new: New, raw: redis.Redis, redis_server: RedisServer, jump_ms: int
) -> None:
    options = config.parse({"url": redis_server.url, "versionsToRetain": 2})
    writer = new(config=options)
    rows: Rows = {}
    for version in range(6):
        changed = rows_of(version, count=3000 if version == 0 else 20)
        commit(writer, version, changed)
        rows |= changed
    reader = new("reader").get_read_store(6)
    assert reader.get(b"000001") == rows[b"000001"]
    writer.get_store(6)
    assert writer._partition.maintenance.snapshot(new("other")._partition.read(6))
    for version in range(6, 9):
        commit(writer, version, {})
    writer.do_maintenance()
    jump(raw, jump_ms)
    assert dict(reader.iterator()) == rows
    assert dict(new("later").get_read_store(9).iterator()) == rows


class JumpsBeforePublishing(Client):
    """The jump comes between the staging of a commit and its publication."""

    def __init__(self, server: RedisServer, act: Callable[[], None]) -> None:
        super().__init__(config.parse({"url": server.url}), clock=ManualClock())
        self._act = act
        self.transactions = 0

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        # A server that does not know the scripts yet is sent the same once more, by their texts.
        if commands[0] == ("MULTI",) and commands[-2][0] == "EVALSHA":
            self.transactions += 1
            if self.transactions == 1:
                self._act()
        return super()._exchange(attempted, commands)


@JUMPS
def test_staged_rows_that_expired_are_staged_again(
    new: New, raw: redis.Redis, redis_server: RedisServer, jump_ms: int
) -> None:
    rows = rows_of(1, count=20_000)
    with closing(JumpsBeforePublishing(redis_server, lambda: jump(raw, jump_ms))) as client:
        commit(new(client=client), 0, rows)
        assert client.transactions == (2 if jump_ms > 24 * HOUR_MS else 1)
    assert dict(new("reader").get_read_store(1).iterator()) == rows


@JUMPS
def test_later_run_is_newer_despite_a_clock_jump(
    new: New, raw: redis.Redis, redis_server: RedisServer, jump_ms: int
) -> None:
    commit(new(), 0, rows_of(1))
    first = registered(redis_server, raw, "run-1")
    zombie = new(run=first).get_store(1)
    zombie.put_many(rows_of(99))
    jump(raw, jump_ms)
    second = registered(redis_server, raw, "run-2")
    if jump_ms < 0:
        assert second.epoch == first.epoch - jump_ms + 1
    commit(new("run-2", run=second), 1, rows_of(2))
    with pytest.raises(ConflictError):
        zombie.commit()
    assert dict(new("reader").get_read_store(2).iterator()) == rows_of(2)


@JUMPS
def test_clock_jump_only_changes_how_long_an_instance_is_listed(
    new: New, raw: redis.Redis, redis_server: RedisServer, jump_ms: int
) -> None:
    commit(new(), 0, rows_of(1))
    with closing(Client(config.parse({"url": redis_server.url}))) as client:
        clock = ManualClock()
        living = StateStoreCoordinator(client, clock=clock, threaded=False)
        dead = StateStoreCoordinator(client, clock=clock, threaded=False)
        id_ = StateStoreProviderId(STORE, "run-1")
        dead.reference(NAME).report_active_instance(id_, "host-1", "1")
        dead.heartbeat.tick()
        jump(raw, jump_ms)
        assert (living.reference(NAME).get_location(id_) is not None) == (jump_ms < 0)
        # Another process has the place at once, and gets it again with its next beat.
        living.reference(NAME).report_active_instance(id_, "host-2", "2")
        living.heartbeat.tick()
        assert living.reference(NAME).verify_if_instance_active(id_, "2")
        jump(raw, abs(jump_ms))
        clock.now_s += 3600
        living.heartbeat.tick()
        assert living.reference(NAME).verify_if_instance_active(id_, "2")
    commit(new(), 1, rows_of(2))


def test_ephemeral_checkpoint_lost_to_a_clock_jump_is_named(
    new: New, raw: redis.Redis, redis_server: RedisServer
) -> None:
    """Its keys are promised an hour without a sign of life."""
    ephemeral = config.parse({"url": redis_server.url, "ephemeral": True})
    writer = new(config=ephemeral)
    commit(writer, 0, rows_of(1))
    jump(raw, -HOUR_MS)
    commit(writer, 1, rows_of(2))
    jump(raw, 3 * HOUR_MS)
    assert checkpoint_gen(writer._client, NAME) is not None
    for attempt in (writer, new(config=ephemeral)):
        with pytest.raises(StateError) as caught:
            commit(attempt, 2, rows_of(3))
        assert caught.value.kind is Kind.STATE_LOST
