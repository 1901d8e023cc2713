"""Live reads while masters change: every read is answered, and of one version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import redis_state
from redis_state.errors import ConfigError, ConflictError
from redis_state.reader import Query
from tests.contract.test_reader_consistency import ACCOUNTS, SUM, Bank, committing
from tests.support.redis_sentinel import SentinelSet
from tests.support.redis_server import RedisServer

READS = 30


@pytest.fixture
def bank(sentinels: SentinelSet) -> Iterator[Bank]:
    made = Bank(sentinels.url, durability="replicas:1", deadline="60s")
    yield made
    made.close()


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
def test_reads_go_on_over_fail_overs(sentinels: SentinelSet, bank: Bank, fail_overs: int) -> None:
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
    """How often blocks were read there."""
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("hmget", "hget"))


def test_a_replica_serves_if_it_is_asked_for(sentinels: SentinelSet, bank: Bank) -> None:
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


def test_the_url_of_a_replica_is_enough_without_sentinels(
    sentinels: SentinelSet, bank: Bank
) -> None:
    for _ in range(2):
        bank.run()
    _, replica = sentinels.servers
    with redis_state.connect(replica.url, replica=True) as reader:
        Looker(reader.query(bank.name)).read()


def test_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="not equally far behind"):
        redis_state.connect("redis+cluster://127.0.0.1:7000", replica=True)
