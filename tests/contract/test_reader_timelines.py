"""A query that goes back while it is read: what one call gives is of one timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from redis_state import keys
from redis_state.backend.script import Command
from redis_state.backend.transport import Transport
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.url import Address
from tests.contract import planting
from tests.contract.planting import GEN, Planted, uid

UA, AA = {"carrier": "UA"}, {"carrier": "AA"}
BEFORE, AFTER = {"count": 1, "total": 0.5}, {"count": 2, "total": 1.5}
START = {"count": 0, "total": 0.0}


class Between:
    """A transport that lets something happen before one of its round trips."""

    def __init__(self, reader: Reader, trip: int, happens: Callable[[], None]) -> None:
        self._transport: Transport = reader.client._transport
        self._left = trip
        self._happens = happens
        reader.client._transport = self

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        self._left -= 1
        if self._left == 0:
            self._happens()
        return self._transport.exchange(commands)

    def parts(self) -> Sequence[Transport]:
        return self._transport.parts()

    def owner_known(self, slot: int | None) -> Address | None:
        return self._transport.owner_known(slot)

    def close(self) -> None:
        self._transport.close()


@pytest.fixture
def goes_back(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A newer run takes all partitions at version 1, and comes to version 2 with other rows."""

    def go_back() -> None:
        for number in range(planted.partitions):
            take(planted, number)
        other_uids(monkeypatch)
        planted.commit(2, [(UA, AFTER), (AA, AFTER)])

    planted.register()
    planted.commit(1, [(UA, START), (AA, START)])
    assert planted.partition(UA) != planted.partition(AA)
    return go_back


def other_uids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planting, "uid", lambda version: uid(version + 256 * (version > 1)))


def take(planted: Planted, number: int) -> None:
    """Rewinds a partition to version 1; dropped segments stay readable for ten minutes."""
    dropped = [f"d:{version}:{uid(version)}" for version in (2, 3)]
    planted.client.hdel(keys.meta(planted.id(number)), *dropped)
    back = {"e": "2", "r": "newer", "o": "1", "ou": uid(1), "l": "1", "lu": uid(1)}
    planted.client.hset(keys.meta(planted.id(number)), mapping=back)  # type: ignore[arg-type]  # its stub


def begin_again(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task of the newer run is through, before any other one has begun."""
    number = planted.partition(AA)
    take(planted, number)
    other_uids(monkeypatch)
    planted.delta(number, 2, {planted.key(AA): planted.value(AFTER)}, confirmed=False)
    planted.client.hset(keys.meta(planted.id(number)), "e", "2")


def confirm(planted: Planted, number: int, version: int) -> None:
    meta = keys.meta(planted.id(number))
    planted.client.hset(meta, mapping={"o": str(version), "ou": uid(version)})


def state_of(reader: Reader) -> OperatorState:
    return reader.query("flights").operator()


def test_rewind_while_reading_new_versions_reads_one_timeline(
    planted: Planted, reader: Reader, goes_back: Callable[[], None]
) -> None:
    planted.commit(2, [(UA, BEFORE), (AA, BEFORE)])
    state = state_of(reader)
    assert state.get_many([UA, AA]) == [BEFORE, BEFORE]
    planted.commit(3, [], confirmed=False)
    confirm(planted, planted.partition(UA), 3)
    # It has learned that one partition is as it was, and the other is not.
    Between(reader, 2, goes_back)
    assert state.get_many([UA, AA]) == [AFTER, AFTER]


def test_rewind_while_reading_lagging_partitions_reads_one_timeline(
    planted: Planted, reader: Reader, goes_back: Callable[[], None]
) -> None:
    planted.commit(2, [(UA, BEFORE), (AA, BEFORE)], confirmed=False)
    confirm(planted, planted.partition(UA), 2)
    state = state_of(reader)
    Between(reader, 2, goes_back)
    assert state.get_many([UA, AA]) == [AFTER, AFTER]


def test_rewind_while_finding_unlisted_partitions_reads_one_timeline(
    planted: Planted, reader: Reader, goes_back: Callable[[], None]
) -> None:
    planted.commit(2, [(UA, BEFORE), (AA, BEFORE)])
    count = max(planted.partition(UA), planted.partition(AA))
    planted.client.hset(keys.checkpoints(), f"{GEN}:0:default", str(count))
    state = state_of(reader)
    Between(reader, 2, goes_back)
    assert state.get_many([UA, AA]) == [AFTER, AFTER]


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.usefixtures("goes_back")
def test_partition_that_caught_up_after_a_rewind_is_not_counted_yet(
    planted: Planted, reader: Reader, monkeypatch: pytest.MonkeyPatch, confirmed: bool
) -> None:
    planted.commit(2, [(UA, BEFORE), (AA, BEFORE)], confirmed=confirmed)
    state = state_of(reader)
    begin_again(planted, monkeypatch)
    assert state.get_many([UA, AA]) == [START, START]
    assert state.get_many([UA, AA], at="latest") == [START, START]
    assert [value for _, value in state.items()] == [START, START]
    assert reader.query("flights").view().version == 1


@pytest.mark.usefixtures("goes_back")
def test_rewind_while_reading_latest_reads_one_timeline(
    planted: Planted, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.commit(2, [(UA, BEFORE), (AA, BEFORE)])
    state = state_of(reader)
    # It has learned of which store, and which version.
    Between(reader, 3, lambda: begin_again(planted, monkeypatch))
    assert state.get_many([UA, AA], at="latest") == [START, START]
