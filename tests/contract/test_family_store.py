"""Stores with many families: rows, lists, the table, and what becomes of them over versions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from redis_state import config, connect, keys
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.errors import ConflictError, LimitError, StateError, UsageError
from redis_state.format.ordered import family_range
from redis_state.format.rows import VALUE_BYTES_MAX, join_elements, split_elements, stored_key
from redis_state.maintain import Policy, maintain_checkpoint
from redis_state.protocol import checkpoint_gen
from redis_state.store.family_store import FamilyStore
from redis_state.store.provider import StateStoreProvider
from tests.contract.store_support import NewProvider, new_providers
from tests.support.forking import in_child
from tests.support.redis_server import RedisServer

SCHEMA = json.dumps({"type": "redis-state.python", "codec": "raw"})
LARGE = 3000
"""So many rows of a kilobyte make a segment that is not read whole."""


@pytest.fixture
def new_provider(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as new:
        yield lambda **options: new(**{"families": True, **options})


def declare(store: FamilyStore, name: str, **more: Any) -> bytes:
    return store.declare(name, **{"key_schema": SCHEMA, "value_schema": SCHEMA, **more})


def all_rows(store: FamilyStore) -> dict[bytes, bytes]:
    return dict(store.rows(b"", None))


@dataclass
class Model:
    """Expected content of a version by stored key; lists are values as the format writes them."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    highest: int = 0

    def copy(self) -> Model:
        return Model(dict(self.rows), dict(self.ids), self.highest)

    def change(self, store: FamilyStore, chance: random.Random) -> None:
        """One change of both, drawn by chance; what the store says on the way is compared."""
        what = chance.random()
        name = chance.choice(("count", "events", "timers", "index"))
        if name not in self.ids:
            self.highest += 1
            self.ids[name] = self.highest
        lists, internal = name == "events", name == "timers"
        prefix = declare(store, name, multi_value=lists, internal=internal)
        assert prefix == stored_key(self.ids[name], b"")
        key = prefix + b"%03d" % chance.randrange(150)
        value = b"v" * chance.randrange(60)
        if what < 0.02:
            assert store.drop(name)
            assert not store.drop(name)
            del self.ids[name]
            self.rows = {key: one for key, one in self.rows.items() if key[:2] != prefix}
        elif what < 0.3:
            store.remove(key)
            self.rows.pop(key, None)
        elif lists and what < 0.6:
            store.append(key, value)
            self.rows[key] = self.rows.get(key, b"") + join_elements([value])
        elif what < 0.7:
            some = {prefix + b"%03d" % chance.randrange(150): b"" for _ in range(20)}
            store.put_many(some)
            self.rows |= some
        elif what < 0.75:
            some_keys = [prefix + b"%03d" % chance.randrange(150) for _ in range(5)]
            store.remove_many(some_keys)
            for one in some_keys:
                self.rows.pop(one, None)
        else:
            data = join_elements([value]) if lists else value
            store.put(key, data)
            self.rows[key] = data
        assert store.get(key) == self.rows.get(key)

    def compare(self, store: FamilyStore, chance: random.Random) -> None:
        asked = [stored_key(chance.randrange(1, 6), b"%03d" % n) for n in range(0, 150, 7)]
        assert store.get_many(asked) == [self.rows.get(key) for key in asked]
        assert [store.get(key) for key in asked] == store.get_many(asked)
        low, high = sorted(chance.sample(asked, 2))
        within = sorted((key, one) for key, one in self.rows.items() if low <= key < high)
        assert list(store.rows(low, high)) == within
        assert list(store.rows(b"", None)) == sorted(self.rows.items())
        assert {name: one.id for name, one in store.families.items()} == self.ids


