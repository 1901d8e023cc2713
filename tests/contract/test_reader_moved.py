"""A query that got another number of partitions in place: readers of before are told so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.errors import StateError
from redis_state.live import Reader
from redis_state.reader.feed.feed_positions import Advice
from redis_state.spark.live.live_state import LiveState
from tests.contract.planting import GEN, Planted
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer

UA = {"carrier": "UA"}
ONE, TWO = {"count": 1, "total": 0.5}, {"count": 2, "total": 1.5}
MOVED = r"number of partitions of the store was changed.* Open the store again by its name"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def move(planted: Planted) -> Callable[[], None]:
    """Plants a query; returns a function that marks its store as moved, as the driver does."""
    planted.register()
    planted.commit(1, [(UA, ONE)])
    planted.commit(2, [(UA, TWO)])

    def moved() -> None:
        planted.client.hset(keys.query(GEN), "moved:0:default", "f" * 32)

    return moved


def test_calls_raise_within_ten_seconds_of_a_move(
    reader: Reader, clock: ManualClock, move: Callable[[], None]
) -> None:
    query = reader.query("flights")
    state = query.operator()
    view = query.view()
    assert state.get(UA) == TWO
    move()
    trips = reader.client.round_trips
    assert state.get(UA) == TWO
    assert reader.client.round_trips == trips + 1
    clock.now_s += 10
    asked: list[Callable[[], Any]] = [
        lambda: state.get(UA),
        lambda: state.get_many([UA]),
        lambda: list(state.items()),
        lambda: state.count(at="latest"),
        query.view,
        lambda: list(state.changes(since="start")),
        lambda: reader.query("flights").operator().get(UA),
    ]
    for ask in asked:
        with pytest.raises(StateError, match=MOVED):
            ask()
    # What is named is there as long as the old checkpoint is.
    assert state.get(UA, at=0) == ONE
    assert query.view(at=0).operator().get(UA) == ONE
    assert view.operator().get(UA) == TWO


def test_waiting_feed_raises_after_a_move(
    reader: Reader, clock: ManualClock, move: Callable[[], None]
) -> None:
    feed = reader.query("flights").operator().changes(since=0, follow=True)
    assert next(feed).number == 1
    clock.sleeps_are = move
    # Nobody writes the partitions of before any more.
    with pytest.raises(StateError, match=MOVED):
        next(feed)
    assert clock.now_s <= 12


def test_waiting_stream_raises_after_a_move(
    redis_server: RedisServer, clock: ManualClock, move: Callable[[], None]
) -> None:
    options = config.parse({"url": redis_server.url, "deadline": "600s"})
    state = LiveState(options, "flights", 0, "default", "default", "confirmed")
    with closing(Client(options, clock=clock)) as client:
        spans = state.changes(lambda _: client, Advice("", ""))
        newest = spans.newest()
        for _ in range(2):
            assert spans.next(newest, batches=None, top=None) == newest
        move()
        clock.now_s += 10
        with pytest.raises(StateError, match=MOVED):
            spans.next(newest, batches=None, top=None)
