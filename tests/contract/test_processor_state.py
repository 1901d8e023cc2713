"""State variables, times to live and timers of a processor, against plain dicts."""

from __future__ import annotations

import copy
import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
import pytest

from redis_state.codec.ordered_key import encode_key
from redis_state.errors import ConflictError, RedisStateError, UsageError
from redis_state.spark.event_time import declare_notes
from redis_state.spark.processor.handle import Handle, QueryInfo, TimeMode, Times
from redis_state.store.family_store import FamilyStore
from tests.contract.store_support import NewProvider, new_providers
from tests.support.redis_server import RedisServer

KEY = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "name", "type": "string", "nullable": True},
            {"name": "n", "type": "integer", "nullable": True},
        ],
    }
)
GROUPS = [("a", 1), ("a", None), (None, 1), ("a\0b", 1), ("ab", 256), ("", -1)]
# A multiple of the step: rows expire at the very time of a batch.
TTL_MS = 40
STEP_MS = 20


@pytest.fixture
def new(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as made:
        yield lambda **given: made(families=True, **given)


def handle_of(
    store: FamilyStore, now_ms: int = 0, mode: TimeMode = "processingtime", watermark_ms: int = 0
) -> Handle:
    declare_notes(store)
    return Handle(store, KEY, Times(mode, now_ms, watermark_ms), QueryInfo("q", "r", 0))


def at(handle: Handle, key: tuple[Any, ...]) -> None:
    handle.group.key = handle.keys.encode(key)


@dataclass
class Model:
    """What the variables hold, by group: rows with the time at which they expire."""

    value: dict[Any, tuple[int, str | None]] = field(default_factory=dict)
    aging: dict[Any, tuple[int, int]] = field(default_factory=dict)
    items: dict[Any, list[int]] = field(default_factory=dict)
    aging_items: dict[Any, list[tuple[int, int]]] = field(default_factory=dict)
    table: dict[Any, dict[str, int]] = field(default_factory=dict)
    aging_table: dict[Any, dict[str, tuple[int, int]]] = field(default_factory=dict)
    timers: set[tuple[int, Any]] = field(default_factory=set)

    def expire(self, now_ms: int) -> None:
        self.aging = {key: one for key, one in self.aging.items() if one[1] > now_ms}
        for group, items in list(self.aging_items.items()):
            self.aging_items[group] = [one for one in items if one[1] > now_ms]
            if not self.aging_items[group]:
                del self.aging_items[group]
        for group, rows in self.aging_table.items():
            self.aging_table[group] = {k: one for k, one in rows.items() if one[1] > now_ms}


class Side:
    """The variables of one opened version, beside a model that has to agree."""

    def __init__(self, store: FamilyStore, model: Model, now_ms: int, rng: random.Random) -> None:
        self.store, self.model, self.now, self.rng = store, model, now_ms, rng
        self.handle = handle = handle_of(store, now_ms)
        self.value = handle.getValueState("value", "n long, s string")
        self.aging = handle.getValueState("aging", "n long", TTL_MS)
        self.items = handle.getListState("items", "n long")
        self.aging_items = handle.getListState("aging items", "n long", TTL_MS)
        self.table = handle.getMapState("table", "k string", "n long")
        self.aging_table = handle.getMapState("aging table", "k string", "n long", TTL_MS)
        handle.close_declarations()

    def step(self, group: tuple[Any, ...]) -> None:
        at(self.handle, group)
        rng, model, now = self.rng, self.model, self.now
        n, k, later = rng.randrange(1000), rng.choice("xyz\0"), now + TTL_MS
        match rng.randrange(24):
            case 0 | 1:
                row = (n, rng.choice([None, "", "é"]))
                self.value.update(row)
                model.value[group] = row
            case 2:
                self.value.clear()
                model.value.pop(group, None)
            case 3 | 4:
                self.aging.update((n,))
                model.aging[group] = (n, later)
            case 5:
                self.aging.clear()
                model.aging.pop(group, None)
            case 6 | 7:
                self.items.appendValue((n,))
                model.items.setdefault(group, []).append(n)
            case 8:
                self.items.appendList([(n,), (n + 1,)])
                model.items.setdefault(group, []).extend([n, n + 1])
            case 9:
                self.items.put([(n,)])
                model.items[group] = [n]
            case 10:
                self.items.clear()
                model.items.pop(group, None)
            case 11 | 12:
                self.aging_items.appendValue((n,))
                # What has expired and is not yet taken out stays until the end of the batch.
                model.aging_items.setdefault(group, []).append((n, later))
            case 13:
                self.aging_items.put([(n,), (n,)])
                model.aging_items[group] = [(n, later)] * 2
            case 14:
                self.aging_items.clear()
                model.aging_items.pop(group, None)
            case 15 | 16:
                self.table.updateValue((k,), (n,))
                model.table.setdefault(group, {})[k] = n
            case 17:
                self.table.removeKey((k,))
                model.table.get(group, {}).pop(k, None)
            case 18:
                self.table.clear()
                model.table.pop(group, None)
            case 19 | 20:
                self.aging_table.updateValue((k,), (n,))
                model.aging_table.setdefault(group, {})[k] = (n, later)
            case 21:
                self.aging_table.removeKey((k,))
                model.aging_table.get(group, {}).pop(k, None)
            case 22:
                time = now + rng.randrange(-2, 4) * STEP_MS
                self.handle.registerTimer(time)
                model.timers.add((time, group))
            case 23:
                mine = sorted(time for time, of in model.timers if of == group)
                for time in [*mine[:1], now + 7]:
                    self.handle.deleteTimer(time)
                    model.timers.discard((time, group))
        self.compare(group)

    def compare(self, group: tuple[Any, ...]) -> None:
        at(self.handle, group)
        model, now = self.model, self.now
        assert self.value.get() == model.value.get(group)
        assert self.value.exists() == (group in model.value)
        aging = model.aging.get(group, (0, 0))
        assert self.aging.get() == ((aging[0],) if aging[1] > now else None)
        items = [(n,) for n in model.items.get(group, [])]
        assert list(self.items.get()) == items
        assert self.items.exists() == bool(items)
        live = [(n,) for n, until in model.aging_items.get(group, []) if until > now]
        assert list(self.aging_items.get()) == live
        assert self.aging_items.exists() == bool(live)
        rows = sorted(((k,), (n,)) for k, n in model.table.get(group, {}).items())
        assert list(self.table.iterator()) == rows
        assert list(self.table.keys()) == [key for key, _ in rows]
        assert list(self.table.values()) == [one for _, one in rows]
        assert self.table.exists() == bool(rows)
        assert self.table.getValue(("x",)) == dict(rows).get(("x",))
        aged = model.aging_table.get(group, {})
        rows = sorted(((k,), (n,)) for k, (n, until) in aged.items() if until > now)
        assert list(self.aging_table.iterator()) == rows
        assert self.aging_table.containsKey(("y",)) == (("y",) in dict(rows))
        mine = sorted(time for time, of in model.timers if of == group)
        assert list(self.handle.listTimers()) == mine

    def end(self) -> None:
        """The timers fire in their order, then what is old goes: nothing of it stays behind."""
        model, keys = self.model, self.handle.keys
        due = sorted(
            ((time, of) for time, of in model.timers if time <= self.now),
            key=lambda one: (one[0], keys.encode(one[1])),
        )
        fired = []
        for time, encoded in self.handle.due_timers():
            self.handle.group.key = encoded
            fired.append((time, keys.decode(encoded)))
            self.handle.deleteTimer(time)
        assert fired == due
        model.timers.difference_update(due)
        self.handle.expire()
        model.expire(self.now)
        for group in GROUPS:
            self.compare(group)
        assert self._rows("$timers") == self._rows("$timers of groups") == len(model.timers)
        assert self._rows("aging") == self._rows("$expiry of aging") == len(model.aging)
        aged = sum(map(len, model.aging_table.values()))
        assert self._rows("aging table") == self._rows("$expiry of aging table") == aged
        assert self._rows("aging items") == len(model.aging_items)

    def _rows(self, family: str) -> int:
        prefix = self.store.declare(family, **_as_declared(self.store, family))
        return sum(1 for _ in self.store.rows(prefix, prefix + b"\xff"))


def _as_declared(store: FamilyStore, name: str) -> dict[str, Any]:
    found = store.families[name]
    return {
        "key_schema": found.key_schema,
        "value_schema": found.value_schema,
        "multi_value": found.multi_value,
        "internal": found.internal,
    }


@pytest.mark.parametrize("seed", range(6))
def test_variables_hold_what_plain_dicts_hold(new: NewProvider, seed: int) -> None:
    """Over batches that are evaluated again, given up, or opened by another run or process."""
    rng = random.Random(seed)
    committed, version, now, runs = Model(), 0, 1_000_000, 0
    provider = new(run="run-0")
    for _ in range(25):
        now += rng.randrange(1, 3) * STEP_MS
        if rng.random() < 0.4:
            runs += rng.random() < 0.5
            provider = new(run=f"run-{runs}")
        for again in (True, True, False)[rng.randrange(3) :]:
            store, model = provider.get_family_store(version), copy.deepcopy(committed)
            side = Side(store, model, now, rng)
            for group in GROUPS:
                side.compare(group)
            for _ in range(rng.randrange(30)):
                side.step(rng.choice(GROUPS))
            if again and rng.random() < 0.5:
                store.abort()
                continue
            side.end()
            assert store.commit() == version + 1
        committed, version = model, version + 1
    store = new(run="another").get_family_store(version)
    side = Side(store, copy.deepcopy(committed), now, rng)
    for group in GROUPS:
        side.compare(group)
    store.abort()


def test_a_snapshot_has_all_that_the_deltas_had(new: NewProvider) -> None:
    """Long enough that maintenance writes one; a process that starts then reads it."""
    provider, model, rng = new(), Model(), random.Random(5)
    for version in range(40):
        store = provider.get_family_store(version)
        side = Side(store, model, 1_000_000, rng)
        for _ in range(10):
            side.step(rng.choice(GROUPS))
        side.end()
        store.commit()
        provider.do_maintenance()
    side = Side(new(run="another").get_family_store(40), model, 1_000_000, rng)
    for group in GROUPS:
        side.compare(group)


def declared(
    provider: Any, version: int, declare: Callable[[Handle], Any], key: tuple[Any, ...] = ("a", 1)
) -> Any:
    """What a processor's `init` and first group give, in a version that is committed."""
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


def test_schemas_evolve_and_old_rows_stay_readable(new: NewProvider) -> None:
    provider = new()

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
    assert declared(new(run="later"), 1, second) == (
        (None, 1), [(1, None)], [((1,), (1, None))]
    )  # fmt: skip
    last = new(run="latest")
    assert declared(last, 2, third) == (
        (None,), [(None,), ("y",)], [((1,), (1,)), ((2,), (2,))]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("again", "found"),
    [
        (lambda h: h.getValueState("v", "n string"), "column 'n' was long and is string now"),
        (lambda h: h.getListState("v", "n long"), "it was a value and is a list now"),
        (lambda h: h.getMapState("v", "k int", "n long"), "it was a value and is a map now"),
        (lambda h: h.getValueState("l", "n long"), "it was a list and is a value now"),
        (lambda h: h.getMapState("m", "k string", "n long"), "its key columns are not those"),
        (lambda h: h.getValueState("$timers", "n long"), "begins with '\\$'"),
        (lambda h: h.getValueState("", "n long"), "the name is empty"),
        (lambda h: h.getValueState("x", "n"), "not a list of columns"),
        (lambda h: h.getValueState("x", "n long", 0), "not a positive number of ms"),
        (lambda h: h.getValueState("x", "n long", 1.5), "not a positive number of ms"),
    ],
)
def test_a_variable_that_cannot_be_as_declared_is_refused_by_name(
    new: NewProvider, again: Callable[[Handle], Any], found: str
) -> None:
    provider = new()

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


def test_a_variable_is_deleted_and_may_come_back_as_another_one(new: NewProvider) -> None:
    provider = new()

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
    families = new(run="reader").get_family_store(2).families
    assert [name for name in families if name.endswith("v")] == []
    assert declared(new(run="later"), 2, other) == []
    with pytest.raises(UsageError, match="the processor has declared it"):
        declared(new(run="later"), 3, lambda h: (h.getListState("v", "s string"),
                                                 h.deleteIfExists("v")))  # fmt: skip


def test_a_variable_is_deleted_and_declared_anew_in_one_init(new: NewProvider) -> None:
    provider = new()
    declared(
        provider, 0, lambda h: (lambda v: lambda: v.update((1,)))(h.getValueState("v", "n int"))
    )

    def anew(handle: Handle) -> Any:
        handle.deleteIfExists("v")
        value = handle.getValueState("v", "s string")
        return value.get

    assert declared(provider, 1, anew) is None


def test_time_to_live_comes_and_goes_with_a_later_version_of_the_processor(
    new: NewProvider,
) -> None:
    provider = new()

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


def test_declarations_and_timers_are_refused_where_spark_refuses_them(new: NewProvider) -> None:
    store = new().get_family_store(0)
    handle = handle_of(store, mode="none")
    for call in (lambda: handle.registerTimer(1), lambda: handle.deleteTimer(1),
                 lambda: list(handle.listTimers())):  # fmt: skip
        with pytest.raises(UsageError, match="no time mode"):
            call()
    with pytest.raises(UsageError, match="a time to live goes by the processing time"):
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


def test_times_of_timers_are_whole_numbers_also_numpys(new: NewProvider) -> None:
    store = new().get_family_store(0)
    handle = handle_of(store, mode="eventtime")
    at(handle, ("a", 1))
    handle.registerTimer(np.int64(5))
    handle.registerTimer(-3)
    handle.registerTimer(5)
    assert list(handle.listTimers()) == [-3, 5]
    handle.deleteTimer(np.int64(5))
    assert list(handle.listTimers()) == [-3]
    for bad in (5.0, "5", None, datetime(2024, 1, 1)):
        for call in (handle.registerTimer, handle.deleteTimer):
            with pytest.raises(UsageError, match="its time is of type"):
                call(bad)
    store.abort()


def test_what_does_not_fit_changes_nothing(new: NewProvider) -> None:
    provider = new()
    store = provider.get_family_store(0)
    handle = handle_of(store, 1000)
    value = handle.getValueState("v", "n int", 50)
    items = handle.getListState("l", "n int", 50)
    table = handle.getMapState("m", "k int", "n int", 50)
    at(handle, ("a", 1))
    for call in (
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
    ):
        with pytest.raises(UsageError):
            call()
    assert (value.get(), list(items.get()), list(table.iterator())) == (None, [], [])
    before = {stored for stored, _ in store.rows(b"", None)}
    assert not before
    store.abort()


def test_lists_are_read_as_of_the_moment_of_the_call(new: NewProvider) -> None:
    """A processor may change what it goes through."""
    store = new().get_family_store(0)
    handle = handle_of(store, 1000)
    items, table = handle.getListState("l", "n int"), handle.getMapState("m", "k int", "n int")
    at(handle, ("a", 1))
    items.put([(1,), (2,)])
    for (n,) in items.get():
        items.appendValue((n + 10,))
    assert [n for (n,) in items.get()] == [1, 2, 11, 12]
    for key in (1, 2, 3):
        table.updateValue((key,), (key,))
        handle.registerTimer(key)
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


def test_timers_fire_once_in_the_order_of_time_and_key(new: NewProvider) -> None:
    """What a handler registers while timers fire is for the next batch, as in Spark."""
    provider = new()
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


def test_another_attempt_that_commits_late_changes_nothing(new: NewProvider) -> None:
    """A task of an old run that wakes between any two steps of the newer one."""
    for wakes in ("before open", "before the first change", "before commit", "after commit"):
        name = uuid.uuid4().hex
        old, fresh = new(name=name, run="old"), new(name=name, run="new")

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
