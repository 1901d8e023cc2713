"""Retention of a partition with many versions: right, and never for long at a time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import Kind, StateError
from redis_state.ids import PartitionId, StoreId
from redis_state.protocol import PartitionClient, RetainReport
from tests.support.redis_server import RedisServer

VERSIONS = 2_500
RETAINED = 500
BASE_EVERY = 100
COMMANDS_MAX = 500


class CountingClient(Client):
    """Notes how many commands the server ran for each exchange, those within scripts included."""

    raw: redis.Redis
    counts: list[int]

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        before = self._ran()
        found = super()._exchange(attempted, commands)
        self.counts.append(self._ran() - before - 1)
        return found

    def _ran(self) -> int:
        stats = self.raw.info("commandstats")
        return sum(stat["calls"] for stat in stats.values())


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def client(redis_server: RedisServer, raw: redis.Redis) -> Iterator[CountingClient]:
    client = CountingClient(config.parse({"url": redis_server.url}))
    client.raw, client.counts = raw, []
    yield client
    client.close()


def planted(raw: redis.Redis, client: Client) -> PartitionClient:
    """A partition that nobody maintained: snapshots, deltas, and some attempts that were left."""
    id_ = PartitionId(StoreId(uuid.uuid4().hex, 0), 0)
    entries: dict[str, str] = {}
    for version in range(1, VERSIONS + 1):
        parent = f"u{version - 1}" if version > 1 else "-"
        entries[f"d:{version}:u{version}"] = f"{parent} 0 0 0 10 1 0 -"
        if version % 50 == 0:
            entries[f"d:{version}:left{version}"] = f"{parent} 0 0 0 10 1 0 -"
        if version % BASE_EVERY == 0:
            entries[f"s:{version}:u{version}"] = f"w{version} 0 0 0 10 1 0 -"
    newest = {"o": str(VERSIONS), "ou": f"u{VERSIONS}", "l": str(VERSIONS), "lu": f"u{VERSIONS}"}
    head = {"f": "1", "e": "7", "r": "run", "n": str(RETAINED), "w": "0", "c": "2"}
    raw.hset(keys.meta(id_), mapping=entries | newest | head)  # type: ignore[arg-type]  # its stub
    return PartitionClient(client, id_, versions_to_retain=1)


def test_each_retention_call_is_bounded(raw: redis.Redis, client: CountingClient) -> None:
    partition = planted(raw, client)
    client.counts.clear()
    report = partition.retain()
    floor = VERSIONS - RETAINED
    assert report.floor == floor
    # Below the floor all; of the base its delta, of the rest attempts and snapshots too close.
    assert report.dropped > floor
    assert report.dropped_bytes == 10 * report.dropped
    assert max(client.counts) <= COMMANDS_MAX
    assert len(client.counts) > report.dropped / COMMANDS_MAX
    assert partition.retain() == RetainReport(floor, 0, 0, report.kept)


def test_every_kept_version_loads_as_before(raw: redis.Redis, client: CountingClient) -> None:
    partition = planted(raw, client)
    floor = partition.retain().floor
    for version in (floor, floor + 1, floor + 99, floor + 100, VERSIONS - 1, VERSIONS):
        opened = partition.open("", version)
        assert opened.pin.uid == f"u{version}"
        assert opened.segments[-1].alone
        assert [one.version for one in opened.segments] == list(
            range(version, opened.segments[-1].version - 1, -1)
        )
    with pytest.raises(StateError) as raised:
        partition.open("", floor - 1)
    assert raised.value.kind is Kind.VERSION_EXPIRED


Meanwhile = Callable[[], object]


def before_the_first_drop(client: CountingClient, meanwhile: Meanwhile) -> None:
    """Something else happens between the plan of the next retention and its first step."""
    exchange, waiting = client._exchange, [meanwhile]

    def interrupted(attempted: str, commands: Sequence[Command]) -> list[Any]:
        if attempted == "retention" and commands[0][0] != "HGETALL" and waiting:
            waiting.pop()()
        return exchange(attempted, commands)

    client._exchange = interrupted  # type: ignore[method-assign]  # of one test alone


def test_rewind_by_another_run_cancels_the_plan(raw: redis.Redis, client: CountingClient) -> None:
    partition = planted(raw, client)
    meta = keys.meta(partition.id)
    # A run that a driver registered acquires at a version that the plan takes out.
    back = {"e": "8", "o": "1200", "ou": "u1200"}
    before_the_first_drop(client, lambda: raw.hset(meta, mapping=back))  # type: ignore[arg-type]  # its stub
    assert partition.retain().floor == 700
    assert raw.hget(meta, "w") == b"700"
    assert partition.open("", 1200).pin.uid == "u1200"
    assert partition.open("", 701).segments[-1].version == 700


def test_older_of_two_plans_is_cancelled(raw: redis.Redis, client: CountingClient) -> None:
    partition = planted(raw, client)
    meta, newest = keys.meta(partition.id), {"o": str(VERSIONS), "ou": f"u{VERSIONS}"}
    # It takes out the snapshot of version 2000, which is too close to others.
    raw.hset(meta, mapping={"o": "2350", "ou": "u2350"})

    def go_on() -> None:
        raw.hset(meta, mapping=newest)  # type: ignore[arg-type]  # its stub
        assert PartitionClient(client, partition.id, versions_to_retain=1).retain().floor == 2000

    before_the_first_drop(client, go_on)
    assert partition.retain().floor == 2000
    assert [one.version for one in partition.open("", 2001).segments] == [2001, 2000]


def test_fail_over_that_lost_the_base_cancels_the_plan(
    raw: redis.Redis, client: CountingClient
) -> None:
    partition = planted(raw, client)
    meta = keys.meta(partition.id)
    floor = VERSIONS - RETAINED
    # The server that came back is of the time before this snapshot, and nobody opened more since.
    before_the_first_drop(client, lambda: raw.hdel(meta, f"s:{floor}:u{floor}"))
    assert partition.retain().floor < floor
    for version in (floor, floor + 1, VERSIONS):
        assert partition.open("", version).segments[-1].alone
