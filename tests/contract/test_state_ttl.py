"""Python stores whose rows have a time to live (docs/format.md, section 15)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.config import parse
from redis_state.errors import ConfigError, UsageError
from redis_state.format.segment import read_segment
from redis_state.maintain import compaction
from redis_state.protocol import PartitionClient
from tests.contract.planting import Planted
from tests.contract.timed_scene import TimedScene
from tests.support.redis_server import RedisServer


@pytest.fixture
def scene(shared_redis_server: RedisServer) -> Iterator[TimedScene]:
    with shared_redis_server.client() as raw:
        made = TimedScene(shared_redis_server, raw)
        yield made
        made.close()


def rows(store: Any) -> dict[Any, Any]:
    """All rows, after every way of reading them has agreed."""
    found = dict(store.iterator())
    asked = [*found, *("abcdefgh"), "never"]
    assert store.get_many(asked) == [found.get(key) for key in asked]
    assert [store.get(key) for key in asked] == [found.get(key) for key in asked]
    assert dict(store.get_range("b", "d")) == {k: v for k, v in found.items() if "b" <= k < "d"}
    assert dict(store.prefix_scan("a")) == {k: v for k, v in found.items() if k.startswith("a")}
    return found


def test_row_is_absent_from_its_expiry_on(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1, "b": 2})
    began = scene.time(1)
    scene.write(provider, 1, {"b": 3, "c": 4}, began + 60)
    scene.write(provider, 2, {}, began + 99)
    scene.write(provider, 3, {}, began + 100)
    scene.write(provider, 4, {}, began + 160)
    for one in (provider, scene.provider(run="run-2")):
        assert rows(one.get_read_store(1)) == {"a": 1, "b": 2}
        assert rows(one.get_read_store(2)) == {"a": 1, "b": 3, "c": 4}
        assert rows(one.get_read_store(3)) == {"a": 1, "b": 3, "c": 4}
        assert rows(one.get_read_store(4)) == {"b": 3, "c": 4}
        assert rows(one.get_read_store(5)) == {}


def test_writer_sees_the_rows_of_its_own_time(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1, "b": 2, "c": 3})
    scene.set_time(1, scene.time(1) + 100)
    store = provider.get_store(1)
    assert rows(store) == {}
    store.put("b", 5)
    store.remove("a")
    store.put("d", 6)
    store.remove("d")
    assert rows(store) == {"b": 5}
    store.remove_many(["c", "b"])
    store.put_many({"e": 7})
    assert rows(store) == {"e": 7}
    assert store.commit() == 2
    assert rows(store) == {"e": 7}
    assert rows(scene.provider().get_read_store(2)) == {"e": 7}
    # The expired row was not removed once more, and is still counted.
    assert scene.segment(2).entry.live == 4


def test_put_renews_a_row_and_a_read_does_not(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1, "b": 2})
    began = scene.time(1)
    scene.set_time(1, began + 99)
    store = provider.get_store(1)
    assert store.get("a") == store.get("b") - 1
    store.put("a", 1)
    store.commit()
    scene.write(provider, 2, {}, began + 198)
    assert rows(provider.get_read_store(3)) == {"a": 1}


def test_batch_that_is_run_again_has_the_same_time_and_rows(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1, "b": 2})
    scene.write(provider, 1, {"a": 5}, scene.time(1) + 60)
    first = scene.segment(2).entry
    for again in (provider, scene.provider(), scene.provider(run="run-2")):
        store = again.get_store(1)
        assert rows(store) == {"a": 1, "b": 2}
        store.put("a", 5)
        store.commit()
        assert scene.segment(2).entry.time == first.time
        assert rows(again.get_read_store(2)) == {"a": 5, "b": 2}


def test_batch_whose_second_run_fails_has_the_first_time_again(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1})
    began = scene.time(1)
    scene.write(provider, 1, {"b": 1}, began + 60)
    for _ in range(2):
        failing = scene.provider(run="run-2").get_store(1)
        failing.put("b", 1)
        failing.abort()
    assert [one.version for one in scene.segments()] == [1]
    scene.write(scene.provider(run="run-2"), 1, {"b": 1})
    assert scene.time(2) == began + 60


def test_first_batch_that_is_run_again_has_its_first_time(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1})
    began = scene.time(1)
    scene.set_time(0, began - 50)
    store = scene.provider().get_store(0)
    store.put("a", 1)
    store.commit()
    assert scene.time(1) == began - 50


def test_time_does_not_go_back(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1})
    began = scene.time(1)
    scene.write(provider, 1, {}, began + 1000)
    scene.write(provider, 2, {"b": 1}, began + 500)
    scene.write(provider, 3, {"c": 1})
    assert [scene.time(version) for version in (2, 3, 4)] == [began + 1000] * 3
    assert rows(scene.provider().get_read_store(4)) == {"b": 1, "c": 1}


def test_rewound_store_has_the_time_of_its_version(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1})
    began = scene.time(1)
    scene.write(provider, 1, {"b": 1}, began + 90)
    scene.write(provider, 2, {"c": 1}, began + 500)
    later = scene.provider(run="run-2")
    store = later.get_store(2)
    assert rows(store) == {}
    store.put("d", 1)
    store.commit()
    assert scene.time(3) == began + 500


def test_rewind_takes_a_new_time(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1})
    began = scene.time(1)
    scene.write(provider, 1, {"b": 1}, began + 5_000)
    scene.write(provider, 2, {"c": 1}, began + 6_000)
    later = scene.provider(run="run-2", by_driver=True)
    store = later.get_store(1)
    assert rows(store) == {"a": 1}
    store.put("d", 1)
    store.commit()
    assert began <= scene.time(2) < began + 1_000


@pytest.mark.parametrize("cold", [False, True])
def test_turning_on_gives_all_rows_an_expiry(scene: TimedScene, cold: bool) -> None:
    provider = scene.provider(state_ttl=None)
    scene.write(provider, 0, {"a": 1, "b": 2, "c": 3})
    assert scene.segment(1).entry.time == 0
    timed = scene.provider()
    store = timed.get_store(1)
    store.put("a", 4)
    store.remove("c")
    assert rows(store) == {"a": 4, "b": 2}
    store.commit()
    turned = scene.segment(2).entry
    assert (turned.complete, turned.live, turned.rows) == (True, 2, 2)
    if cold:
        timed = scene.provider()
    scene.write(timed, 2, {}, turned.time + 99)
    assert rows(timed.get_read_store(3)) == {"a": 4, "b": 2}
    scene.write(timed, 3, {}, turned.time + 100)
    assert rows(timed.get_read_store(4)) == {}
    assert rows(timed.get_read_store(1)) == {"a": 1, "b": 2, "c": 3}


def test_turning_on_without_a_change_writes_all_rows(scene: TimedScene) -> None:
    scene.write(scene.provider(state_ttl=None), 0, {"a": 1})
    scene.write(scene.provider(), 1, {})
    assert (scene.segment(2).entry.complete, scene.segment(2).entry.rows) == (True, 1)


@pytest.mark.parametrize("cold", [False, True])
def test_turning_off_keeps_the_rows_that_are_there_for_ever(scene: TimedScene, cold: bool) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {"a": 1, "b": 2})
    began = scene.time(1)
    scene.write(provider, 1, {"b": 3}, began + 90)
    scene.write(provider, 2, {}, began + 100)
    for _ in range(2):
        plain = scene.provider(state_ttl=None)
        store = plain.get_store(3)
        assert rows(store) == {"b": 3}
        store.put("c", 4)
        store.commit()
        assert rows(store) == {"b": 3, "c": 4}
    turned = scene.segment(4).entry
    assert (turned.complete, turned.time, turned.live) == (True, 0, 2)
    if cold:
        plain = scene.provider(state_ttl=None)
    scene.write(plain, 4, {"c": None})
    assert rows(plain.get_read_store(5)) == {"b": 3}
    assert not scene.segment(5).entry.complete


def test_changed_time_to_live_counts_from_the_next_put(scene: TimedScene) -> None:
    scene.write(scene.provider(), 0, {"a": 1, "b": 2})
    began = scene.time(1)
    shorter = scene.provider(state_ttl="1500ms")
    scene.write(shorter, 1, {"b": 3}, began + 10)
    scene.write(shorter, 2, {}, began + 11)
    assert rows(shorter.get_read_store(3)) == {"a": 1, "b": 3}
    assert not scene.segment(2).entry.complete
    scene.write(shorter, 3, {}, began + 12)
    for provider in (shorter, scene.provider()):
        assert rows(provider.get_read_store(4)) == {"a": 1}


def test_shorter_lived_row_does_not_bring_back_the_row_below(scene: TimedScene) -> None:
    scene.write(scene.provider(), 0, {f"k{n}": n for n in range(40)})
    began = scene.time(1)
    provider = scene.provider(state_ttl="2s")
    scene.write(provider, 1, {"k1": -1}, began + 1)
    for version in range(2, 12):
        scene.write(provider, version, {"k2": version}, began + 1 + version)
    for one in (provider, scene.provider()):
        store = one.get_read_store(12)
        assert store.get("k1") is None
        assert len(dict(store.iterator())) == 39


def test_time_to_live_survives_processes_without_the_option_only_as_readers(
    scene: TimedScene,
) -> None:
    scene.write(scene.provider(), 0, {"a": 1})
    began = scene.time(1)
    scene.write(scene.provider(), 1, {}, began + 100)
    reader = scene.provider(state_ttl=None)
    assert rows(reader.get_read_store(1)) == {"a": 1}
    assert rows(reader.get_read_store(2)) == {}


def test_overwriting_all_rows_is_a_complete_delta_with_expiries(scene: TimedScene) -> None:
    provider = scene.provider()
    everything = {f"a{n:03}": n for n in range(300)}
    scene.write(provider, 0, everything)
    began = scene.time(1)
    scene.write(provider, 1, {key: -n for key, n in everything.items()}, began + 90)
    entry = scene.segment(2).entry
    assert (entry.complete, entry.live, entry.time) == (True, 300, began + 90)
    scene.write(provider, 2, {}, began + 189)
    for one in (provider, scene.provider()):
        assert len(rows(one.get_read_store(3))) == 300
    scene.write(provider, 3, {}, began + 190)
    for one in (provider, scene.provider()):
        assert rows(one.get_read_store(4)) == {}


def test_snapshot_leaves_expired_rows_out_and_counts_exactly(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {f"a{n:03}": n for n in range(200)})
    began = scene.time(1)
    for version in range(1, 6):
        scene.write(provider, version, {f"b{version}": 1, "c": version}, began + 20 * version)
    scene.write(provider, 6, {}, began + 100)
    provider.get_store(7).abort()
    provider.do_maintenance()
    snapshot = scene.segment(7, snapshot=True).entry
    left = {f"b{n}": 1 for n in range(1, 6)} | {"c": 5}
    assert (snapshot.rows, snapshot.live, snapshot.time) == (6, 6, began + 100)
    for one in (provider, scene.provider(), scene.provider(state_ttl=None)):
        assert rows(one.get_read_store(7)) == left
    scene.write(provider, 7, {"d": 1}, began + 121)
    assert scene.segment(8).entry.live == 7
    for one in (provider, scene.provider()):
        assert rows(one.get_read_store(8)) == {"d": 1, "c": 5} | {f"b{n}": 1 for n in range(2, 6)}


def test_snapshot_takes_expired_rows_out_of_memory(scene: TimedScene) -> None:
    provider = scene.provider(codec=RAW)
    version = 0
    began = 0
    for _ in range(12):
        if began:
            scene.set_time(version, began + 40 * version)
        store = provider.get_store(version)
        store.put_many({b"%06d" % n: bytes(50) for n in range(version * 500, version * 500 + 500)})
        version = store.commit()
        began = began or scene.time(1)
        provider.do_maintenance()
    assert provider.cached_bytes() < 7 * 500 * 200
    found = provider.get_read_store(version)
    assert len(list(found.iterator())) == 1500
    assert 1500 <= found.metrics.num_keys <= 3500


def test_time_to_live_of_lists_is_refused(scene: TimedScene) -> None:
    with pytest.raises(UsageError, match=r"lists cannot have a time to live"):
        scene.provider(lists=True)
    with pytest.raises(ConfigError, match=r"stateTtl.*out of range"):
        scene.provider(state_ttl="999ms")


def test_families_keep_their_own_expiries(scene: TimedScene) -> None:
    provider = scene.provider(families=True)
    store = provider.get_family_store(0)
    prefix = store.declare("one", key_schema="{}", value_schema="{}")
    store.put(prefix + b"k", b"v")
    store.commit()
    assert scene.segment(1).entry.time == 0


def test_snapshot_by_maintenance_leaves_expired_rows_out(scene: TimedScene) -> None:
    provider = scene.provider()
    scene.write(provider, 0, {f"a{n:03}": n for n in range(300)})
    began = scene.time(1)
    for version in range(1, 4):
        scene.write(provider, version, {f"b{version}": 1, "c": version}, began + 20 * version)
    scene.write(provider, 4, {}, began + 120)
    with closing(Client(parse({"url": scene.server.url}))) as client:
        partition = PartitionClient(client, scene.id, versions_to_retain=2)
        added = compaction.add_snapshot(partition, partition.open("", 5))
    assert added is not None
    assert (added.rows, added.live, added.time) == (3, 3, began + 120)
    for one in (provider, scene.provider(), scene.provider(state_ttl=None)):
        assert rows(one.get_read_store(5)) == {"b2": 1, "b3": 1, "c": 3}
    cold = scene.provider()
    scene.write(cold, 5, {"d": 1}, began + 141)
    assert scene.segment(6).entry.live == 4
    assert rows(cold.get_read_store(6)) == {"b3": 1, "c": 3, "d": 1}


def test_snapshot_of_hashed_families_leaves_expired_rows_out(planted: Planted) -> None:
    timed = replace(planted.family, ttl=True)
    store = replace(planted, family=timed, partitions=1, times={1: 100, 2: 160})
    store.register()
    keys = [{"carrier": f"c{n}"} for n in range(400)]
    value = {"count": 1, "total": 2.0}
    written = {store.key(k): store.value(value, expires=150 + n % 20) for n, k in enumerate(keys)}
    store.delta(0, 1, written)
    store.delta(0, 2, {store.key(keys[0]): store.value(value), store.key(keys[19]): None})
    host = store.client.connection_pool.connection_kwargs
    url = f"redis://{host['host']}:{host['port']}/0"
    with closing(Client(parse({"url": url}))) as client:
        partition = PartitionClient(client, store.id(0), versions_to_retain=2)
        added = compaction.add_snapshot(partition, partition.open("", 2))
        assert added is not None
        kept = {
            store.key(k): written[store.key(k)]
            for n, k in enumerate(keys)
            if n % 20 > 10 and n != 19
        }
        kept[store.key(keys[0])] = store.value(value)
        assert (added.rows, added.live, added.time) == (len(kept), len(kept), 160)
        (snapshot, *_) = partition.open("", 2).segments
        assert read_segment(snapshot, partition.fetch_whole([snapshot])[0]).rows == kept
