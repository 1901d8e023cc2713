"""Live views: one look an interval, what it finds, and what is given when it fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.errors import ConfigError, NotFoundError, StateError, UnavailableError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.reader import LiveView
from redis_state.reader.version_request import NEWEST
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted
from tests.support.forking import in_child
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

UA, AA = {"carrier": "UA"}, {"carrier": "AA"}
ONE, TWO, THREE = ({"count": n, "total": n / 2} for n in (1, 2, 3))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def live(planted: Planted, reader: Reader) -> LiveView:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    return reader.query("flights").live_view(interval_s=0.5)


def snapshots(planted: Planted, version: int, value: dict[str, Any]) -> None:
    """Replaces the deltas of each partition with a snapshot, as maintenance does."""
    for number in range(planted.partitions):
        there = [key for key in (UA, AA) if planted.partition(key) == number]
        rows = {planted.key(key): planted.value(value) for key in there}
        planted.snapshot(number, version, rows)


def test_live_view_polls_once_an_interval(
    planted: Planted, reader: Reader, clock: ManualClock, live: LiveView
) -> None:
    state = live.operator()
    assert state.get_many([UA, AA]) == [ONE, ONE]
    planted.commit(2, [(UA, TWO), (AA, TWO)])
    before = reader.client.round_trips
    clock.now_s += 0.49
    for _ in range(10):
        assert (state.get(UA), state.get(AA)) == (ONE, ONE)
    assert live.current().batch == 0
    assert reader.client.round_trips == before, "nothing was asked in between"
    clock.now_s += 0.01
    pinned = live.current()
    assert (pinned.batch, state.get(UA), state.get_many([AA])) == (1, TWO, [TWO])
    before = reader.client.round_trips
    clock.now_s += 0.5
    assert (state.get(UA), state.get(AA)) == (TWO, TWO)
    assert reader.client.round_trips - before == 2, "the list of stores, and the partitions"
    planted.commit(3, [(UA, THREE)])
    clock.now_s += 0.5
    assert state.get(UA) == THREE
    assert pinned.operator().get(UA) == TWO, "a view stays as it is"


def test_scans_of_a_live_view_read_the_newest_version(planted: Planted, live: LiveView) -> None:
    state = live.operator()
    assert state.get(UA) == ONE
    planted.commit(2, [(UA, TWO), (AA, TWO)])
    assert state.get(UA) == ONE
    assert [value for _, value in state.items()] == [TWO, TWO]
    assert state.count() == 2
    assert live.view().batch == 1
    assert [one.value for one in state.history(UA)] == [TWO, ONE]
    assert [one.after for one in state.diff(0)] == [TWO, TWO]


def test_each_call_reads_one_version(planted: Planted, live: LiveView) -> None:
    state = live.operator()
    assert state.get(UA) == ONE
    planted.commit(2, [(UA, TWO), (AA, TWO)])
    # Another partition than the one that was read: still the version of the last look.
    assert planted.partition(UA) != planted.partition(AA)
    assert state.get_many([AA, UA]) == [ONE, ONE]


def test_live_view_reads_a_snapshot_that_replaced_its_deltas(
    planted: Planted, clock: ManualClock, live: LiveView
) -> None:
    planted.commit(2, [(UA, TWO), (AA, TWO)])
    state = live.operator()
    assert live.current().batch == 1
    snapshots(planted, 2, TWO)
    assert (state.get(UA), state.get(AA)) == (TWO, TWO)
    clock.now_s += 1
    assert (state.get(UA), state.get(AA)) == (TWO, TWO)


def test_pinned_view_reads_a_snapshot_that_replaced_its_deltas(
    planted: Planted, reader: Reader, live: LiveView
) -> None:
    pinned = live.current()
    assert pinned.batch == 0
    assert live.operator().get(UA) == ONE
    snapshots(planted, 1, ONE)
    before = reader.client.round_trips
    assert pinned.operator().count() == 2
    assert [value for _, value in pinned.operator().items()] == [ONE, ONE]
    opened = pinned.open_at(0, "default", NEWEST)[1]
    assert all(one.segments[0].snapshot for one in opened)
    assert reader.client.round_trips > before


def test_view_missing_on_a_replica_is_named(
    planted: Planted, reader: Reader, live: LiveView
) -> None:
    pinned = live.current()
    for number in range(planted.partitions):
        planted.client.delete(keys.meta(planted.id(number)))
    with pytest.raises(StateError):
        list(pinned.operator().items())
    reader.client.may_lag = True
    with pytest.raises(UnavailableError, match="replica"):
        list(pinned.operator().items())


def test_stale_view_raises_unavailable_when_the_server_is_down(
    redis_server: RedisServer, clock: ManualClock, live: LiveView
) -> None:
    state = live.operator()
    assert state.get(UA) == ONE
    redis_server.kill()
    assert state.get(UA) == ONE
    clock.now_s += 0.5
    with pytest.raises(UnavailableError):
        state.get(UA)
    with pytest.raises(UnavailableError):
        live.current()


def test_moved_query_raises_and_advises_to_reopen(
    planted: Planted, clock: ManualClock, live: LiveView
) -> None:
    state = live.operator()
    assert state.get(UA) == ONE
    planted.client.hset(keys.query(GEN), "moved:0:default", "f" * 32)
    clock.now_s += 0.5
    with pytest.raises(StateError, match="Open the store again by its name"):
        state.get(UA)


def test_invalid_arguments_are_refused(reader: Reader, live: LiveView) -> None:
    query = reader.query("flights")
    for interval_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"interval_s is .* Give seconds above 0"):
            query.live_view(interval_s=interval_s)
    with pytest.raises(ConfigError, match="newest confirmed version"):
        live.operator().get(UA, at=0)
    with pytest.raises(NotFoundError, match="no such operator"):
        query.live_view(7).operator(7).get(UA)
    with pytest.raises(NotFoundError, match="no such operator"):
        live.operator(7).get(UA)
    with pytest.raises(ConfigError, match="Give seconds above 0"):
        query.live_view(interval_s="0.1")  # type: ignore[arg-type]  # as who reads it from a file
    assert repr(live).startswith("LiveView(Query(name='flights'")
    assert [one.operator for one in live.operators()] == [0]


def test_threads_share_one_poll(
    planted: Planted, reader: Reader, clock: ManualClock, live: LiveView
) -> None:
    state = live.operator()
    assert state.get(UA) == ONE
    together = threading.Barrier(8)

    def get(_: int) -> Any:
        together.wait()
        return state.get(UA)

    with ThreadPoolExecutor(8) as pool:
        for version in range(2, 12):
            value = {"count": version, "total": 0.0}
            planted.commit(version, [(UA, value)])
            clock.now_s += 0.5
            before = reader.client.round_trips
            assert list(pool.map(get, range(8))) == [value] * 8
            # The list of stores, what is confirmed, its segments; and blocks, at most one a thread.
            assert reader.client.round_trips - before <= 3 + 8


class CountedClock(ManualClock):
    """Knows who has looked at it."""

    def __init__(self) -> None:
        super().__init__()
        self.who: set[int] = set()

    def monotonic_s(self) -> float:
        self.who.add(threading.get_ident())
        return super().monotonic_s()


@pytest.mark.parametrize(("fails", "looks"), [(False, 1), (True, 2)])
def test_waiting_threads_reuse_the_poll_of_another_thread(
    planted: Planted, redis_server: RedisServer, fails: bool, looks: int
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    clock, made = CountedClock(), []
    with Reader(config.parse({"url": redis_server.url}), clock=clock) as reader:
        live = reader.query("flights").live_view(interval_s=0.5)
        assert live.operator().get(UA) == ONE
        look = live._looks._look
        clock.now_s += 1
        clock.who.clear()

        def slow(last: Any) -> Any:
            made.append(last)
            wait_until(lambda: len(clock.who) >= 8, "all threads to wait")
            # The look takes longer than the interval.
            clock.now_s += 5
            if fails:
                raise UnavailableError("looking", found="no answer")
            return look(last)

        live._looks._look = slow

        def get(_: int) -> Any:
            try:
                return live.operator().get(UA)
            except UnavailableError as error:
                return str(error)

        with ThreadPoolExecutor(8) as pool:
            found = set(map(str, pool.map(get, range(8))))
    assert len(made) == looks
    assert len(found) == 1
    assert ("no answer" in found.pop()) == fails


def test_live_view_of_one_operator_hides_the_others(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    other = replace(planted, operator=1, live={})
    other.register()
    other.commit(1, [(UA, TWO)])
    query = reader.query("flights")
    live = query.live_view(0)
    assert live.operator(0).get(UA) == ONE
    for read in (lambda: live.operator(1).get(UA), lambda: list(live.operator(1).items())):
        with pytest.raises(NotFoundError, match=r"no such operator"):
            read()
    assert query.live_view().operator(1).get(UA) == TWO


def test_store_of_an_earlier_plan_is_not_polled_each_time(
    planted: Planted, reader: Reader, clock: ManualClock
) -> None:
    planted.register()
    other = replace(planted, operator=1, live={})
    other.register()
    for version in (1, 2):
        planted.commit(version, [(UA, TWO)])
    other.commit(1, [(UA, ONE)])
    for number in range(planted.partitions):
        planted.drop(number, f"d:1:{1:032x}")
        planted.snapshot(number, 2, {})
    live = reader.query("flights").live_view(interval_s=0.5)
    live.operator(0).get(UA)
    trips = []
    for _ in range(30):
        clock.now_s += 0.5
        before = reader.client.round_trips
        live.current()
        trips.append(reader.client.round_trips - before)
    assert sorted(trips)[-2] == 2 < max(trips), trips
    with pytest.raises(StateError):
        live.operator(1).get(UA)


def test_forked_process_polls_on_its_own(
    planted: Planted, clock: ManualClock, live: LiveView
) -> None:
    state = live.operator()
    assert state.get(UA) == ONE
    # As another thread of the parent would hold it that is looking at the moment of the fork.
    with live._looks._lock:
        planted.commit(2, [(UA, TWO)])
        clock.now_s += 1
        assert in_child(lambda: state.get(UA)) == TWO


def test_added_partitions_of_a_python_store_are_found(
    redis_server: RedisServer, reader: Reader, clock: ManualClock
) -> None:
    def put(partition: int, key: str) -> None:
        id_ = StateStoreProviderId(StateStoreId("orders", 0, partition), "run")
        with closing(StateStoreProvider(id_, config=redis_server.url)) as provider:
            store = provider.get_store(0)
            store.put(key, partition)
            store.commit()
            # What was opened is confirmed.
            provider.get_store(1).abort()

    put(0, "a")
    state = reader.query("orders").live_view(interval_s=0.5).operator()
    assert state.get_many(["a", "b"]) == [0, None]
    put(1, "b")
    assert state.get_many(["a", "b"]) == [0, None]
    clock.now_s += 0.5
    assert state.get_many(["a", "b"]) == [0, 1]
