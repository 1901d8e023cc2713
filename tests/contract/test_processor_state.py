"""State variables, times to live and timers of a processor, against plain dicts."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from redis_state.store.family_store import FamilyStore
from tests.contract.processor_support import GROUPS, at, handle_of
from tests.contract.store_support import NewProvider

# A multiple of the step: rows expire at the very time of a batch.
TTL_MS = 40
STEP_MS = 20


@dataclass
class Model:
    """Expected content of the variables by group: rows with their expiry times."""

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
def test_variables_equal_plain_dicts(new_families: NewProvider, seed: int) -> None:
    """Over batches that are evaluated again, given up, or opened by another run or process."""
    rng = random.Random(seed)
    committed, version, now, runs = Model(), 0, 1_000_000, 0
    provider = new_families(run="run-0")
    for _ in range(25):
        now += rng.randrange(1, 3) * STEP_MS
        if rng.random() < 0.4:
            runs += rng.random() < 0.5
            provider = new_families(run=f"run-{runs}")
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
    store = new_families(run="another").get_family_store(version)
    side = Side(store, copy.deepcopy(committed), now, rng)
    for group in GROUPS:
        side.compare(group)
    store.abort()


def test_snapshot_holds_all_rows_of_the_deltas(new_families: NewProvider) -> None:
    """Long enough that maintenance writes one; a process that starts then reads it."""
    provider, model, rng = new_families(), Model(), random.Random(5)
    for version in range(40):
        store = provider.get_family_store(version)
        side = Side(store, model, 1_000_000, rng)
        for _ in range(10):
            side.step(rng.choice(GROUPS))
        side.end()
        store.commit()
        provider.do_maintenance()
    side = Side(new_families(run="another").get_family_store(40), model, 1_000_000, rng)
    for group in GROUPS:
        side.compare(group)