def check_counts(store: FamilyStore, model: Model) -> None:
    internal = {stored_key(model.ids["timers"], b"")} if "timers" in model.ids else set()
    assert store.metrics.num_keys == sum(key[:2] not in internal for key in model.rows)


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_over_many_versions_equal_the_model(
    new_provider: NewProvider, shared_redis_server: RedisServer, seed: int
) -> None:
    chance = random.Random(seed)
    provider, model, name = new_provider(), Model(), ""
    for version in range(40):
        store = provider.get_family_store(version)
        check_counts(store, model)
        if chance.random() < 0.1:
            lost = model.copy()
            for _ in range(chance.randrange(50)):
                lost.change(store, chance)
            store.abort()
            store = provider.get_family_store(version)
        for _ in range(chance.choice((0, 3, 100))):
            model.change(store, chance)
            if chance.random() < 0.02:
                model.compare(store, chance)
        model.compare(store, chance)
        assert store.commit() == version + 1
        check_counts(store, model)
        model.compare(store, chance)
        name = store.id.checkpoint
        if chance.random() < 0.3:
            provider = new_provider(name=name)
        elif chance.random() < 0.3:
            provider.do_maintenance()
        if chance.random() < 0.2:
            _maintain(shared_redis_server.url, name)
        cold = new_provider(name=name, run="reader").get_family_store(version + 1)
        model.compare(cold, chance)
        check_counts(cold, model)
        cold.abort()


def _maintain(url: str, name: str) -> None:
    client = Client(config.parse({"url": url}))
    try:
        gen = checkpoint_gen(client, name)
        assert gen is not None
        report = maintain_checkpoint(client, gen, policy=Policy("w", deep=True))
        assert report.problems == []
    finally:
        client.close()


