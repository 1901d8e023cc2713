"""The contract of the Python store, over the model in plain dictionaries and over Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redis_state.errors import ConflictError, Kind, StateError, UsageError

NewProvider = Callable[..., Any]


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


def test_uncommitted_changes_are_visible_to_their_store_only(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    store.put("a", 1)
    store.put("b", 2)
    store.remove("a")
    assert (store.get("a"), store.get("b")) == (None, 2)
    assert list(store.iterator()) == [("b", 2)]
    assert list(new_provider(run="reader").get_read_store(0).iterator()) == []
    assert provider.latest() in (None, 0)


def test_iterators_ignore_later_changes(new_provider: NewProvider) -> None:
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


def test_finished_store_refuses_changes(new_provider: NewProvider) -> None:
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


def test_returned_values_are_copies(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    given = [1, 2]
    store.put("a", given)
    given.append(3)
    store.get("a").append(4)
    assert store.get("a") == [1, 2]


def test_unknown_name_raises_state_lost(new_provider: NewProvider) -> None:
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


def test_last_of_two_attempts_of_a_run_counts(new_provider: NewProvider) -> None:
    provider = new_provider()
    one, other = provider.get_store(0), new_provider().get_store(0)
    one.put("a", 1)
    other.put("a", 2)
    assert (one.commit(), other.commit()) == (1, 1)
    assert new_provider().get_read_store(1).get("a") == 2
    late = provider.get_store(0)
    late.put("a", 3)
    new_provider().get_store(1)
    with pytest.raises(ConflictError):
        late.commit()
    assert new_provider().get_read_store(1).get("a") == 2


def test_rerun_batch_gets_the_same_version(new_provider: NewProvider) -> None:
    for _ in range(3):
        provider = new_provider()
        store = provider.get_store(0)
        store.put("a", (store.get("a") or 0) + 1)
        assert store.commit() == 1
    assert provider.get_store(1).get("a") == 1
    assert provider.latest() == 1


def test_new_run_at_version_0_starts_empty(new_provider: NewProvider) -> None:
    store = new_provider(run="first").get_store(0)
    store.put("a", 1)
    store.commit()
    anew = new_provider(run="second").get_store(0)
    assert list(anew.iterator()) == []
    assert new_provider().get_read_store(1).get("a") == 1, "nothing was changed yet"
    anew.put("b", 2)
    with pytest.raises(StateError):
        new_provider().get_read_store(1)
    anew.commit()
    assert dict(new_provider().get_read_store(1).iterator()) == {"b": 2}


def test_commit_without_changes_makes_a_version(new_provider: NewProvider) -> None:
    provider = new_provider()
    for version in range(3):
        assert provider.get_store(version).commit() == version + 1
    store = provider.get_store(3)
    store.put("a", None)
    store.commit()
    assert dict(new_provider().get_read_store(4).iterator()) == {"a": None}
    assert list(new_provider().get_read_store(3).iterator()) == []
