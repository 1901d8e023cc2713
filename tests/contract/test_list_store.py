"""Stores whose values are lists: elements are added without sending the list again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_state.errors import LimitError, UsageError
from tests.contract.store_support import NewProvider, new_providers
from tests.support.redis_server import RedisServer


@pytest.fixture
def new_provider(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as new:
        yield new


def test_elements_are_appended_to_the_list(new_provider: NewProvider) -> None:
    provider = new_provider(lists=True)
    store = provider.get_list_store(0)
    store.put("a", [1, {"x": 2}])
    store.append("a", 3)
    store.append("b", 4)
    store.put("empty", [])
    assert (store.get("a"), store.get("b")) == ([1, {"x": 2}, 3], [4])
    store.append("a", 5)
    store.commit()
    store = provider.get_list_store(1)
    store.append("a", 6)
    store.append("empty", 7)
    store.remove("b")
    store.append("b", 8)
    store.append("c", 9)
    expected: dict[str, list[object]] = {
        "a": [1, {"x": 2}, 3, 5, 6],
        "b": [8],
        "c": [9],
        "empty": [7],
    }
    assert dict(store.iterator()) == expected
    store.append("a", 10)
    store.commit()
    expected["a"] = [*expected["a"], 10]
    cold = new_provider(lists=True)
    assert dict(cold.get_read_store(2).iterator()) == expected
    warm = dict(provider.get_read_store(2).iterator())
    assert warm == expected
    assert cold.get_read_store(2).metrics.num_keys == 4


def test_set_or_removed_list_loses_its_old_elements(new_provider: NewProvider) -> None:
    provider = new_provider(lists=True)
    store = provider.get_list_store(0)
    for key in ("set", "removed", "gone"):
        store.append(key, "old")
    store.commit()
    store = provider.get_list_store(1)
    for key in ("set", "removed", "gone"):
        store.append(key, "lost")
    store.put("set", ["new"])
    store.append("set", "newer")
    store.remove("removed")
    store.append("removed", "again")
    store.remove("gone")
    store.commit()
    expected = {"set": ["new", "newer"], "removed": ["again"]}
    assert dict(provider.get_read_store(2).iterator()) == expected
    assert dict(new_provider(lists=True).get_read_store(2).iterator()) == expected


def test_many_lists_are_changed_in_one_call(new_provider: NewProvider) -> None:
    provider = new_provider(lists=True)
    store = provider.get_list_store(0)
    store.put_many([("set", [1]), ("gone", [2]), ("kept", []), ("set", [3])])
    store.append("set", 4)
    store.append("kept", 5)
    store.commit()
    store = provider.get_list_store(1)
    for key in ("set", "gone", "kept"):
        store.append(key, 6)
    assert store.get_many(["gone", "set", "none"]) == [[2, 6], [3, 4, 6], None]
    store.put_many([("set", [7])])
    store.append("set", 8)
    store.remove_many(iter(["gone", "none"]))
    store.append("gone", 9)
    store.commit()
    expected = {"gone": [9], "kept": [5, 6], "set": [7, 8]}
    for reader in (provider, new_provider(lists=True)):
        assert dict(reader.get_read_store(2).iterator()) == expected
        assert reader.get_read_store(2).get_many(expected) == list(expected.values())


def test_only_the_new_elements_are_sent(new_provider: NewProvider) -> None:
    provider = new_provider(lists=True)
    store = provider.get_list_store(0)
    store.put("a", [f"{number:032x}" for number in range(10_000)])
    store.commit()
    before = store.metrics.custom["commit_bytes"]
    store = provider.get_list_store(1)
    store.append("a", "x")
    store.commit()
    assert store.metrics.custom["commit_bytes"] - before < 300
    assert len(new_provider(lists=True).get_read_store(2).get("a")) == 10_001


def test_list_has_the_size_limit_of_a_value(new_provider: NewProvider) -> None:
    store = new_provider(lists=True).get_list_store(0)
    for _ in range(2):
        store.append("a", bytes(31 << 20))
    with pytest.raises(LimitError):
        store.append("a", bytes(3 << 20))
    assert len(store.get("a")) == 2


def test_list_and_value_stores_are_not_interchangeable(new_provider: NewProvider) -> None:
    provider = new_provider()
    with pytest.raises(UsageError, match="lists=True"):
        provider.get_list_store(0)
    store = provider.get_store(0)
    store.put("a", 1)
    store.commit()
    with pytest.raises(UsageError, match="another codec"):
        new_provider(lists=True).get_list_store(1)
