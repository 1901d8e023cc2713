"""One version over all partitions, by an invariant: transfers whose sum never changes."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import redis_state
from redis_state import StateStoreId, StateStoreProviderId, keys
from redis_state import config as options
from redis_state.backend.client import Client
from redis_state.errors import ConfigError, Kind, StateError
from redis_state.provider import StateStoreProvider
from redis_state.reader import OperatorState, Reader
from redis_state.spark.batches import begin_batch, verify_committed
from tests.contract.planting import Planted, uid
from tests.support.redis_server import RedisServer

ACCOUNTS = 64
PARTITIONS = 4
SUM = 100 * ACCOUNTS
UA, AA = {"carrier": "UA"}, {"carrier": "AA"}
ONE, TWO = {"count": 1, "total": 0.5}, {"count": 2, "total": 1.5}


class Bank:
    """Accounts in all partitions of a store; each batch moves money between them.

    Batches begin and end as those of `map_partitions_with_state_store`.
    """

    def __init__(self, url: str) -> None:
        self.name = uuid.uuid4().hex
        self._config = options.parse({"url": url})
        self._client = Client(self._config)
        self._rng = random.Random(7)
        self._balances = dict.fromkeys(range(ACCOUNTS), 100)
        self.batch = 0

    def run(self) -> None:
        """The next batch, one partition after the other."""
        batch = begin_batch(
            self._client,
            self._config,
            name=self.name,
            number=self.batch,
            first=0,
            partitions=PARTITIONS,
            partitions_default=PARTITIONS,
            layout="k",
            codec_name="msgpack",
        )
        for _ in range(16):
            giver, taker = self._rng.sample(range(ACCOUNTS), 2)
            amount = self._rng.randrange(50)
            self._balances[giver] -= amount
            self._balances[taker] += amount
        for number in self._rng.sample(range(PARTITIONS), PARTITIONS):
            id_ = StateStoreProviderId(batch.store_id(number), batch.run.run_id)
            provider = StateStoreProvider(
                id_, config=self._config, run=batch.run, client=self._client
            )
            store = provider.get_store(batch.version)
            for account in range(number, ACCOUNTS, PARTITIONS):
                store.put(account, self._balances[account])
            store.commit()
            if self.batch % 8 == 7:
                provider.do_maintenance()
            provider.close()
        verify_committed(self._client, batch)
        self.batch += 1

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def bank(redis_server: RedisServer) -> Iterator[Bank]:
    made = Bank(redis_server.url)
    yield made
    made.close()


@pytest.fixture
def reader(redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        yield reader


@contextmanager
def committing(bank: Bank) -> Iterator[None]:
    """Batches all the time, as fast as they go."""
    stop, failed = threading.Event(), []

    def work() -> None:
        try:
            while not stop.is_set():
                bank.run()
        except BaseException as error:  # noqa: BLE001  # told in the test's own thread
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failed == []


@pytest.mark.parametrize("reads", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_read_is_torn_while_the_store_commits(bank: Bank, reader: Reader, reads: int) -> None:
    bank.run()
    bank.run()
    state = reader.query(bank.name).operator()
    accounts = list(range(ACCOUNTS))
    with committing(bank):
        first = bank.batch
        for turn in range(reads):
            match turn % 8:
                case 0:
                    found = [value for _, value in state.items()]
                case 1:
                    found = state.to_arrow()["value"].to_pylist()
                case 2:
                    found = [row["value"] for row in state.scan(at="latest")]
                case 3:
                    view = state.view()
                    found = view.get_many(accounts[:20]) + [view.get(key) for key in accounts[20:]]
                case _:
                    found = state.get_many(accounts)
            assert (len(found), sum(found)) == (ACCOUNTS, SUM)
        assert bank.batch > first


def test_a_batch_is_named_by_its_number(bank: Bank, reader: Reader) -> None:
    for _ in range(3):
        bank.run()
    state = reader.query(bank.name).operator()
    assert dict(state.items(at=1)) == dict(state.items(version=2))
    assert dict(state.items(at="latest")) == dict(state.items(at=2)) != dict(state.items(at=1))
    assert dict(state.items()) == dict(state.items(at=1)), "the last batch is not confirmed"
    assert state.get(0, at=2) == dict(state.items(at=2))[0]
    assert (state.view().get(0), state.view(at="latest").get(0)) == (
        state.get(0),
        state.get(0, at="latest"),
    )
    with pytest.raises(StateError):
        state.get(0, at=7)
    asked: list[dict[str, Any]] = [{"at": "newest"}, {"at": -1}, {"at": True}]
    for wrong in [*asked, {"at": 1, "version": 2}, {"max_age": 5}, {"at": 1, "max_age": 300}]:
        with pytest.raises(ConfigError):
            state.get(0, **wrong)


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    return Planted(redis_server.client())


def confirm(planted: Planted, partition: int, version: int) -> None:
    meta = keys.meta(planted.id(partition))
    planted.client.hset(meta, mapping={"o": str(version), "ou": uid(version)})


def rows(state: OperatorState, **which: Any) -> dict[str, Any]:
    return {key["carrier"]: value for key, value in state.items(**which)}


def test_partitions_that_are_behind_are_read_where_the_first_one_is(
    planted: Planted, reader: Reader
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO), (AA, TWO)], confirmed=False)
    state = reader.query("flights").operator()
    assert rows(state) == {"UA": ONE, "AA": ONE}
    confirm(planted, planted.partition(UA), 2)
    assert planted.partition(UA) != planted.partition(AA)
    before = reader.client.round_trips
    assert state.get_many([UA, AA]) == [TWO, TWO]
    assert reader.client.round_trips - before == 3
    assert rows(state) == {"UA": TWO, "AA": TWO}


def test_which_of_several_attempts_counts_is_not_guessed(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO), (AA, TWO)], confirmed=False)
    confirm(planted, planted.partition(UA), 2)
    behind = keys.meta(planted.id(planted.partition(AA)))
    planted.client.hset(behind, mapping={"c": "2", "b": f"{uid(2)} {uid(9)}"})
    assert rows(reader.query("flights").operator()) == {"UA": ONE, "AA": ONE}
    planted.client.hset(behind, "b", uid(2))
    assert rows(reader.query("flights").operator()) == {"UA": TWO, "AA": TWO}
    planted.client.hset(behind, "k", f"other:{uid(9)}")
    assert rows(reader.query("flights").operator()) == {"UA": ONE, "AA": ONE}


def test_a_rewind_under_way_is_read_where_it_goes(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO), (AA, TWO)])
    # A newer run took one partition at version 1, and dropped what was above.
    number = planted.partition(UA)
    meta = keys.meta(planted.id(number))
    back = {"e": "2", "r": "newer", "o": "1", "ou": uid(1), "l": "1", "lu": uid(1)}
    planted.client.hset(meta, mapping=back)  # type: ignore[arg-type]  # its stub
    planted.drop(number, f"d:2:{uid(2)}")
    state = reader.query("flights").operator()
    assert rows(state) == rows(state, at="latest") == {"UA": ONE, "AA": ONE}


def test_a_partition_that_was_lost_is_not_empty(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.client.delete(keys.meta(planted.id(planted.partition(UA))))
    state = reader.query("flights").operator()
    for at in ("confirmed", "latest"):
        with pytest.raises(StateError) as error:
            rows(state, at=at)
        assert error.value.kind == Kind.STATE_LOST


def test_partitions_that_no_task_ever_had_are_empty(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.partitions = 6
    planted.register()
    state = reader.query("flights").operator()
    for at in ("confirmed", "latest"):
        assert rows(state, at=at) == {"UA": ONE, "AA": ONE}
        assert state.get_many([UA, AA, {"carrier": "none"}], at=at) == [ONE, ONE, None]


def test_partitions_with_writers_of_their_own_have_versions_of_their_own(
    redis_server: RedisServer, reader: Reader
) -> None:
    for number, commits in ((0, 1), (1, 3)):
        id_ = StateStoreProviderId(StateStoreId("counts", 0, number), f"run-{number}")
        provider = StateStoreProvider(id_, config=redis_server.url)
        for version in range(commits):
            store = provider.get_store(version)
            store.put(f"k{number}", version)
            store.commit()
        provider.get_store(commits).abort()
        provider.close()
    state = reader.query("counts").operator()
    assert dict(state.items()) == dict(state.items(at="latest")) == {"k0": 0, "k1": 2}
    assert state.get_many(["k0", "k1", "k2"]) == [0, 2, None]
    assert state.view().get_many(["k1", "k0"]) == [2, 0]


def test_a_view_is_of_one_version_while_that_is_kept(planted: Planted, reader: Reader) -> None:
    planted.partitions = 1
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    query = reader.query("flights")
    view = query.view()
    assert (view.version, view.batch) == (1, 0)
    assert repr(view).endswith("version=1)")
    planted.commit(2, [(UA, TWO)])
    state = view.operator()
    before = reader.client.round_trips
    assert state.get(UA) == ONE
    assert reader.client.round_trips - before == 1
    assert (rows(state)["UA"], state.count()) == (ONE, 2)
    assert query.operator().get(UA) == TWO
    # Maintenance replaces what the version is made of, then drops the version.
    planted.snapshot(0, 1, {planted.key(UA): planted.value(ONE), planted.key(AA): b"\0" * 25})
    assert rows(state)["UA"] == ONE
    planted.drop(0, f"s:1:{uid(1)}")
    planted.client.hset(keys.meta(planted.id(0)), "w", "2")
    with pytest.raises(StateError) as error:
        rows(state)
    assert error.value.kind == Kind.VERSION_EXPIRED
    asked: list[dict[str, Any]] = [{"at": 1}, {"version": 1}, {"max_age": 300}]
    for wrong in asked:
        with pytest.raises(ConfigError, match="another version"):
            state.get(UA, **wrong)


def test_a_view_has_one_version_of_all_stores(redis_server: RedisServer, reader: Reader) -> None:
    client = redis_server.client()
    sides = [Planted(client, operator=0, store=name) for name in ("left", "right", "gone")]
    for side in sides:
        side.register()
        side.commit(1, [(UA, ONE)])
    for side in sides[:2]:
        side.commit(2, [(UA, TWO)], confirmed=side is sides[0])
    view = reader.query("flights").view()
    assert view.version == 2
    assert [view.operator(0, side).get(UA) for side in ("left", "right")] == [TWO, TWO]
    # A store that an older plan of the query had stays behind, and only its reading fails.
    assert [one.store for one in view.operators()] == ["left", "right"]
    with pytest.raises(StateError, match="opening version 2"):
        view.operator(0, "gone").get(UA)
    assert reader.query("flights").view(at=0).operator(0, "gone").get(UA) == ONE
