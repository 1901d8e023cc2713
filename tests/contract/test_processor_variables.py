"""State variables and timers as a processor declares and uses them; what is refused by name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import numpy as np
import pytest

from redis_state.batches.event_time import RAW_SCHEMA, declare_notes
from redis_state.codec.ordered_key import encode_key
from redis_state.errors import ConflictError, RedisStateError, UsageError
from redis_state.format.ordered import family_range
from redis_state.spark.processor.handle import Handle
from redis_state.store.family_store import FamilyStore
from tests.contract.processor_support import GROUPS, at, handle_of
from tests.contract.store_support import NewProvider


def declared(
    provider: Any, version: int, declare: Callable[[Handle], Any], key: tuple[Any, ...] = ("a", 1)
) -> Any:
    """Runs a processor's `init` and first group in a version, commits it, returns what was read."""
    store = provider.get_family_store(version)
    try:
        handle = handle_of(store, 1000)
        variable = declare(handle)
        handle.close_declarations()
        at(handle, key)
        found = variable()
        store.commit()
        return found
    finally:
        if not store.has_committed:
            store.abort()


def test_schemas_evolve_and_old_rows_stay_readable(new_families: NewProvider) -> None:
    provider = new_families()

    def first(handle: Handle) -> Any:
        value, items = (
            handle.getValueState("v", "n int, s string"),
            handle.getListState("l", "n int"),
        )
        table = handle.getMapState("m", "k int", "n int")

        def act() -> None:
            value.update((1, "x"))
            items.appendValue((1,))
            table.updateValue((1,), (1,))

        return act

    def second(handle: Handle) -> Any:
        value = handle.getValueState("v", "d date, n long")
        items = handle.getListState("l", "n long, extra string")
        table = handle.getMapState("m", "k int", "n long, t timestamp_ntz")

        def act() -> Any:
            found = value.get(), list(items.get()), list(table.iterator())
            value.update((date(2024, 1, 1), 2**40))
            items.appendValue((2**40, "y"))
            table.updateValue((2,), (2, datetime(2024, 1, 1)))
            return found

        return act

    def third(handle: Handle) -> Any:
        value, items = (
            handle.getValueState("v", "s string"),
            handle.getListState("l", "extra string"),
        )
        table = handle.getMapState("m", "k int", "n long")
        return lambda: (value.get(), list(items.get()), list(table.iterator()))

    declared(provider, 0, first)
    assert declared(new_families(run="later"), 1, second) == (
        (None, 1), [(1, None)], [((1,), (1, None))]
    )  # fmt: skip
    last = new_families(run="latest")
    assert declared(last, 2, third) == (
        (None,), [(None,), ("y",)], [((1,), (1,)), ((2,), (2,))]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("again", "found"),
    [
        (lambda h: h.getValueState("v", "n string"), "column 'n' was long and is string now"),
        (lambda h: h.getListState("v", "n long"), "it was a value and is now a list"),
        (lambda h: h.getMapState("v", "k int", "n long"), "it was a value and is now a map"),
        (lambda h: h.getValueState("l", "n long"), "it was a list and is now a value"),
        (lambda h: h.getMapState("m", "k string", "n long"), "its key columns differ from those"),
        (lambda h: h.getValueState("$timers", "n long"), "begins with '\\$'"),
        (lambda h: h.getValueState("", "n long"), "the name is empty"),
        (lambda h: h.getValueState("x", "n"), "not a list of columns"),
        (lambda h: h.getValueState("x", "n long", 0), "not a positive number of ms"),
        (lambda h: h.getValueState("x", "n long", 1.5), "not a positive number of ms"),
    ],
)
def test_invalid_declaration_is_refused_by_name(
    new_families: NewProvider, again: Callable[[Handle], Any], found: str
) -> None:
    provider = new_families()

    def first(handle: Handle) -> Any:
        variables = (
            handle.getValueState("v", "n long"),
            handle.getListState("l", "n long"),
            handle.getMapState("m", "k int", "n long"),
        )
        return lambda: variables

    declared(provider, 0, first)
    with pytest.raises(UsageError, match=found):
        declared(provider, 1, again)
    # Nothing was changed by it.
    declared(provider, 1, first)


