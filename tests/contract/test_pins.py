"""Pins hold the segments of a version for an owner; a fork reads them under its parent's keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import StateError, UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain.compaction import add_snapshot
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
        self.raw = redis.Redis.from_url(url)
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


def test_purge_names_who_pins(parent: Parent) -> None:
    parent.commit(2)
    pin_all(parent.client, [parent.id], "keep.a", 2, kind="keep")
    meta = keys.meta(parent.id)
    gen = parent.id.store.gen
    assert parent.client.script("x", script("purge"), [meta], ["1000", gen]) == ["PINNED", "keep.a"]
    assert parent.raw.pttl(meta) == -1
    assert parent.client.script("x", script("purge"), [meta], ["1000000", gen, "1"])[0] == "OK"
    assert parent.client.script("x", script("recall"), [meta], [])[0] == "OK"
