"""Moves and deletions that end at any step, and a Redis that comes back older."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import Kind, StateError
from redis_state.files import Folder
from redis_state.format.entry import segments_in
from redis_state.maintain.files import SweptFiles, sweep_files
from redis_state.maintain.history import move_history
from redis_state.places import places_of
from redis_state.places.moving import rows_of
from redis_state.protocol.partition import PartitionClient
from tests.contract.test_history_in_files import Orders, rows
from tests.contract.test_places_command import age
from tests.support.interruptions import Interrupted
from tests.support.redis_server import RedisServer

STEPS_MAX = 60


class Steps:
    """Ends the process before or after one step: a call to Redis, or a step of the file system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = self.last = 0
        self.after = False
        self._wrap(monkeypatch, Client, "call")
        self._wrap(monkeypatch, Client, "script")
        for name in ("write_pieces", "read_ranges", "remove_file", "items"):
            self._wrap(monkeypatch, Folder, name)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def step(this: Any, *args: Any, **more: Any) -> Any:
            self.done += 1
            is_last = self.done == self.last
            if is_last and not self.after:
                raise Interrupted
            found = real(this, *args, **more)
            if is_last:
                raise Interrupted
            return found

        monkeypatch.setattr(owner, name, step)

    def at(self, number: int, work: Callable[[], object], *, after: bool) -> bool:
        """Returns whether the work came to its end."""
        self.done, self.last, self.after = 0, number, after
        try:
            work()
        except Interrupted:
            return False
        finally:
            self.last = 0
        return True


@pytest.fixture
def orders(redis_server: RedisServer, tmp_path: Path) -> Iterator[Orders]:
    found = Orders(redis_server.url, tmp_path / "segments", places_delete=True)
    found.commit_history(after=2)
    yield found
    found.close()


def sweep(orders: Orders) -> SweptFiles:
    places = places_of(orders.client, orders.gen)
    assert places is not None
    return sweep_files(
        orders.client, orders.id, places, guard=lambda _: "", delete=True, unknown_too=True
    )


def check(orders: Orders, versions: range = range(1, 9)) -> None:
    assert {at: orders.rows_at(at) for at in versions} == {at: rows(at) for at in versions}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_move_that_ends_at_any_step_loses_nothing(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    steps = Steps(monkeypatch)
    for number in range(1, STEPS_MAX):
        ended = steps.at(number, lambda: move_history(orders.client, orders.id), after=after)
        check(orders)
        if ended:
            break
        orders.bring_back()
    assert number > 5
    orders.drop_keys()
    check(orders)
    for _ in range(2):
        age(orders, 30)
        sweep(orders)
    named = {one.place.file for one in segments_in(orders.manifest()) if one.place is not None}
    assert {str(one.relative_to(orders.folder / orders.gen)) for one in orders.files()} == named
    assert {row.file for row in rows_of(orders.client, orders.id)} == named
    check(orders)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_bringing_back_that_ends_at_any_step_loses_nothing(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    move_history(orders.client, orders.id)
    orders.drop_keys()
    steps = Steps(monkeypatch)

    for number in range(1, STEPS_MAX):
        ended = steps.at(number, orders.bring_back, after=after)
        check(orders)
        if ended:
            break
    assert orders.placed() == []
    assert [row.state for row in rows_of(orders.client, orders.id)] == ["d"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_deletion_that_ends_at_any_step_is_finished_by_the_next_one(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    steps = Steps(monkeypatch)
    for number in range(1, STEPS_MAX):
        move_history(orders.client, orders.id)
        orders.bring_back()
        age(orders)
        ended = steps.at(number, lambda: sweep(orders), after=after)
        age(orders)
        sweep(orders)
        assert orders.files() == []
        assert rows_of(orders.client, orders.id) == []
        if ended:
            break
    assert number > 3
    check(orders)


class Backup:
    """All keys of a server, as a backup has them."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.keys = {name: (raw.dump(name), raw.pttl(name)) for name in raw.scan_iter("*")}

    def restore(self) -> None:
        self.raw.flushdb()
        for name, (dump, left_ms) in self.keys.items():
            self.raw.restore(name, max(0, left_ms), dump)


def test_redis_from_before_a_move_has_the_blocks_and_the_file_is_swept(orders: Orders) -> None:
    backup = Backup(orders.raw)
    move_history(orders.client, orders.id)
    orders.drop_keys()
    backup.restore()
    check(orders)
    assert orders.placed() == []
    assert sweep(orders).condemned == 1
    age(orders)
    assert sweep(orders).deleted == 1
    assert orders.files() == []
    check(orders)


def drop_all(orders: Orders) -> None:
    orders.raw.hset(keys.meta(orders.id), "n", "1")
    PartitionClient(orders.client, orders.id, versions_to_retain=1).retain()


def test_redis_from_within_the_grace_names_files_that_are_there(orders: Orders) -> None:
    move_history(orders.client, orders.id)
    orders.drop_keys()
    backup = Backup(orders.raw)
    drop_all(orders)
    assert [row.state for row in rows_of(orders.client, orders.id)] == ["d"]
    sweep(orders)
    backup.restore()
    check(orders)
    assert [row.state for row in rows_of(orders.client, orders.id)] == ["u"]


def test_redis_from_before_the_grace_reports_files_that_are_gone(orders: Orders) -> None:
    move_history(orders.client, orders.id)
    orders.drop_keys()
    backup = Backup(orders.raw)
    drop_all(orders)
    age(orders)
    assert sweep(orders).deleted == 1
    backup.restore()
    with pytest.raises(StateError) as lost:
        orders.rows_at(2)
    assert lost.value.kind is Kind.FILE_LOST
    check(orders, range(5, 9))


@pytest.mark.parametrize("step", ["items", "remove_file"])
def test_two_sweeps_at_once_delete_a_file_once(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    move_history(orders.client, orders.id)
    drop_all(orders)
    age(orders)
    real = getattr(Folder, step)
    other: list[SweptFiles] = []

    def beside(self: Folder, *args: Any) -> Any:
        found = real(self, *args) if step == "items" else None
        if not other:
            other.append(SweptFiles())
            other[0].add(sweep(orders))
        return found if step == "items" else real(self, *args)

    monkeypatch.setattr(Folder, step, beside)
    assert (sweep(orders).deleted, other[0].deleted) == (0, 1)
    assert (orders.files(), rows_of(orders.client, orders.id)) == ([], [])
    assert sweep(orders) == SweptFiles()
    check(orders, range(5, 9))
