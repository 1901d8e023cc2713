"""A program that writes stores of Python at random, beside plain dicts of what each version holds.

It writes as queries do: all partitions go on together, attempts are repeated, runs restart and go
back, maintenance comes at any time.
"""

from __future__ import annotations

import copy
import json
import random
import uuid
from collections.abc import Callable
from typing import Any

from redis_state import config
from redis_state.backend.client import Client
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain import Policy, maintain_checkpoint
from redis_state.protocol import checkpoint_gen, register_run
from redis_state.store.provider import StateStoreProvider

State = dict[Any, Any]
Tables = dict[str, State]
"""Rows by the name of their family."""

SINGLE, LISTS, FAMILIES = "single values", "lists", "families"
NAMES = {SINGLE: ("default",), LISTS: ("default",), FAMILIES: ("count", "events")}
PARTITIONS = 3
KEYS = 60
_RAW = json.dumps({"type": "redis-state.python", "codec": "raw"})


class Program:
    """Writes batch after batch.

    Attributes:
        states: What each version holds, by its number; version 0 is empty.
        confirmed: The newest version that all partitions have confirmed.
    """

    def __init__(self, url: str, kind: str, chance: random.Random, *, retained: int) -> None:
        self.name = f"orders {uuid.uuid4().hex}"
        self.kind = kind
        self.states: list[Tables] = [{name: {} for name in NAMES[kind]}]
        self.confirmed = 0
        self._chance = chance
        self._config = config.parse({"url": url, "versions_to_retain": str(retained)})
        self.client = Client(self._config)
        self._providers: list[StateStoreProvider] = []
        self.restart()

    def close(self) -> None:
        """Stop it."""
        for provider in self._providers:
            provider.close()
        self.client.close()

    def restart(self, version: int | None = None) -> None:
        """A new run, which goes on from the newest version, or back to an older one."""
        run_id = uuid.uuid4().hex
        gen = checkpoint_gen(self.client, self.name, create=True)
        assert gen is not None
        run = register_run(self.client, gen, run_id, by_driver=True)
        for provider in self._providers:
            provider.close()
        self._providers = [
            StateStoreProvider(
                StateStoreProviderId(StateStoreId(self.name, 0, number), run_id),
                config=self._config,
                client=self.client,
                lists=self.kind == LISTS,
                families=self.kind == FAMILIES,
                run=run,
            )
            for number in range(PARTITIONS)
        ]
        if version is not None:
            del self.states[version + 1 :]

    def batch(self) -> None:
        """The next version; partitions confirm the one below it in any order."""
        version = len(self.states) - 1
        tables = copy.deepcopy(self.states[version])
        for number in self._chance.sample(range(PARTITIONS), PARTITIONS):
            for _ in range(self._chance.choice((0, 0, 0, 1))):
                # An attempt that is repeated, whether it committed or not.
                self._attempt(number, version, copy.deepcopy(tables), self._chance.random() < 0.5)
            self._attempt(number, version, tables, True)
        self.states.append(tables)
        self.confirmed = version

    def begin(self, numbers: list[int]) -> None:
        """Some partitions open the newest version, as the first tasks of a batch do."""
        version = len(self.states) - 1
        for number in numbers:
            self._open(number, version).abort()
        if len(numbers) == PARTITIONS:
            self.confirmed = version

    def confirm(self) -> None:
        """All partitions open the newest version, and no batch follows."""
        self.begin(list(range(PARTITIONS)))

    def maintain(self, *, deep: bool = False) -> None:
        """Snapshots, and what no retained version needs."""
        if deep:
            gen = checkpoint_gen(self.client, self.name)
            assert gen is not None
            report = maintain_checkpoint(self.client, gen, policy=Policy("worker", deep=True))
            assert report.problems == []
            return
        for provider in self._providers:
            provider.do_maintenance()

    def _open(self, number: int, version: int) -> Any:
        provider = self._providers[number]
        if self.kind == FAMILIES:
            return provider.get_family_store(version)
        return (
            provider.get_list_store(version) if self.kind == LISTS else provider.get_store(version)
        )

    def _attempt(self, number: int, version: int, tables: Tables, commits: bool) -> None:
        store = self._open(number, version)
        try:
            change: Callable[[Any, int, Tables], None] = getattr(self, f"_{self.kind.split()[0]}")
            change(store, number, tables)
            if commits:
                store.commit()
        finally:
            store.abort()

    def _keys(self, number: int) -> list[int]:
        count = self._chance.choice((0, 1, 8))
        return [PARTITIONS * self._chance.randrange(KEYS) + number for _ in range(count)]

    def _single(self, store: Any, number: int, tables: Tables) -> None:
        for key in self._keys(number):
            if self._chance.random() < 0.3:
                store.remove(key)
                tables["default"].pop(key, None)
            else:
                # Few values, so that some puts change nothing.
                tables["default"][key] = self._chance.randrange(4)
                store.put(key, tables["default"][key])

    def _lists(self, store: Any, number: int, tables: Tables) -> None:
        rows = tables["default"]
        for key in self._keys(number):
            what, value = self._chance.random(), self._chance.randrange(4)
            if what < 0.2:
                store.remove(key)
                rows.pop(key, None)
            elif what < 0.7:
                store.append(key, value)
                rows[key] = [*rows.get(key, []), value]
            else:
                rows[key] = [value] * self._chance.randrange(3)
                store.put(key, rows[key])

    def _families(self, store: Any, number: int, tables: Tables) -> None:
        for name, rows in tables.items():
            if self._chance.random() < 0.1 and store.drop(name):
                for key in [key for key in rows if key[0] == number]:
                    del rows[key]
                if self._chance.random() < 0.5:
                    continue
            lists = name == "events"
            prefix = store.declare(name, key_schema=_RAW, value_schema=_RAW, multi_value=lists)
            for low in self._keys(number):
                key, value = bytes([number, low]), b"%d" % self._chance.randrange(4)
                if self._chance.random() < 0.2:
                    store.remove(prefix + key)
                    rows.pop(key, None)
                elif lists:
                    store.append(prefix + key, value)
                    rows[key] = [*rows.get(key, []), value]
                else:
                    store.put(prefix + key, value)
                    rows[key] = value
