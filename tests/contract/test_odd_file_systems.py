"""History in files of file systems that show files late, cut uploads, or close slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redis_state import keys
from redis_state.errors import UnavailableError
from redis_state.maintain.files import sweep_files, verify_files
from redis_state.maintain.history import move_history
from redis_state.places import places_of
from redis_state.places.moving import rows_of
from redis_state.protocol.partition import PartitionClient
from tests.contract.test_history_in_files import Orders, rows
from tests.contract.test_places_command import age
from tests.support.odd_files import ADDRESS, OddWorld, odd_files
from tests.support.redis_server import RedisServer


class OddOrders(Orders):
    """A Python store whose files are in the odd file system."""

    world: OddWorld

    def sweep(self) -> int:
        """Sweeps and deletes; returns the number of deleted files."""
        places = places_of(self.client, self.gen)
        assert places is not None
        found = sweep_files(
            self.client, self.id, places, guard=lambda _id: "", delete=True, unknown_too=True
        )
        assert found.kept == []
        return found.deleted

    def states(self) -> list[str]:
        return sorted(row.state for row in rows_of(self.client, self.id))

    def segments(self) -> list[str]:
        return [path for path in self.world.content if path.endswith(".seg")]


@pytest.fixture
def orders(redis_server: RedisServer) -> Iterator[OddOrders]:
    found = OddOrders(redis_server.url, Path("unused"), places_folder=ADDRESS, places_delete=True)
    with odd_files(found.clock) as world:
        found.world = world
        found.commit_history(after=2)
        yield found
        found.close()


def check_all(orders: OddOrders) -> None:
    """Reads every version without the keys that were moved, and verifies each block."""
    assert len(orders.placed()) == 5
    orders.drop_keys()
    for version in range(1, orders.at + 1):
        assert orders.rows_at(version) == rows(version)
    assert list(verify_files(orders.client, orders.id, deep=True)) == []


def drop_history(orders: OddOrders) -> None:
    orders.raw.hset(keys.meta(orders.id), "n", "1")
    PartitionClient(orders.client, orders.id, versions_to_retain=1).retain()


def set_late(world: OddWorld) -> None:
    world.late_s = 5


def set_listed_late(world: OddWorld) -> None:
    world.listed_s = 60


@pytest.mark.parametrize("fault", [set_late, set_listed_late])
def test_file_that_shows_late_is_moved_read_and_deleted(
    orders: OddOrders, fault: Callable[[OddWorld], None]
) -> None:
    fault(orders.world)
    # The store has written which folder is its own.
    orders.clock.sleep_s(5)
    assert move_history(orders.client, orders.id).segments == 5
    assert orders.sweep() == 0
    check_all(orders)
    assert orders.states() == ["u"]
    drop_history(orders)
    age(orders)
    assert orders.sweep() == 1
    assert (orders.segments(), orders.states()) == ([], [])
    assert orders.rows_at(orders.at) == rows(orders.at)


def test_file_that_is_listed_late_is_condemned_by_a_later_sweep(orders: OddOrders) -> None:
    orders.world.listed_s = 60
    assert move_history(orders.client, orders.id).segments == 5
    (used,) = orders.segments()
    stray = used[:-36] + "0" * 32 + ".seg"
    orders.world.store(stray, b"rs-seg01")
    orders.sweep()
    assert orders.states() == ["u"]
    orders.clock.sleep_s(60)
    orders.sweep()
    assert orders.states() == ["d", "u"]
    age(orders)
    assert orders.sweep() == 1
    assert orders.segments() == [used]
    check_all(orders)


def test_cut_uploads_place_nothing_and_are_deleted(orders: OddOrders) -> None:
    orders.world.cuts = 2
    for _ in range(2):
        with pytest.raises(UnavailableError, match="not as it was written"):
            move_history(orders.client, orders.id)
    assert orders.placed() == []
    assert move_history(orders.client, orders.id).segments == 5
    for _ in range(2):
        age(orders)
        orders.sweep()
    assert len(orders.segments()) == 1
    assert orders.states() == ["u"]
    check_all(orders)


def test_file_that_another_mover_overtakes_while_it_closes_gets_no_segment(
    orders: OddOrders,
) -> None:
    moved: list[int] = []

    def overtake() -> None:
        assert orders.sweep() == 0
        moved.append(move_history(orders.client, orders.id).segments)

    orders.world.closing = overtake
    slow = move_history(orders.client, orders.id)
    assert (slow.segments, slow.wasted, moved) == (0, 1, [5])
    check_all(orders)
    assert orders.states() == ["n", "u"]


def test_file_whose_close_takes_longer_than_a_day_is_condemned(orders: OddOrders) -> None:
    def stall() -> None:
        age(orders)
        orders.sweep()
        assert orders.states() == ["d"]

    orders.world.closing = stall
    assert move_history(orders.client, orders.id).segments == 0
    assert move_history(orders.client, orders.id).segments == 5
    check_all(orders)
    age(orders)
    assert orders.sweep() == 1
    assert len(orders.segments()) == 1
    check_all(orders)
