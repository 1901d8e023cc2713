"""Batch and partition numbers of the reader where Redis counts differently from the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import redis_state
from redis_state import keys
from redis_state.errors import ConfigError, StateError
from redis_state.format.rows import Value
from redis_state.reader import OperatorState
from tests.contract.planting import GEN, Planted
from tests.contract.test_change_feed import ONE, TWO, UA, Script, following, rewind, rows_of
from tests.support.redis_server import RedisServer


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client())
    planted.register()
    return planted


@pytest.fixture
def state(redis_server: RedisServer, planted: Planted) -> Iterator[OperatorState]:
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        yield reader.query(planted.name).operator()


@pytest.mark.parametrize(
    ("began", "ahead"),
    [
        ('8 7 4 run "key k: string; codec msgpack"', -6),
        ('8 7 4 run "key k: string; a processor with an initial state"', -5),
        ('1 0 4 run "key k: string; a processor with an initial state"', 2),
    ],
)
def test_batches_are_numbered_as_in_the_query(
    planted: Planted, state: OperatorState, began: str, ahead: int
) -> None:
    planted.client.hset(keys.query(GEN), "batch:0:default", began)
    for version in range(1, 5):
        planted.commit(version, [(UA, {"count": version, "total": 0.0})])
    (whole,) = state.changes(since="start")
    batches = list(state.changes(since=3 - ahead))
    assert (whole.number, [one.number for one in batches]) == (4 - ahead, [4 - ahead])
    assert list(state.changes(since=whole.token)) == []
    assert [one.number for one in state.changes(since=-1)] == [n - ahead for n in range(1, 5)]
    assert [one.batch for one in state.history(UA)] == [n - ahead for n in range(4, 0, -1)]
    for a, b, counts in (
        (3 - ahead, 4 - ahead, (3, 4)),
        (2 - ahead, None, (2, 4)),
        (-1, 3 - ahead, (None, 3)),
    ):
        (change,) = state.diff(a, b)
        before = None if change.before is None else change.before["count"]
        assert (before, change.after["count"]) == counts
        assert change.before in (None, state.get(UA, at=a) if a >= 0 else None)
    if ahead < 1:
        for read in (state.changes(since=-ahead), state.diff(0)):
            with pytest.raises(ConfigError, match=f"the store began with batch {1 - ahead}"):
                list(read)
    for number in range(planted.partitions):
        planted.snapshot(number, 3, {})
    for read in (state.changes(since=2 - ahead), state.diff(2 - ahead)):
        with pytest.raises(StateError, match=f"that batch {3 - ahead} or an older") as refused:
            list(read)
        assert refused.value.version == 3
    rewind(planted, 3, partitions=range(4))
    with pytest.raises(StateError, match=f"below batch {4 - ahead}; .* batch is {3 - ahead}"):
        list(state.changes(since=whole.token))


def test_dropped_deltas_after_an_initial_state_name_the_next_step(
    planted: Planted, state: OperatorState
) -> None:
    began = '1 0 4 run "key k: string; a processor with an initial state"'
    planted.client.hset(keys.query(GEN), "batch:0:default", began)
    for version in (1, 2, 3):
        planted.commit(version, [(UA, ONE)])
    for number in range(planted.partitions):
        planted.snapshot(number, 1, {})
    with pytest.raises(
        StateError, match=r"items\(version=2\) and continue with since=0"
    ) as refused:
        list(state.changes(since=-1))
    assert refused.value.version == 2
    assert [one.number for one in state.changes(since=0)] == [1]


def test_surplus_partitions_of_a_union_do_not_block_the_feed(
    redis_server: RedisServer, planted: Planted
) -> None:
    def commit(version: int, value: dict[str, Any]) -> None:
        planted.partitions = 4
        planted.commit(version, [(UA, value)])

    planted.partitions = 6
    planted.register()
    clock = Script(lambda: commit(1, ONE), lambda: commit(2, TWO))
    state = following(redis_server, planted, clock)
    feed = state.changes(since="start", follow=True)
    assert [(one.number, rows_of(one)) for one in (next(feed), next(feed), next(feed))] == [
        (-1, []),
        (0, [("UA", 1)]),
        (1, [("UA", 2)]),
    ]
    (whole,) = state.changes(since="start")
    assert (whole.number, rows_of(whole)) == (1, [("UA", 2)])
    ((before, after),) = [(one.before, one.after) for one in state.diff(0)]
    assert (before, after) == (ONE, TWO)
    assert [one.batch for one in state.history(UA)] == [1, 0]
    planted.client.delete(keys.meta(planted.id(1)))
    with pytest.raises(StateError):
        list(state.changes(since=whole.token))


def test_history_is_read_from_the_partition_that_holds_the_key(
    planted: Planted, state: OperatorState
) -> None:
    """The key was removed from its most likely partition, and lives in another one."""
    likely, key = planted.partition(UA), planted.key(UA)
    there = (likely + 1) % planted.partitions
    for version in range(1, 4):
        rows: dict[int, dict[bytes, Value]] = {n: {} for n in range(planted.partitions)}
        rows[there][key] = planted.value({"count": version, "total": 0.0})
        rows[likely][key] = None if version == 2 else planted.value(ONE)
        if version == 3:
            del rows[likely][key]
        for number, changed in rows.items():
            planted.delta(number, version, changed)
    found = [(one.batch, one.value and one.value["count"]) for one in state.history(UA)]
    assert found == [(2, 3), (1, 2), (0, 1)]
