"""Live reads while masters change: every read is answered, and of one version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import redis_state
from redis_state import config
from redis_state.backend.sentinel import REPLICA_LOOK_S
from redis_state.backend.transport import ServerTransport
from redis_state.errors import ConfigError, ConflictError, UnavailableError
from redis_state.live import Reader
from redis_state.reader import Query
from tests.contract.test_reader_consistency import ACCOUNTS, SUM, Bank, committing
from tests.support.redis_sentinel import SentinelSet
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until
from tests.topologies.conftest import ActsOnSleep

READS = 30

Spares = tuple[Reader, ActsOnSleep]


@pytest.fixture
def bank(sentinels: SentinelSet) -> Iterator[Bank]:
    made = Bank(sentinels.url, durability="replicas:1", deadline="60s")
    yield made
    made.close()


@pytest.fixture
def spares(sentinels: SentinelSet) -> Iterator[Spares]:
    """Reads from the replica, by a clock on which time passes only while somebody waits."""
    clock = ActsOnSleep()
    options = config.parse({"url": sentinels.url, "deadline": "3600s"})
    with Reader(options, clock=clock, replica=True) as reader:
        yield reader, clock


class Looker:
    """Reads in turns, and confirmed versions never go back: commits wait for a replica."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._newest = 0
        self._turn = 0

    def read(self) -> None:
        self._turn += 1
        state = self._query.operator()
        if self._turn % 3:
            found = state.get_many(list(range(ACCOUNTS)))
        else:
            found = [value for _, value in state.items()]
        assert (len(found), sum(found)) == (ACCOUNTS, SUM)
        version = self._query.view().version
        assert version is not None
        assert version >= self._newest
        self._newest = version


@pytest.mark.parametrize("fail_overs", [1, pytest.param(5, marks=pytest.mark.long)])
def test_reads_continue_during_fail_overs(
    sentinels: SentinelSet, bank: Bank, fail_overs: int
) -> None:
    bank.run()
    bank.run()
    with (
        redis_state.connect(sentinels.url, deadline="60s") as reader,
        committing(bank, ConflictError),
    ):
        looker = Looker(reader.query(bank.name))
        for number in range(fail_overs):
            sentinels.fail_over()
            wanted = [b"slave", b"master"] if number % 2 == 0 else [b"master", b"slave"]
            while sentinels.roles() != wanted:
                looker.read()
            for _ in range(READS):
                looker.read()
            if number + 1 < fail_overs:
                sentinels.await_replicas()


def asked(server: RedisServer) -> int:
    """Number of block reads on this server."""
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("hmget", "hget"))


def test_replica_serves_reads_if_configured(sentinels: SentinelSet, bank: Bank) -> None:
    for _ in range(3):
        bank.run()
    master, replica = sentinels.servers
    before = asked(master)
    with redis_state.connect(sentinels.url, replica=True, deadline="60s") as reader:
        looker = Looker(reader.query(bank.name))
        for _ in range(6):
            looker.read()
        assert asked(master) == before
        assert asked(replica) > 0
        assert reader.query(bank.name).operator().get(0, max_age=300) is not None
        # While none follows, the master is asked.
        replica.kill()
        looker.read()
        assert asked(master) > before


def value_at(reader: Reader) -> bytes | None:
    (found,) = reader.client.call("reading", [("HGET", "h", "f")])
    assert found is None or isinstance(found, bytes)
    return found


def put(server: RedisServer, value: str) -> None:
    with server.client() as client:
        client.hset("h", "f", value)
        client.wait(1, 10_000)


def test_replica_without_its_master_is_abandoned(sentinels: SentinelSet, spares: Spares) -> None:
    master, replica = sentinels.servers
    reader, _ = spares
    put(master, "before")
    assert value_at(reader) == b"before"
    assert asked(master) == 0
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    with master.client() as client:
        client.hset("h", "f", "after")
    assert value_at(reader) == b"after"
    assert asked(master) == 1


@pytest.mark.long
def test_promoted_replica_is_not_read_as_a_replica(sentinels: SentinelSet, spares: Spares) -> None:
    old, new = sentinels.servers
    reader, clock = spares
    put(old, "value")
    assert value_at(reader) == b"value"
    sentinels.fail_over()
    while sentinels.roles() != [b"slave", b"master"]:
        assert value_at(reader) == b"value"
    sentinels.await_replicas()
    clock.sleep_s(REPLICA_LOOK_S)
    assert value_at(reader) == b"value"
    before = asked(new), asked(old)
    for _ in range(READS):
        assert value_at(reader) == b"value"
    assert (asked(new), asked(old)) == (before[0], before[1] + READS)


def test_restarted_replica_is_used_again(sentinels: SentinelSet, spares: Spares) -> None:
    master, replica = sentinels.servers
    reader, clock = spares
    put(master, "value")
    assert value_at(reader) == b"value"
    replica.kill()
    assert value_at(reader) == b"value"
    assert asked(master) == 1
    replica.start()

    def is_asked() -> bool:
        clock.sleep_s(REPLICA_LOOK_S)
        assert value_at(reader) == b"value"
        return asked(replica) > 0

    wait_until(is_asked, "the replica to be asked")
    before = asked(master), asked(replica)
    for _ in range(READS):
        assert value_at(reader) == b"value"
    assert (asked(master), asked(replica)) == (before[0], before[1] + READS)


def test_user_without_the_role_right_reads_from_a_replica(sentinels: SentinelSet) -> None:
    master, replica = sentinels.servers
    for server in (master, replica):
        with server.client() as client:
            allowed: Any = ("on", ">geheim", "~*", "+hget", "+hello")
            client.execute_command("ACL", "SETUSER", "reads", *allowed)
    put(master, "value")
    with redis_state.connect(
        sentinels.url, replica=True, username="reads", password="geheim"
    ) as reader:
        assert value_at(reader) == b"value"
        assert (asked(master), asked(replica)) == (0, 1)


def test_url_of_a_replica_suffices_without_sentinels(sentinels: SentinelSet, bank: Bank) -> None:
    for _ in range(2):
        bank.run()
    _, replica = sentinels.servers
    with redis_state.connect(replica.url, replica=True) as reader:
        Looker(reader.query(bank.name)).read()


def test_version_missing_on_a_replica_is_not_state_lost(sentinels: SentinelSet) -> None:
    master, replica = sentinels.servers
    bank = Bank(sentinels.url)
    for _ in range(2):
        bank.run()
    with master.client() as client:
        client.wait(1, 10_000)
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    bank.run()
    bank.close()
    with redis_state.connect(master.url, replica=True) as reader:
        state = reader.query(bank.name).operator()
        view = state.view(at="latest")
        to_master = reader.client._transport
        # Another replica is asked from now on.
        reader.client._transport = ServerTransport(config.parse({"url": replica.url}))
        keys = list(range(ACCOUNTS))
        asked: list[Callable[[], Any]] = [
            lambda: state.get(0, version=3),
            lambda: state.get(0, at=2),
            lambda: view.get_many(keys),
            lambda: list(view.items()),
            lambda: list(state.changes(since=2)),
        ]
        for ask in asked:
            with pytest.raises(UnavailableError, match="replica that answers now lags behind"):
                ask()
        reader.client._transport.close()
        reader.client._transport = to_master
        assert sum(view.get_many(keys)) == SUM


def test_replica_reads_on_a_cluster_are_refused() -> None:
    with pytest.raises(ConfigError, match="replicas lag differently"):
        redis_state.connect("redis+cluster://127.0.0.1:7000", replica=True)
