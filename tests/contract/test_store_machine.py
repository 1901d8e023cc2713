"""A random history of one partition against a plain dict per version.

After each step Redis itself is looked at: what the manifest names is whole and does not expire. A
crash ends the process between any two commands that it sends, or loses the answer of one; what a
commit left behind is then the old or the new version, never anything else.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redis_state import config
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import UsageError
from redis_state.format.entry import parse_segment
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.keys import meta, segment
from redis_state.protocol import RegisteredRun, checkpoint_gen, register_run
from redis_state.store import ListStateStore, ReadStateStore
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

Rows = dict[Any, list[Any]]

KEYS = st.sampled_from(
    [-3, 0, 5, "", "a", "b\0", "ü", "k" * 300, b"", b"\xff", ("x",), ("x", 1), ("y", -1), ("n", 7)]
)
ELEMENTS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1), st.text(max_size=5), st.none(), st.just("v" * 3000)
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "append", "remove"]), KEYS, ELEMENTS), min_size=1, max_size=8
)
RETAINED = 3


class Crash(BaseException):
    """The process is gone."""


class MortalClient(Client):
    """Dies before or behind the command that its countdown says."""

    countdown: int | None = None
    after_sending = False

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        if self.countdown is None:
            return super()._exchange(attempted, commands)
        self.countdown -= 1
        if self.countdown > 0:
            return super()._exchange(attempted, commands)
        if self.after_sending:
            super()._exchange(attempted, commands)
        raise Crash


class StoreMachine(RuleBasedStateMachine):
    """Rules act on one open store; the model is a dict for each version that can be read."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.config = config.parse({"url": self.server.url, "versionsToRetain": RETAINED})
        self.name = uuid.uuid4().hex
        self.clients: list[Client] = []
        self.versions: dict[int, Rows] = {0: {}}
        self.store: ListStateStore | None = None
        self.rows: Rows = {}
        self.opened = 0
        self.held = False
        self.floor = 0
        self.run = RegisteredRun("", 0, "d")

    @initialize()
    def begin(self) -> None:
        self._new_run()

    @precondition(lambda self: self.store is None)
    @rule(back=st.sampled_from([0, 0, 0, 1, 3]))
    def open(self, back: int) -> None:
        self._open(sorted(self.versions)[-1 - min(back, len(self.versions) - 1)])

    @precondition(lambda self: self.store is None)
    @rule(changes=CHANGES)
    def run_a_batch(self, changes: list[tuple[str, Any, Any]]) -> None:
        """Runs a whole batch, so that histories grow long."""
        self._open(max(self.versions))
        self.change(changes)
        self.commit()

    @precondition(lambda self: self.store is None)
    @rule(same_run=st.booleans())
    def go_on_in_another_process(self, same_run: bool) -> None:
        """A new process of the same run, or a new run, which may go back."""
        self.store = None
        if same_run:
            self._new_process()
        else:
            self._new_run()

    @precondition(lambda self: self.store is not None)
    @rule(changes=CHANGES)
    def change(self, changes: list[tuple[str, Any, Any]]) -> None:
        for what, key, value in changes:
            if what == "put":
                self._changing(lambda store, k=key, v=value: store.put(k, [v, v]))
                self.rows[key] = [value, value]
            elif what == "append":
                self._changing(lambda store, k=key, v=value: store.append(k, v))
                self.rows[key] = [*self.rows.get(key, []), value]
            else:
                self._changing(lambda store, k=key: store.remove(k))
                self.rows.pop(key, None)

    @precondition(lambda self: self.store is not None)
    @rule(first=st.integers(0, 500), value=ELEMENTS, at_once=st.booleans())
    def put_many(self, first: int, value: Any, at_once: bool) -> None:
        rows = {("n", number): [value] for number in range(first, first + 300)}

        def many(store: ListStateStore) -> None:
            if at_once:
                store.put_many(rows.items())
            else:
                for key, elements in rows.items():
                    store.put(key, elements)

        self._changing(many)
        self.rows |= rows

    @precondition(lambda self: self.store is not None)
    @rule(rows=st.lists(st.tuples(KEYS, st.lists(ELEMENTS, max_size=2)), max_size=8))
    def put_some(self, rows: list[tuple[Any, list[Any]]]) -> None:
        self._changing(lambda store: store.put_many(rows))
        self.rows |= dict(rows)

    @precondition(lambda self: self.store is not None)
    @rule(keys=st.lists(KEYS, max_size=8), value=ELEMENTS)
    def put_what_was_asked_for(self, keys: list[Any], value: Any) -> None:
        def replaced(store: ListStateStore) -> None:
            found = store.get_many(keys)
            store.put_many(keys, [[*(before or []), value][-3:] for before in found])

        self._changing(replaced)
        self.rows |= {key: [*self.rows.get(key, []), value][-3:] for key in keys}

    @precondition(lambda self: self.store is not None)
    @rule(rows=st.dictionaries(KEYS, st.just([1]), min_size=1), key_is_odd=st.booleans())
    def put_some_of_which_one_is_refused(self, rows: Rows, key_is_odd: bool) -> None:
        odd = (object(), [1]) if key_is_odd else ("a", [object()])

        def refused(store: ListStateStore) -> None:
            with pytest.raises(UsageError):
                store.put_many([*rows.items(), odd])

        self._changing(refused)

    @precondition(lambda self: self.store is not None and len(self.rows) > 1)
    @rule(data=st.data(), at_once=st.booleans())
    def remove_some(self, data: st.DataObject, at_once: bool) -> None:
        there = st.sampled_from(sorted(self.rows, key=repr))
        keys = data.draw(st.lists(st.one_of(there, KEYS), max_size=20))

        def some(store: ListStateStore) -> None:
            if at_once:
                store.remove_many(keys)
            else:
                for key in keys:
                    store.remove(key)

        self._changing(some)
        for key in keys:
            self.rows.pop(key, None)

    @precondition(lambda self: self.store is not None and self.rows)
    @rule(value=ELEMENTS, without=st.integers(0, 2))
    def change_every_key(self, value: Any, without: int) -> None:
        """The version stands alone if it is committed so; not if some keys stay as they were."""
        rows = {key: [value] for key in sorted(self.rows, key=repr)[without:]}
        self._changing(lambda store: store.put_many(rows))
        self.rows |= rows

    @precondition(lambda self: self.store is not None)
    @rule(key=KEYS)
    def get(self, key: Any) -> None:
        assert self.store is not None
        assert self.store.get(key) == self.rows.get(key)

    @precondition(lambda self: self.store is not None)
    @rule(keys=st.lists(st.one_of(KEYS, st.tuples(st.just("n"), st.integers(0, 900))), max_size=50))
    def get_many(self, keys: list[Any]) -> None:
        assert self.store is not None
        assert self.store.get_many(keys) == [self.rows.get(key) for key in keys]

    @precondition(lambda self: self.store is not None)
    @rule(keys=st.lists(st.one_of(KEYS, st.tuples(st.just("n"), st.integers(0, 900))), max_size=50))
    def prefetch(self, keys: list[Any]) -> None:
        assert self.store is not None
        assert 0 <= self.store.prefetch(keys) <= len(keys)

    @precondition(lambda self: self.store is not None)
    @rule(low=st.integers(-4, 7), high=st.integers(-4, 7))
    def range_of_numbers(self, low: int, high: int) -> None:
        assert self.store is not None
        found = list(self.store.get_range(low, high))
        inside = [key for key in self.rows if type(key) is int and low <= key < high]
        assert found == [(key, self.rows[key]) for key in sorted(inside)]

    @precondition(lambda self: self.store is not None)
    @rule(prefix=st.sampled_from(["x", "n"]))
    def scan_a_prefix(self, prefix: str) -> None:
        assert self.store is not None
        inside = [key for key in self.rows if type(key) is tuple and key[0] == prefix]
        expected = [(key, self.rows[key]) for key in sorted(inside)]
        assert list(self.store.prefix_scan((prefix,))) == expected

    @precondition(lambda self: self.store is not None)
    @rule()
    def commit(self) -> None:
        assert self.store is not None
        store, base = self.store, self.store.version
        assert store.commit() == base + 1
        self._took(base)
        self.versions[base + 1] = self.rows
        assert store.metrics.num_keys == len(self.rows)
        self.store = None

    @precondition(lambda self: self.store is not None)
    @rule()
    def abort(self) -> None:
        assert self.store is not None
        self.store.abort()
        self.store = None

    @precondition(lambda self: self.store is None and self.held)
    @rule()
    def maintain(self) -> None:
        self.provider.do_maintenance()
        self._expire()

    @precondition(lambda self: self.held and self.opened > 0)
    @rule()
    def snapshot(self) -> None:
        # Maintenance adds one only where it pays; here any version can have one.
        partition = self.provider._partition
        partition.maintenance.snapshot(partition.read(self.opened))

    @precondition(lambda self: self.store is not None)
    @rule(countdown=st.integers(1, 6), after_sending=st.booleans())
    def crash_in_commit(self, countdown: int, after_sending: bool) -> None:
        assert self.store is not None
        base, new = self.store.version, self.rows
        self._arm(countdown, after_sending=after_sending)
        try:
            self.store.commit()
        except Crash:
            self._found_after_crash(base, new)
        else:
            self._took(base)
            self.versions[base + 1] = new
        self.store = None
        self._new_process()

    @precondition(lambda self: self.store is None and self.held)
    @rule(countdown=st.integers(1, 6), after_sending=st.booleans())
    def crash_in_maintenance(self, countdown: int, after_sending: bool) -> None:
        self._arm(countdown, after_sending=after_sending)
        with suppress(Crash):
            self.provider.do_maintenance()
        self.store = None
        self._expire()
        self._new_process()

    @invariant()
    def what_is_published_is_whole(self) -> None:
        gen = self._gen()
        if gen is None:
            return
        id_ = self._id().store_id.partition(gen)
        with self.server.client() as raw:
            fields = raw.hgetall(meta(id_))
            for name, entry in fields.items():
                if name[:2] not in (b"d:", b"s:"):
                    continue
                found = parse_segment(name.decode(), entry.decode())
                key = segment(id_, found.ident)
                assert raw.hlen(key) == found.entry.blocks
                assert raw.pttl(key) in (-1, -2)

    @invariant()
    def every_version_reads_as_it_was_written(self) -> None:
        for version, rows in list(self.versions.items())[-3:]:
            _same(self.provider.get_read_store(version), rows)

    def teardown(self) -> None:
        cold = self._provider()
        for version, rows in self.versions.items():
            _same(cold.get_read_store(version), rows)
        for client in self.clients:
            client.close()

    def _open(self, version: int) -> None:
        if self.held and version < self.opened:
            self._new_run()
        store = self.provider.get_list_store(version)
        if self.held:
            self.opened = version
        self.store, self.rows = store, dict(self.versions[version])
        assert store.version == version
        assert store.metrics.num_keys == len(self.rows)

    def _changing(self, change: Any) -> None:
        assert self.store is not None
        change(self.store)
        if self._is_held():
            self._took(self.store.version)

    def _took(self, base: int) -> None:
        """The run holds the partition from here on, and what it went back from is gone."""
        if not self.held:
            self.held, self.opened = True, base
            self.versions = {at: rows for at, rows in self.versions.items() if at <= base}

    def _is_held(self) -> bool:
        gen = self._gen()
        if gen is None:
            return False
        with self.server.client() as raw:
            holder = raw.hget(meta(self._id().store_id.partition(gen)), "r")
        return bool(holder == self.run.run_id.encode())

    def _found_after_crash(self, base: int, new: Rows) -> None:
        if self._is_held():
            self._took(base)
        reader = self._provider()
        if (reader.latest() or 0) <= base:
            assert base + 1 not in self.versions
            return
        found = dict(reader.get_read_store(base + 1).iterator())
        assert found in ([new] if base + 1 not in self.versions else [new, self.versions[base + 1]])
        self.versions[base + 1] = found

    def _expire(self) -> None:
        """Deletes what retention has dropped, as Redis does after some minutes."""
        gen = self._gen()
        if gen is None:
            return
        id_ = self._id().store_id.partition(gen)
        with self.server.client() as raw:
            self.floor = int(raw.hget(meta(id_), "w") or 0)
            for key in raw.scan_iter(match=f"*{gen}*", count=1000):
                if raw.pttl(key) > 0 and not key.endswith(b":q"):
                    raw.delete(key)
        self.versions = {
            version: rows
            for version, rows in self.versions.items()
            if version >= self.floor or version == 0
        }

    def _arm(self, countdown: int, *, after_sending: bool) -> None:
        client = self.clients[-1]
        assert isinstance(client, MortalClient)
        client.countdown, client.after_sending = countdown, after_sending

    def _new_run(self) -> None:
        client = Client(self.config)
        self.clients.append(client)
        gen = checkpoint_gen(client, self.name, create=True) or ""
        self.run = register_run(client, gen, uuid.uuid4().hex, by_driver=True)
        self.held, self.store = False, None
        self._new_process()

    def _new_process(self) -> None:
        self.provider = self._provider()

    def _provider(self) -> StateStoreProvider:
        client = MortalClient(self.config)
        self.clients.append(client)
        return StateStoreProvider(
            self._id(), config=self.config, lists=True, run=self.run, client=client
        )

    def _id(self) -> StateStoreProviderId:
        return StateStoreProviderId(StateStoreId(self.name, 0, 0), self.run.run_id)

    def _gen(self) -> str | None:
        return checkpoint_gen(self.clients[0], self.name)


def _same(store: ReadStateStore, rows: Rows) -> None:
    assert dict(store.iterator()) == rows
    assert store.metrics.num_keys == len(rows)


@pytest.fixture(autouse=True)
def _server(shared_redis_server: RedisServer) -> None:
    StoreMachine.server = shared_redis_server


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
