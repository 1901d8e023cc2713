"""Pins hold the segments of a version for an owner; a fork reads them under its parent's keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import ConflictError, Kind, StateError, UsageError
from redis_state.format.entry import parse_entry
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.orphans import sweep_orphans
from redis_state.maintain.pinned import GONE_MS, GRACE_MS, maintain_pins
from redis_state.maintain.purge import purge
from redis_state.maintain.recall import expire, recall
from redis_state.protocol import register_run
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.pins import (
    FORK,
    fork_partitions,
    held_commands,
    pin_all,
    read_held,
    unpin_all,
)
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer, bytes_of

ID = StateStoreId("orders", 0, 0)
FORKED = "f" * 32
DAY_MS = 86_400_000


class Parent:
    """A Python store with some versions, each of which changes a key and adds one."""

    def __init__(self, url: str) -> None:
        self.client = Client(config.parse({"url": url}))
        self.provider = StateStoreProvider(
            StateStoreProviderId(ID), config=url, versions_to_retain=2
        )
        self.raw: Any = redis.Redis.from_url(url)
        self.at = 0

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            store = self.provider.get_store(self.at)
            store.put("newest", self.at)
            store.put(f"k{self.at}", self.at)
            self.at = store.commit()

    @property
    def id(self):  # type: ignore[no-untyped-def]
        field = keys.name_field(ID.checkpoint)
        gen = bytes_of(self.raw.hget(keys.names(), field)).decode()
        return ID.partition(gen)

    def partition(self) -> PartitionClient:
        return PartitionClient(self.client, self.id, versions_to_retain=2)

    def maintain(self) -> None:
        """Adds a snapshot, then drops what no kept version needs."""
        partition = self.partition()
        add_snapshot(partition, partition.open("", None))
        partition.retain()

    def manifest(self) -> dict[str, str]:
        found = self.raw.hgetall(keys.meta(self.id))
        return {bytes_of(name).decode(): bytes_of(one).decode() for name, one in found.items()}

    def close(self) -> None:
        self.provider.close()
        self.client.close()
        self.raw.close()


@pytest.fixture
def parent(redis_server: RedisServer) -> Iterator[Parent]:
    made = Parent(redis_server.url)
    yield made
    made.close()


def maintain_partition(parent: Parent) -> None:
    maintain_pins(parent.client, parent.id, parent.raw.hgetall(keys.meta(parent.id)))


def rows(parent: Parent, gen: str, version: int) -> dict[str, int]:
    opened = PartitionClient(parent.client, parent.id.of_gen(gen), versions_to_retain=2).open(
        "", version
    )
    return {
        segment.ident: len(blocks)
        for segment, blocks in zip(
            opened.segments,
            PartitionClient(parent.client, parent.id.of_gen(gen), versions_to_retain=2).fetch_whole(
                opened.segments
            ),
            strict=True,
        )
    }


def test_pinned_segments_are_set_aside_and_the_fork_reads_them(parent: Parent) -> None:
    parent.commit(3)
    pinned = pin_all(parent.client, [parent.id], FORKED, 3, kind=FORK)
    fork_partitions(parent.client, FORKED, pinned, ttl_ms=DAY_MS)
    before = rows(parent, FORKED, 3)
    assert before
    assert parent.manifest()["f"] == "2"
    for _ in range(3):
        parent.commit(4)
        parent.maintain()
    aside = [name for name in parent.manifest() if name.startswith("z:")]
    assert {name[2:] for name in aside} == set(before)
    with pytest.raises(StateError):
        parent.partition().open("", 3)
    assert rows(parent, FORKED, 3) == before
    assert unpin_all(parent.client, [parent.id], FORKED) == 1
    parent.partition().retain()
    assert not [name for name in parent.manifest() if name[:2] in ("x:", "y:", "z:")]
    assert parent.manifest()["f"] == "1"


def test_pin_sent_again_holds_the_same_segments(parent: Parent) -> None:
    parent.commit(6)
    (first,) = pin_all(parent.client, [parent.id], "keep.a", 5, kind="keep")
    for _ in range(3):
        parent.commit(4)
        parent.maintain()
    (again,) = pin_all(parent.client, [parent.id], "keep.a", 5, kind="keep")
    assert again == first
    (reply,) = parent.client.call("reading", held_commands([parent.id], "keep.a"))
    held = read_held(parent.id, reply)
    assert held is not None
    assert (held.pin, held.segments) == (first.pin, first.segments)
    with pytest.raises(UsageError, match="pins version 5 already"):
        pin_all(parent.client, [parent.id], "keep.a", 17, kind="keep")
    parent.raw.hdel(keys.meta(parent.id), f"z:{first.segments[0].ident}")
    with pytest.raises(StateError):
        pin_all(parent.client, [parent.id], "keep.a", 5, kind="keep")


def test_refused_purge_changes_nothing(parent: Parent) -> None:
    parent.commit(2)
    gen = parent.id.store.gen
    pin_all(parent.client, [parent.id], "keep.before", 2, kind="keep")
    pinned = pin_all(parent.client, [parent.id], FORKED, 2, kind=FORK)
    fork_partitions(parent.client, FORKED, pinned, ttl_ms=DAY_MS)
    parent.raw.hset(keys.query(FORKED), "name", "orders-fork")
    before = {name: parent.raw.dump(name) for name in parent.raw.keys("*")}
    for how in (purge, expire):
        with pytest.raises(ConflictError) as told:
            how(parent.client, gen)
        assert told.value.kind is Kind.PINNED
        assert "kept version 'before'" in str(told.value)
        assert f"fork 'orders-fork' (gen {FORKED})" in str(told.value)
    assert {name: parent.raw.dump(name) for name in parent.raw.keys("*")} == before
    expire(parent.client, gen, force=True)
    assert 0 < parent.raw.pttl(keys.meta(parent.id)) <= DAY_MS
    recall(parent.client, gen)
    assert rows(parent, FORKED, 2)
    meta = keys.meta(parent.id)
    purge(parent.client, gen, force=True)
    assert not parent.raw.exists(meta)


def test_pin_during_a_purge_stops_it(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    parent.commit(2)
    gen = parent.id.store.gen

    def look(*_: Any, **__: Any) -> None:
        """Finds no pin; then one comes."""
        pin_all(parent.client, [parent.id], "keep.before", 2, kind="keep")

    monkeypatch.setattr("redis_state.maintain.recall.refuse_if_pinned", look)
    with pytest.raises(ConflictError, match="The purge had already begun") as told:
        expire(parent.client, gen)
    assert "Nothing was changed" not in str(told.value)
    assert parent.raw.pttl(keys.meta(parent.id)) == -1
    recall(parent.client, gen)
    assert parent.raw.pttl(keys.query(gen)) == -1
    assert not parent.raw.hexists(keys.query(gen), "purged")


def test_purged_fork_unpins_its_parent(parent: Parent) -> None:
    parent.commit(3)
    pinned = pin_all(parent.client, [parent.id], FORKED, 3, kind=FORK)
    fork_partitions(parent.client, FORKED, pinned, ttl_ms=DAY_MS)
    store = parent.id.store
    operator = f"op:{store.operator}:{store.store}"
    described = parent.raw.hget(keys.query(store.gen), operator)
    parent.raw.hset(keys.query(FORKED), mapping={"f": "1", operator: described})
    parent.raw.hset(keys.query(store.gen), f"fork:{FORKED}", "{}")
    segments = sorted(parent.raw.keys("{rs:" + store.gen + "*:d:*"))
    purge(parent.client, FORKED)
    left = sorted(parent.raw.keys("{rs:" + store.gen + "*:d:*"))
    assert left == segments, "a foreign key was removed"
    assert parent.manifest()["f"] == "1"
    assert not parent.raw.hexists(keys.query(store.gen), f"fork:{FORKED}")


def test_maintenance_ends_expired_pins(parent: Parent) -> None:
    parent.commit(2)
    pin_all(parent.client, [parent.id], "keep.short", 2, kind="keep", ttl_ms=3_600_000)
    pin_all(parent.client, [parent.id], "keep.long", 2, kind="keep")
    assert maintain_pins(parent.client, parent.id, parent.raw.hgetall(keys.meta(parent.id))) == 0
    words = parent.manifest()["x:keep.short"].split(" ")
    seen = {name.encode(): value.encode() for name, value in parent.manifest().items()}
    words[2] = "1"
    seen[b"x:keep.short"] = " ".join(words).encode()
    # It was renewed since the manifest was read.
    assert maintain_pins(parent.client, parent.id, seen) == 0
    parent.raw.hset(keys.meta(parent.id), "x:keep.short", " ".join(words))
    maintain_partition(parent)
    assert {name for name in parent.manifest() if name.startswith("x:")} == {"x:keep.long"}


def test_maintenance_ends_the_pins_of_a_fork_that_is_gone(parent: Parent) -> None:
    parent.commit(2)
    pin_all(parent.client, [parent.id], FORKED, 2, kind=FORK)
    note = f"{parent.id.store.gen}:{FORKED}"
    parent.raw.hset(keys.query(FORKED), "f", "1")
    maintain_partition(parent)
    assert not parent.raw.hexists(keys.looks(), note)
    parent.raw.delete(keys.query(FORKED))
    for _ in range(2):
        maintain_partition(parent)
        assert f"x:{FORKED}" in parent.manifest()
    since = json.loads(parent.raw.hget(keys.looks(), note))["at"]
    parent.raw.hset(keys.looks(), note, json.dumps({"at": since - GONE_MS}))
    # It is there again at this look, so the wait begins anew.
    parent.raw.hset(keys.query(FORKED), "f", "1")
    maintain_partition(parent)
    assert f"x:{FORKED}" in parent.manifest()
    parent.raw.delete(keys.query(FORKED))
    maintain_partition(parent)
    assert f"x:{FORKED}" in parent.manifest()
    parent.raw.hset(keys.looks(), note, json.dumps({"at": since - GONE_MS}))
    maintain_partition(parent)
    assert f"x:{FORKED}" not in parent.manifest()


@pytest.mark.parametrize("epoch", [0, 1])
def test_partition_of_a_fork_that_was_killed_before_its_last_step_expires(
    parent: Parent, epoch: int
) -> None:
    """The partition has no expiry any more, and the query was about to lose its own."""
    parent.commit(2)
    pinned = pin_all(parent.client, [parent.id], FORKED, 2, kind=FORK)
    fork_partitions(parent.client, FORKED, pinned, ttl_ms=DAY_MS)
    meta = keys.meta(parent.id.of_gen(FORKED))
    parent.raw.persist(meta)
    # A run may have acquired it before the registry was lost.
    parent.raw.hset(meta, "e", epoch)
    maintain_partition(parent)
    assert parent.raw.pttl(meta) == -1
    note = f"{parent.id.store.gen}:{FORKED}"
    since = json.loads(parent.raw.hget(keys.looks(), note))["at"]
    parent.raw.hset(keys.looks(), note, json.dumps({"at": since - GONE_MS}))
    maintain_partition(parent)
    assert f"x:{FORKED}" not in parent.manifest()
    assert (parent.raw.pttl(meta) > 0) == (epoch == 0)


@pytest.mark.parametrize("remove", [purge, expire])
def test_purge_forgets_what_was_noted_of_forks(parent: Parent, remove: Callable[..., Any]) -> None:
    parent.commit(2)
    pin_all(parent.client, [parent.id], FORKED, 2, kind=FORK)
    maintain_partition(parent)
    other = f"{'f' * 32}:{FORKED}"
    parent.raw.hset(keys.looks(), other, "{}")
    assert parent.raw.hlen(keys.looks()) == 2
    remove(parent.client, parent.id.store.gen, force=True)
    assert parent.raw.hkeys(keys.looks()) == [other.encode()]


def test_parent_is_unpinned_a_day_after_the_last_foreign_segment(parent: Parent) -> None:
    parent.commit(3)
    pinned = pin_all(parent.client, [parent.id], FORKED, 3, kind=FORK)
    fork_partitions(parent.client, FORKED, pinned, ttl_ms=DAY_MS)
    fork = parent.id.of_gen(FORKED)
    parent.raw.persist(keys.meta(fork))
    # Keeps nothing below the version that it began with.
    parent.raw.hset(keys.meta(fork), "n", "0")

    def look() -> int:
        return maintain_pins(parent.client, fork, parent.raw.hgetall(keys.meta(fork)))

    assert look() == 0
    client = PartitionClient(parent.client, fork, versions_to_retain=2)
    add_snapshot(client, client.open("", None))
    client.retain()
    assert look() == 0
    assert f"x:{FORKED}" in parent.manifest(), "a fail-over may bring a foreign segment back"
    since = int(parent.raw.hget(keys.meta(fork), "gt"))
    parent.raw.hset(keys.meta(fork), "gt", str(since - GRACE_MS))
    assert look() == 1
    assert f"x:{FORKED}" not in parent.manifest()
    assert parent.raw.hget(keys.meta(fork), "f") == b"1"
    assert not parent.raw.hexists(keys.meta(fork), "g")


def test_refused_purge_names_the_owners_of_pins(parent: Parent) -> None:
    parent.commit(2)
    pin_all(parent.client, [parent.id], "keep.a", 2, kind="keep")
    meta = keys.meta(parent.id)
    gen = parent.id.store.gen
    assert parent.client.script("x", script("purge"), [meta], ["1000", gen]) == ["PINNED", "keep.a"]
    assert parent.raw.pttl(meta) == -1
    assert parent.client.script("x", script("purge"), [meta], ["1000000", gen, "1"])[0] == "OK"
    assert parent.client.script("x", script("recall"), [meta], [])[0] == "OK"


def test_late_pin_with_an_expiry_leaves_a_permanent_pin(parent: Parent) -> None:
    parent.commit(2)
    pin_all(parent.client, [parent.id], FORKED, 2, kind=FORK)
    pin_all(parent.client, [parent.id], FORKED, 2, kind=FORK, ttl_ms=1000)
    assert parent.manifest()[f"x:{FORKED}"].split(" ")[2] == "0"


def test_unfinished_fork_has_the_segments_of_the_newest_pin(parent: Parent) -> None:
    parent.commit(3)
    first = pin_all(parent.client, [parent.id], FORKED, 3, kind=FORK, ttl_ms=1000)
    fork_partitions(parent.client, FORKED, first, ttl_ms=DAY_MS)
    unpin_all(parent.client, [parent.id], FORKED)
    partition = parent.partition()
    add_snapshot(partition, partition.open("", 3))
    again = pin_all(parent.client, [parent.id], FORKED, 3, kind=FORK)
    assert again != first
    fork_partitions(parent.client, FORKED, again, ttl_ms=DAY_MS)
    (snapshot,) = again[0].segments
    assert list(rows(parent, FORKED, 3)) == [snapshot.ident]
    parent.raw.persist(keys.meta(parent.id.of_gen(FORKED)))
    fork_partitions(parent.client, FORKED, first, ttl_ms=DAY_MS)
    assert list(rows(parent, FORKED, 3)) == [snapshot.ident]


def test_segment_that_was_set_aside_and_entered_again_stays(parent: Parent) -> None:
    parent.commit(3)
    partition, meta = parent.partition(), keys.meta(parent.id)
    opened = partition.open("", 3)
    add_snapshot(partition, opened)
    (pinned,) = pin_all(parent.client, [parent.id], "keep.a", 3, kind="keep")
    (snapshot,) = pinned.segments
    manifest = parent.manifest()
    # As the attempt of another run that replaced the version, and left it again.
    parent.raw.hset(meta, f"z:{snapshot.ident}", f"{snapshot.field} {snapshot.entry.text}")
    parent.raw.hdel(meta, snapshot.field)
    blocks = partition.fetch_whole([snapshot])[0]
    assert partition.add_snapshot(pinned.pin, snapshot.entry.ref, snapshot.entry, blocks)
    assert parent.manifest() == manifest
    unpin_all(parent.client, [parent.id], "keep.a")
    partition.retain()
    assert parent.raw.pttl(keys.segment(parent.id, snapshot.ident)) == -1


def test_delta_that_was_set_aside_and_published_again_stays(parent: Parent) -> None:
    parent.commit(2)
    run = register_run(parent.client, parent.id.store.gen, "run-a", by_driver=True)
    partition = parent.partition()
    opened = partition.open("", 2)
    acquired = partition.acquire(run, opened.pin)
    entry = parse_entry(f"{opened.pin.uid} 0 2 0 0 1 0 -")
    partition.commit(acquired, opened.pin, "a" * 32, entry, {})
    pin_all(parent.client, [parent.id], "keep.a", 3, kind="keep")
    partition.commit(acquired, opened.pin, "b" * 32, entry, {})
    assert f"z:d:3:{'a' * 32}" in parent.manifest()
    # The first one never heard that it was published, and sends it again.
    partition.commit(acquired, opened.pin, "a" * 32, entry, {})
    manifest = parent.manifest()
    assert f"d:3:{'a' * 32}" in manifest
    assert f"z:d:3:{'a' * 32}" not in manifest


def test_sweep_removes_set_aside_segments_of_a_lost_manifest(parent: Parent) -> None:
    parent.commit(3)
    (pinned,) = pin_all(parent.client, [parent.id], "keep.a", 3, kind="keep")
    for _ in range(3):
        parent.commit(4)
        parent.maintain()
    key = keys.segment(parent.id, pinned.segments[0].ident)
    assert parent.raw.pttl(key) > 365 * DAY_MS
    sweep_orphans(parent.client)
    assert parent.raw.pttl(key) > 365 * DAY_MS
    parent.raw.delete(keys.meta(parent.id))
    sweep_orphans(parent.client)
    assert parent.raw.pttl(key) <= DAY_MS


def test_ephemeral_run_sets_no_expiry_on_pinned_segments(parent: Parent) -> None:
    parent.commit(2)
    pin_all(parent.client, [parent.id], FORKED, 2, kind=FORK)
    ephemeral = PartitionClient(parent.client, parent.id, versions_to_retain=2, keep_ms=60_000)
    ephemeral.renew()
    held = [name for name in parent.raw.keys("*") if parent.id.store.gen.encode() in name]
    assert {parent.raw.ttl(name) for name in held if name.split(b":")[-1] != b"x"} == {-1}
    unpin_all(parent.client, [parent.id], FORKED)
    ephemeral.renew()
    assert 0 < parent.raw.pttl(keys.meta(parent.id)) <= 60_000


def test_late_first_step_leaves_a_complete_fork_unchanged(parent: Parent) -> None:
    query, words = keys.query(FORKED), [str(DAY_MS), "forkOf", "x 1", "name", "first"]
    assert parent.client.script("x", script("begin"), [query], words) == ["OK"]
    assert 0 < parent.raw.pttl(query) <= DAY_MS
    parent.raw.persist(query)
    again = [str(DAY_MS), "forkOf", "x 1", "name", "second"]
    assert parent.client.script("x", script("begin"), [query], again) == ["PRESENT"]
    assert (parent.raw.pttl(query), parent.raw.hget(query, "name")) == (-1, b"first")
    parent.raw.hset(query, "purged", "{}")
    assert parent.client.script("x", script("begin"), [query], again) == ["PURGED"]