def test_deleted_variable_can_be_declared_with_another_kind(new_families: NewProvider) -> None:
    provider = new_families()

    def first(handle: Handle) -> Any:
        value = handle.getValueState("v", "n long", 50)
        return lambda: value.update((1,))

    def gone(handle: Handle) -> Any:
        handle.deleteIfExists("v")
        handle.deleteIfExists("never there")
        return lambda: None

    def other(handle: Handle) -> Any:
        items = handle.getListState("v", "s string")
        return lambda: list(items.get())

    declared(provider, 0, first)
    declared(provider, 1, gone)
    families = new_families(run="reader").get_family_store(2).families
    assert [name for name in families if name.endswith("v")] == []
    assert declared(new_families(run="later"), 2, other) == []

    def both(handle: Handle) -> None:
        handle.getListState("v", "s string")
        handle.deleteIfExists("v")

    with pytest.raises(UsageError, match="the processor has declared it"):
        declared(new_families(run="later"), 3, both)


def test_a_variable_is_deleted_and_declared_anew_in_one_init(new_families: NewProvider) -> None:
    provider = new_families()
    declared(
        provider, 0, lambda h: (lambda v: lambda: v.update((1,)))(h.getValueState("v", "n int"))
    )

    def anew(handle: Handle) -> Any:
        handle.deleteIfExists("v")
        value = handle.getValueState("v", "s string")
        return value.get

    assert declared(provider, 1, anew) is None


def test_time_to_live_can_be_added_and_removed(
    new_families: NewProvider,
) -> None:
    provider = new_families()

    def without(handle: Handle) -> Any:
        value = handle.getValueState("v", "n int")

        def act() -> Any:
            found = value.get()
            value.update(((found or (0,))[0] + 1,))
            return found

        return act

    def with_ttl(handle: Handle) -> Any:
        value = handle.getValueState("v", "n int", 5)

        def act() -> Any:
            found = value.get()
            value.update(((found or (0,))[0] + 1,))
            return found

        return act

    assert declared(provider, 0, without) is None
    assert declared(provider, 1, with_ttl) == (1,)
    assert declared(provider, 2, without) == (2,)
    assert declared(provider, 3, with_ttl) == (3,)


def test_removed_time_to_live_leaves_no_index(
    new_families: NewProvider,
) -> None:
    """Rows written with a time to live expire, new rows stay, and the index is removed at last."""
    provider = new_families()

    def batch(version: int, now_ms: int, ttl_ms: int | None, names: str) -> tuple[Any, ...]:
        store = provider.get_family_store(version)
        handle = handle_of(store, now_ms)
        value = handle.getValueState("v", "n int", ttl_ms)
        items = handle.getListState("l", "n int", ttl_ms)
        table = handle.getMapState("m", "k int", "n int", ttl_ms)
        handle.close_declarations()
        found = []
        for name in "abc":
            at(handle, (name, 1))
            if name in names:
                value.update((version,))
                items.appendValue((version,))
                table.updateValue((1,), (version,))
            found.append((value.get(), [*items.get()], table.getValue((1,))))
        handle.expire()
        rows = {
            name: len(list(store.rows(*family_range(family.id))))
            for name, family in store.families.items()
            if not name.startswith("$timers") and name != "$batch"
        }
        store.commit()
        return [one[0] for one in found], [one[1] for one in found], rows

    batch(0, 1000, 50, "ab")
    values, lists, rows = batch(1, 1010, None, "bc")
    assert values == [(0,), (1,), (1,)]
    assert lists == [[(0,)], [(0,), (1,)], [(1,)]]
    # Those of "b" may still be in the index of its list, which is not read for an append.
    assert (rows["$expiry of v"], rows["$expiry of l"], rows["$expiry of m"]) == (1, 2, 1)
    values, lists, rows = batch(2, 1060, None, "")
    assert values == [None, (1,), (1,)]
    assert lists == [[], [(1,)], [(1,)]]
    assert rows == {"v": 2, "l": 2, "m": 2}
    # It may have one again.
    batch(3, 1070, 50, "b")
    values, lists, rows = batch(4, 1130, 50, "")
    assert values == [None, None, (1,)]
    assert rows == {"v": 1, "l": 2, "m": 1} | {f"$expiry of {name}": 0 for name in "vlm"}