def test_family_declarations_without_rows_are_committed(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_family_store(0)
    assert (declare(store, "a"), declare(store, "b")) == (b"\0\1", b"\0\2")
    assert declare(store, "a") == b"\0\1"
    store.commit()
    store = new_provider().get_family_store(1)
    assert [family.name for family in store.families.values()] == ["a", "b"]
    changed = json.dumps({"type": "redis-state.python", "codec": "raw", "more": 1})
    declare(store, "a", value_schema=changed)
    assert store.drop("b")
    assert not store.drop("b")
    store.commit()
    store = new_provider().get_family_store(2)
    assert [family.value_schema for family in store.families.values()] == [changed]
    assert declare(store, "b") == b"\0\3"
    store.commit()


def test_store_without_families_continues(new_provider: NewProvider) -> None:
    provider = new_provider()
    for version in range(6):
        store = provider.get_family_store(version)
        if version == 3:
            declare(store, "a")
        elif version == 4:
            store.drop("a")
        store.commit()
        provider.get_family_store(version + 1).abort()
        provider.do_maintenance()
    store = new_provider().get_family_store(6)
    assert dict(store.families) == {}
    assert declare(store, "a") == b"\0\2"


def test_dropped_family_stays_empty_when_declared_again(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_family_store(0)
    first, other = declare(store, "a", multi_value=True), declare(store, "b")
    store.append(first + b"k", b"old")
    store.put(other + b"k", b"kept")
    store.commit()
    store = provider.get_family_store(1)
    store.append(first + b"k", b"newer")
    store.drop("a")
    assert (store.get(first + b"k"), all_rows(store)) == (None, {other + b"k": b"kept"})
    again = declare(store, "a")
    store.put(again + b"k", b"new")
    store.commit()
    expected = {other + b"k": b"kept", again + b"k": b"new"}
    for reader in (provider, new_provider()):
        store = reader.get_family_store(2)
        assert all_rows(store) == expected
        assert store.get(first + b"k") is None
        assert store.metrics.num_keys == 2


def test_a_dropped_family_costs_a_tombstone(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_family_store(0)
    prefix = declare(store, "a")
    store.put_many({prefix + b"%05d" % n: b"" for n in range(10_000)})
    store.put(declare(store, "b"), b"kept")
    store.commit()
    before = store.metrics.custom["commit_bytes"]
    store = provider.get_family_store(1)
    store.drop("a")
    store.commit()
    assert store.metrics.custom["commit_bytes"] - before < 500
    assert all_rows(new_provider().get_family_store(2)) == {b"\0\2": b"kept"}


def test_only_new_elements_of_lists_are_sent(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_family_store(0)
    prefix, single = declare(store, "list", multi_value=True), declare(store, "single")
    elements = [b"%032d" % number for number in range(10_000)]
    store.put(prefix + b"k", join_elements(elements))
    store.commit()
    before = store.metrics.custom["commit_bytes"]
    store = provider.get_family_store(1)
    store.append(prefix + b"k", b"last")
    store.put(single + b"k", b"v")
    store.commit()
    assert store.metrics.custom["commit_bytes"] - before < 400
    cold = new_provider().get_family_store(2)
    assert split_elements(cold.get(prefix + b"k") or b"") == [*elements, b"last"]
    with pytest.raises(UsageError, match="has no lists"):
        cold.append(single + b"k", b"e")


def test_segments_read_in_part_merge_as_whole_ones(new_provider: NewProvider) -> None:
    chance = random.Random(7)
    provider = new_provider()
    store = provider.get_family_store(0)
    prefixes = [declare(store, name) for name in "abc"]
    rows: dict[bytes, bytes] = {}
    for version in range(3):
        some = {
            prefix + b"%06d" % chance.randrange(LARGE): chance.randbytes(1000)
            for prefix in (*prefixes[:2], declare(store, f"new {version}"))
            for _ in range(LARGE)
        }
        rows |= some
        store.put_many(some)
        store.commit()
        store = provider.get_family_store(version + 1)
    cold = new_provider().get_family_store(3)
    asked = chance.sample(sorted(rows), 300)
    assert [cold.get(key) for key in asked] == [rows[key] for key in asked]
    low, high = family_range(2)
    assert [key for key, _ in cold.rows(low, high)] == sorted(
        key for key in rows if key.startswith(low)
    )
    assert all_rows(new_provider().get_family_store(3)) == rows


def test_repeated_version_replaces_the_first_attempt(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_family_store(0)
    prefix = declare(store, "a")
    store.put(prefix, b"0")
    store.commit()
    for value in (b"first", b"second"):
        store = provider.get_family_store(1)
        store.put(prefix, value)
        declare(store, value.decode())
        assert store.commit() == 2
        store = new_provider(run="reader").get_family_store(2)
        assert all_rows(store) == {prefix: value}
        assert list(store.families) == ["a", value.decode()]
        store.abort()


def test_fenced_run_writes_nothing(new_provider: NewProvider) -> None:
    old, new = new_provider(), new_provider(run="run-2")
    store = old.get_family_store(0)
    prefix = declare(store, "a")
    store.put(prefix, b"old")
    store.commit()
    late = old.get_family_store(1)
    declare(late, "late")
    store = new.get_family_store(1)
    store.put(prefix, b"new")
    store.commit()
    with pytest.raises(ConflictError):
        late.commit()
    late.abort()
    assert all_rows(new.get_family_store(2)) == {prefix: b"new"}
    assert list(new.get_family_store(2).families) == ["a"]


def test_conflicting_declarations_are_refused(new_provider: NewProvider) -> None:
    store = new_provider().get_family_store(0)
    declare(store, "a")
    for more in ({"multi_value": True}, {"internal": True}):
        with pytest.raises(UsageError, match="single values"):
            declare(store, "a", **more)
    for name in ("", "default"):
        with pytest.raises(UsageError, match="another name"):
            declare(store, name)
    with pytest.raises(UsageError, match="JSON"):
        declare(store, "b", key_schema="{")
    assert list(store.families) == ["a"]
    with pytest.raises(LimitError):
        store.put(b"\0\1" + bytes((1 << 20) + 1), b"")
    with pytest.raises(LimitError):
        store.put_many({b"\0\1ok": b"", b"\0\1": bytes(VALUE_BYTES_MAX + 1)})
    assert all_rows(store) == {}
    store.commit()
    calls: list[Callable[[], object]] = [
        lambda: declare(store, "c"),
        lambda: store.drop("a"),
        lambda: store.put(b"\0\1", b""),
        lambda: store.remove(b"\0\1"),
        store.commit,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="already committed"):
            call()
    assert store.has_committed
    assert declare(store, "a") == b"\0\1"


def test_removal_of_a_missing_key_writes_nothing(new_provider: NewProvider) -> None:
    store = new_provider().get_family_store(0)
    prefix = declare(store, "a")
    store.remove(prefix + b"k")
    store.remove_many([prefix, prefix + b"l"])
    store.commit()
    assert store.metrics.custom["rows_removed"] == 0


def test_plain_and_family_partitions_are_not_interchangeable(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    store = new_provider().get_family_store(0)
    store.put(declare(store, "a"), b"")
    store.commit()
    with pytest.raises(UsageError, match="with families=True"):
        new_provider().get_store(1)
    with pytest.raises(UsageError, match="with families=True"):
        new_provider().get_read_store(1)
    with pytest.raises(UsageError, match="FamilyStore"):
        new_provider(families=False).get_store(1)
    with pytest.raises(UsageError, match="without families=True"):
        new_provider(families=False).get_family_store(1)
    with new_providers(shared_redis_server.url) as new:
        single = new(codec=RAW).get_store(0)
        single.put(b"a", b"b")
        single.commit()
        with pytest.raises(UsageError, match="another codec: raw"):
            new(families=True).get_family_store(1)


def test_store_in_a_forked_process_is_refused(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_family_store(0)
    prefix = declare(store, "a")
    store.put(prefix, b"0")
    store.commit()
    store = provider.get_family_store(1)
    store.put(prefix + b"k", b"1")

    def refused() -> str:
        calls: list[Callable[[], object]] = [
            lambda: store.get(prefix),
            lambda: store.get_many([prefix]),
            lambda: store.put(prefix, b""),
            lambda: list(store.rows(prefix, None)),
            lambda: declare(store, "b"),
            store.commit,
        ]
        for call in calls:
            with pytest.raises(UsageError, match="process"):
                call()
        return "all"

    assert in_child(refused) == "all"
    assert (store.get(prefix), store.get(prefix + b"k")) == (b"0", b"1")
    store.commit()


def test_lost_version_is_named(new_provider: NewProvider) -> None:
    with pytest.raises(StateError):
        new_provider().get_family_store(3)


def test_family_is_read_live_by_its_name(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    names: list[str] = []
    for partition in range(2):
        provider: StateStoreProvider = new_provider(partition=partition)
        for version in range(2):
            store = provider.get_family_store(version)
            order = ("count", "events") if partition else ("events", "count")
            for name in order:
                prefix = declare(store, name, multi_value=name == "events")
                key = prefix + b"%d" % partition
                if name == "events":
                    store.append(key, b"e%d" % version)
                else:
                    store.put(key, b"c%d" % version)
            store.commit()
        provider.get_family_store(2).abort()
        names.append(store.id.checkpoint)
    with connect(shared_redis_server.url) as reader:
        query = reader.query(names[0])
        counts = query.operator(0, family="count")
        assert dict(counts.items()) == {b"0": b"c1", b"1": b"c1"}
        assert [counts.get(b"0"), counts.get(b"1"), counts.get(b"2")] == [b"c1", b"c1", None]
        events = query.operator(0, family="events")
        assert events.get_list(b"1") == [b"e0", b"e1"]
        assert dict(events.list_items()) == {b"0": [b"e0", b"e1"], b"1": [b"e0", b"e1"]}
        assert {one.name for one in events.families()} == {"count", "events"}


def test_the_manifest_counts_internal_keys(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    provider = new_provider()
    for version in range(5):
        store = provider.get_family_store(version)
        timers, values = declare(store, "timers", internal=True), declare(store, "values")
        store.put_many({timers + b"%d" % n: b"" for n in range(version + 3)})
        store.remove(timers + b"0")
        if version == 0:
            # No later version holds all rows by itself, which would need no snapshot.
            store.put(values, b"")
        store.commit()
    provider.get_family_store(5).abort()
    _maintain(shared_redis_server.url, store.id.checkpoint)
    client = Client(config.parse({"url": shared_redis_server.url}))
    try:
        gen = checkpoint_gen(client, store.id.checkpoint) or ""
        (meta,) = client.call("reading", [("HGETALL", keys.meta(store.id.partition(gen)))])
    finally:
        client.close()
    words = {name[:3]: raw.split() for name, raw in meta.items() if name[:3] in (b"d:5", b"s:5")}
    assert {(entry[2], entry[7]) for entry in words.values()} == {(b"7", b"6")}
    assert len(words) == 2
