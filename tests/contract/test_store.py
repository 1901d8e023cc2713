"""The Python store on a real server: what each operation promises."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from redis_state import config, keys
from redis_state.codec import RAW
from redis_state.errors import ConflictError, Kind, StateError, UsageError
from tests.contract.store_support import NewProvider, new_providers
from tests.support.redis_server import RedisServer


@pytest.fixture
def new_provider(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as new:
        yield new


def test_a_committed_version_is_read_by_another_process_and_keeps(
    new_provider: NewProvider,
) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    store.put(("a", 1), {"n": [1, 2.5, None]})
    store.put("b", "text")
    assert store.commit() == 1
    following = provider.get_store(1)
    following.remove("b")
    following.put(7, 7)
    assert following.commit() == 2

    other = new_provider(run="run-2")
    assert dict(other.get_read_store(1).iterator()) == {
        ("a", 1): {"n": [1, 2.5, None]},
        "b": "text",
    }
    assert dict(other.get_read_store(2).iterator()) == {7: 7, ("a", 1): {"n": [1, 2.5, None]}}
    assert other.get_read_store(2).get("b") is None
    assert other.latest() == 2


def test_a_store_sees_its_own_changes_and_others_do_not(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    store.put("a", 1)
    store.put("b", 2)
    store.remove("a")
    assert (store.get("a"), store.get("b")) == (None, 2)
    assert list(store.iterator()) == [("b", 2)]
    assert list(new_provider(run="reader").get_read_store(0).iterator()) == []
    assert provider.latest() in (None, 0)


def test_rows_are_those_of_the_moment_of_the_call(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    for number in range(10):
        store.put(number, number)
    rows = store.iterator()
    next(rows)
    for number in range(10):
        store.remove(number)
        store.put(100 + number, number)
    assert [key for key, _ in rows] == list(range(1, 10))
    assert len(list(store.iterator())) == 10


def test_ranges_and_prefixes_come_in_key_order(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    for number in range(0, 600, 2):
        store.put(("even", number), number)
    store.commit()
    store = provider.get_store(1)
    for number in range(1, 600, 2):
        store.put(("odd", number), number)
    store.remove(("even", 4))
    assert [key[1] for key, _ in store.get_range(("even", 2), ("even", 10))] == [2, 6, 8]
    assert [key[1] for key, _ in store.prefix_scan(("odd",))] == list(range(1, 600, 2))
    assert [key for key, _ in store.get_range(("odd", 597))] == [("odd", 597), ("odd", 599)]
    assert [key for key, _ in store.get_range(None, ("even", 2))] == [("even", 0)]
    store.commit()
    again = new_provider().get_read_store(2)
    assert len(list(again.iterator())) == again.metrics.num_keys == 599


def test_a_store_that_is_done_refuses_changes(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    store.put("a", 1)
    store.commit()
    for change in (lambda: store.put("b", 1), lambda: store.remove("a"), store.commit):
        with pytest.raises(UsageError, match="committed"):
            change()
    store.abort()
    assert store.has_committed
    assert store.get("a") == 1
    aborted = provider.get_store(1)
    aborted.put("b", 2)
    aborted.abort()
    aborted.abort()
    with pytest.raises(UsageError, match="aborted"):
        aborted.put("b", 2)
    assert not aborted.has_committed
    assert dict(provider.get_store(1).iterator()) == {"a": 1}


def test_values_that_are_handed_out_are_copies(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    given = [1, 2]
    store.put("a", given)
    given.append(3)
    store.get("a").append(4)
    assert store.get("a") == [1, 2]


def test_an_unknown_name_is_lost_state(new_provider: NewProvider) -> None:
    with pytest.raises(StateError) as caught:
        new_provider().get_store(3)
    assert caught.value.kind is Kind.STATE_LOST
    with pytest.raises(StateError) as caught:
        new_provider(expect_existing=True).get_store(0)
    assert caught.value.kind is Kind.STATE_LOST


def test_a_newer_run_fences_the_older_one(new_provider: NewProvider) -> None:
    old, new = new_provider(run="old"), new_provider(run="new")
    store = old.get_store(0)
    store.put("a", "old")
    store.commit()
    late = old.get_store(1)
    late.put("a", "late")
    taken = new.get_store(1)
    taken.put("a", "new")
    with pytest.raises(ConflictError):
        late.commit()
    late.abort()
    assert taken.commit() == 2
    assert new_provider().get_read_store(2).get("a") == "new"


def test_a_cold_process_reads_blocks_as_they_are_needed(new_provider: NewProvider) -> None:
    provider = new_provider(codec=RAW)
    rows = {b"%06d" % number: random.Random(number).randbytes(64) for number in range(40_000)}
    store = provider.get_store(0)
    for key, value in rows.items():
        store.put(key, value)
    store.commit()
    cold = new_provider(codec=RAW).get_read_store(1)
    before = cold.metrics
    assert cold.get(b"000077") == rows[b"000077"]
    one = cold.metrics
    assert one.memory_bytes < before.memory_bytes + 64 * 1024
    assert one.custom["round_trips"] == before.custom["round_trips"] + 1
    keys = list(rows)
    random.Random(1).shuffle(keys)
    assert all(cold.get(key) == rows[key] for key in keys)
    assert cold.metrics.custom["round_trips"] < before.custom["round_trips"] + 80
    assert cold.get(b"missing") is None


def test_many_small_versions_are_loaded_in_few_round_trips(new_provider: NewProvider) -> None:
    provider = new_provider()
    for version in range(30):
        store = provider.get_store(version)
        store.put(version, version)
        store.commit()
    cold = new_provider().get_read_store(30)
    assert cold.metrics.custom["round_trips"] <= 6
    assert dict(cold.iterator()) == {number: number for number in range(30)}


def test_what_is_ephemeral_expires_unless_it_is_maintained(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    options = config.parse({"url": shared_redis_server.url, "ephemeral": True})
    provider = new_provider(config=options)
    store = provider.get_store(0)
    store.put("a", 1)
    store.commit()
    with shared_redis_server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(provider.id.store_id.checkpoint)).decode()
        of_it = [key for key in raw.scan_iter(count=1000) if gen.encode() in key]
        assert len(of_it) == 3
        for key in of_it:
            assert raw.pttl(key) > 0
            raw.pexpire(key, 1000)
        provider.do_maintenance()
        assert all(raw.pttl(key) > 60_000 for key in of_it)