def test_declarations_and_timers_are_refused_where_spark_refuses_them(
    new_families: NewProvider,
) -> None:
    store = new_families().get_family_store(0)
    handle = handle_of(store, mode="none")
    for call in (lambda: handle.registerTimer(1), lambda: handle.deleteTimer(1),
                 lambda: list(handle.listTimers())):  # fmt: skip
        with pytest.raises(UsageError, match="no time mode"):
            call()
    with pytest.raises(UsageError, match="a time to live uses processing time"):
        handle.getValueState("v", "n int", 5)
    handle.getValueState("w", "n int")
    with pytest.raises(UsageError, match="declared it twice"):
        handle.getListState("w", "n int")
    handle.close_declarations()
    with pytest.raises(UsageError, match="init has returned"):
        handle.getValueState("late", "n int")
    with pytest.raises(UsageError, match="init has returned"):
        handle.deleteIfExists("late")
    store.abort()


def test_timers_of_another_time_mode_are_refused(new_families: NewProvider) -> None:
    provider = new_families()
    store = provider.get_family_store(0)
    handle = handle_of(store, mode="eventtime")
    at(handle, ("a", 1))
    handle.registerTimer(5)
    store.commit()
    store = provider.get_family_store(1)
    for mode, spelled in (("processingtime", "ProcessingTime"), ("none", "None")):
        with pytest.raises(UsageError, match=f"'{spelled}', and they were set with 'EventTime'"):
            handle_of(store, now_ms=10, mode=mode)  # type: ignore[arg-type]  # of a loop
    handle = handle_of(store, mode="eventtime", watermark_ms=10)
    assert [time for time, _ in handle.due_timers()] == [5]
    store.abort()


def test_timers_of_an_earlier_release_adopt_the_current_time_mode(
    new_families: NewProvider,
) -> None:
    provider = new_families()
    store = provider.get_family_store(0)
    declare_notes(store)
    store.declare("$timers", key_schema=RAW_SCHEMA, value_schema=RAW_SCHEMA, internal=True)
    store.commit()
    store = provider.get_family_store(1)
    handle_of(store, mode="eventtime")
    store.commit()
    store = provider.get_family_store(2)
    with pytest.raises(UsageError, match="were set with 'EventTime'"):
        handle_of(store, mode="processingtime")
    store.abort()


def test_timer_times_accept_python_and_numpy_integers(new_families: NewProvider) -> None:
    store = new_families().get_family_store(0)
    handle = handle_of(store, mode="eventtime")
    at(handle, ("a", 1))
    handle.registerTimer(np.int64(5))
    handle.registerTimer(-3)
    handle.registerTimer(5)
    assert list(handle.listTimers()) == [-3, 5]
    handle.deleteTimer(np.int64(5))
    assert list(handle.listTimers()) == [-3]
    wrong: list[Any] = [5.0, "5", None, datetime(2024, 1, 1)]
    for bad in wrong:
        for call in (handle.registerTimer, handle.deleteTimer):
            with pytest.raises(UsageError, match="its time is of type"):
                call(bad)
    store.abort()


def test_refused_calls_change_nothing(new_families: NewProvider) -> None:
    provider = new_families()
    store = provider.get_family_store(0)
    handle = handle_of(store, 1000)
    value = handle.getValueState("v", "n int", 50)
    items = handle.getListState("l", "n int", 50)
    table = handle.getMapState("m", "k int", "n int", 50)
    at(handle, ("a", 1))
    calls: list[Callable[[], object]] = [
        lambda: value.update(("x",)),
        lambda: value.update(None),
        lambda: items.put([(1,), ("x",)]),
        lambda: items.appendList([(1,), (2**31,)]),
        lambda: items.appendValue(1),
        lambda: table.updateValue((1,), ("x",)),
        lambda: table.updateValue(("x",), (1,)),
        lambda: table.updateValue(1, (1,)),
        lambda: table.getValue("x"),
        lambda: table.removeKey(None),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()
    assert (value.get(), list(items.get()), list(table.iterator())) == (None, [], [])
    before = {stored for stored, _ in store.rows(b"", None)}
    assert not before
    store.abort()


def test_list_iteration_ignores_later_changes(new_families: NewProvider) -> None:
    """A processor may change what it goes through."""
    store = new_families().get_family_store(0)
    handle = handle_of(store, 1000)
    items, table = handle.getListState("l", "n int"), handle.getMapState("m", "k int", "n int")
    at(handle, ("a", 1))
    items.put([(1,), (2,)])
    for (n,) in items.get():
        items.appendValue((n + 10,))
    assert [n for (n,) in items.get()] == [1, 2, 11, 12]
    for number in (1, 2, 3):
        table.updateValue((number,), (number,))
        handle.registerTimer(number)
    for key, _ in table.iterator():
        table.removeKey(key)
        table.updateValue((key[0] + 10,), (0,))
    assert [key for key, _ in table.iterator()] == [(11,), (12,), (13,)]
    for time in handle.listTimers():
        handle.deleteTimer(time)
        handle.registerTimer(time + 10)
    assert list(handle.listTimers()) == [11, 12, 13]
    # Another group becomes current while an iterator of this one is open.
    rows = table.iterator()
    at(handle, ("b", 1))
    assert [key for (key,), _ in rows] == [11, 12, 13]
    store.abort()


def test_timers_fire_once_in_order_of_time_and_key(new_families: NewProvider) -> None:
    """Timers that a handler registers while timers fire belong to the next batch, as in Spark."""
    provider = new_families()
    store = provider.get_family_store(0)
    handle = handle_of(store, mode="eventtime", watermark_ms=100)
    for key in GROUPS:
        at(handle, key)
        for time in (-5, 100, 101):
            handle.registerTimer(time)
    fired = []
    for time, encoded in handle.due_timers():
        handle.group.key = encoded
        fired.append((time, encoded))
        handle.registerTimer(50)
        handle.deleteTimer(time)
    assert fired == sorted(fired, key=lambda one: (encode_key(one[0]), one[1]))
    assert len(fired) == 2 * len(GROUPS)
    store.commit()
    later = handle_of(provider.get_family_store(1), mode="eventtime", watermark_ms=100)
    assert [time for time, _ in later.due_timers()] == [50] * len(GROUPS)


def test_late_commit_of_an_old_attempt_changes_nothing(new_families: NewProvider) -> None:
    """A task of an old run that wakes between any two steps of the newer one."""
    for wakes in ("before open", "before the first change", "before commit", "after commit"):
        name = uuid.uuid4().hex
        old, fresh = new_families(name=name, run="old"), new_families(name=name, run="new")

        def write(provider: Any, version: int) -> Any:
            store = provider.get_family_store(version)
            handle = handle_of(store, 1000)
            return store, handle, handle.getValueState("v", "who string")

        store, handle, value = write(old, 0)
        at(handle, ("a", 1))
        value.update(("first",))
        store.commit()
        zombie, zombies, zombie_value = write(old, 1)
        at(zombies, ("a", 1))
        zombie_value.update(("zombie",))

        def wake(zombie: FamilyStore = zombie) -> None:
            try:
                zombie.commit()
            except ConflictError:
                zombie.abort()

        if wakes == "before open":
            wake()
        store, handle, value = write(fresh, 1)
        at(handle, ("a", 1))
        if wakes == "before the first change":
            wake()
        assert value.get() == ("first",)
        value.update(("second",))
        if wakes == "before commit":
            wake()
        store.commit()
        if wakes == "after commit":
            wake()
        store, handle, value = write(fresh, 2)
        at(handle, ("a", 1))
        assert value.get() == ("second",), wakes
        with pytest.raises(RedisStateError):
            write(old, 1)[0].commit()
        store.abort()
