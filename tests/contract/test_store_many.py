"""Calls for many keys say and do what as many single calls would, over the model and over Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state.codec import MSGPACK, RAW
from redis_state.errors import ConflictError, UsageError

ROWS = 1_000

NewProvider = Callable[..., Any]


def test_get_many_returns_values_in_key_order(new_provider: NewProvider) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    store.put_many((("n", number), number) for number in range(ROWS))
    store.commit()
    store = provider.get_store(1)
    store.put_many([(("n", 1), "changed"), (("n", ROWS), "new"), ("b", [1, 2])])
    store.remove_many([("n", 2), "never there"])
    keys = [("n", 3), "never there", ("n", 2), ("n", 1), ("n", 1), "b", ("n", ROWS), ("n", 0)]
    assert store.get_many(keys) == [3, None, None, "changed", "changed", [1, 2], "new", 0]
    assert store.get_many(iter(keys)) == [store.get(key) for key in keys]
    assert store.get_many([]) == []
    store.commit()
    assert store.metrics.num_keys == ROWS + 1
    for reader in (provider, new_provider(run="run-2")):
        again = reader.get_read_store(2)
        assert again.get_many(tuple(keys)) == [
            3,
            None,
            None,
            "changed",
            "changed",
            [1, 2],
            "new",
            0,
        ]


def test_later_pair_of_a_duplicate_key_counts(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    store.put_many([("a", 1), ("b", 2), ("a", 3)])
    store.put_many({"ab": 4, "b": 5})
    assert dict(store.iterator()) == {"a": 3, "ab": 4, "b": 5}
    store.remove_many(["a", "a", "ab"])
    assert store.get_many("ab") == [None, 5]


def test_put_many_of_two_columns_equals_pairs(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    store.put_many(["a", "b", "a"], iter([1, 2, 3]))
    store.put_many({"c": None, "b": None}, (4, 5))
    store.put_many([], [])
    assert dict(store.iterator()) == {"a": 3, "b": 5, "c": 4}


@pytest.mark.parametrize("codec", [MSGPACK, RAW])
def test_invalid_columns_are_refused(new_provider: NewProvider, codec: Any) -> None:
    store = new_provider(codec=codec).get_store(0)
    with pytest.raises(UsageError):
        store.put_many([b"a", b"b"], [b"1"])
    with pytest.raises(UsageError):
        store.put_many([b"a"], [])
    with pytest.raises(UsageError, match="encoding a value"):
        store.put_many([b"a", b"b"], [b"1", object()])
    with pytest.raises(UsageError, match="encoding a key"):
        store.put_many([b"a", object()], [b"1", b"2"])
    assert list(store.iterator()) == []


def test_reused_key_list_is_encoded_again_after_a_change(
    new_provider: NewProvider,
) -> None:
    store = new_provider().get_store(0)
    # Equal, and of one hash, but not the same key.
    store.put_many([1, 2], ["one", "two"])
    assert store.get_many([1, 2]) == ["one", "two"]
    assert store.get_many([1.0, True]) == [None, None]
    names = ["a", "b"]
    assert store.get_many(names) == [None, None]
    names[1] = "c"
    store.put_many(names, [1, 3])
    assert store.get_many(["a", "b", "c"]) == [1, None, 3]
    changing = ["x"]
    keys = [changing, "y"]
    assert store.get_many(keys) == [None, None]
    changing.append("z")
    store.put_many(keys, [4, 5])
    assert store.get_many([["x"], ["x", "z"], "y"]) == [None, 4, 5]


def test_raw_codec_accepts_any_bytes_like_object(new_provider: NewProvider) -> None:
    store = new_provider(codec=RAW).get_store(0)
    store.put_many([(b"a", b"1"), (bytearray(b"b"), memoryview(b"2")), (b"a", b"3")])
    found = store.get_many([b"a", bytearray(b"b"), b"c"])
    assert found == [b"3", b"2", None]
    assert {type(value) for value in found} == {bytes, type(None)}


def test_empty_calls_do_nothing(new_provider: NewProvider) -> None:
    provider = new_provider(run="old")
    provider.get_store(0).commit()
    new_provider(run="new").get_store(1).commit()
    store = provider.get_store(1)
    store.put_many([])
    store.remove_many(())
    with pytest.raises(ConflictError):
        store.put_many([("a", 1)])


@pytest.mark.parametrize(("codec", "good"), [(MSGPACK, "good"), (RAW, b"good")])
def test_one_invalid_row_refuses_the_whole_call(
    new_provider: NewProvider, codec: Any, good: Any
) -> None:
    provider = new_provider(codec=codec)
    store = provider.get_store(0)
    store.put(good, good)
    before = dict(store.iterator())
    with pytest.raises(UsageError, match="encoding a value"):
        store.put_many([(good + good, good), (good, good + good), (good, object())])
    with pytest.raises(UsageError, match="encoding a key"):
        store.put_many([(good + good, good), (object(), good)])
    with pytest.raises(UsageError, match="encoding a key"):
        store.remove_many([good, object()])
    with pytest.raises(UsageError, match="encoding a key"):
        store.get_many([good, object()])
    assert dict(store.iterator()) == before
    assert store.commit() == 1
    assert dict(provider.get_store(1).iterator()) == before


def test_pairs_from_a_failing_iterator_are_not_put(new_provider: NewProvider) -> None:
    def pairs() -> Iterator[tuple[str, int]]:
        yield "a", 1
        raise ValueError("no luck")

    store = new_provider().get_store(0)
    with pytest.raises(ValueError, match="no luck"):
        store.put_many(pairs())
    assert list(store.iterator()) == []


def test_finished_store_refuses_many(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    store.put_many([("a", 1)])
    store.commit()
    with pytest.raises(UsageError, match="committed"):
        store.put_many([("a", 2)])
    with pytest.raises(UsageError, match="committed"):
        store.remove_many(["a"])
    assert store.get_many(["a"]) == [1]


def test_returned_values_are_copies(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    given = [1]
    store.put_many([("a", given)])
    given.append(2)
    store.get_many(["a"])[0].append(3)
    assert store.get_many(["a", "a"]) == [[1], [1]]


def test_rewriting_every_key_keeps_the_key_count(new_provider: NewProvider) -> None:
    keys = [("n", number * 7919 % ROWS) for number in range(ROWS)]
    provider = new_provider()
    for version in range(4):
        store = provider.get_store(version)
        store.put_many((key, [version, key[1]]) for key in keys)
        assert store.commit() == version + 1
        assert store.metrics.num_keys == ROWS
    for version in range(1, 5):
        expected = [(("n", number), [version - 1, number]) for number in range(ROWS)]
        for reader in (provider, new_provider(run=f"run-{version + 1}")):
            assert list(reader.get_read_store(version).iterator()) == expected
    # A process that has read it all goes on from there, in the order of the blocks.
    provider = new_provider(run="run-9")
    for version in (4, 5):
        store = provider.get_store(version)
        assert store.get_many(keys) == [[version - 1, key[1]] for key in keys]
        store.put_many((key, [version, key[1]]) for key in keys)
        store.commit()
    assert list(new_provider().get_read_store(6).iterator()) == [
        (("n", number), [5, number]) for number in range(ROWS)
    ]


@pytest.mark.parametrize("other", ["new", "removed", "again"])
def test_row_count_equal_to_key_count_is_not_taken_for_all_keys(
    new_provider: NewProvider, other: str
) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    store.put_many({"a": 1, "b": 2, "c": 3})
    store.remove("c")
    store.commit()
    store = provider.get_store(1)
    store.put("a", 10)
    expected = {"a": 10, "b": 2}
    if other == "new":
        store.put("d", 40)
        expected["d"] = 40
    elif other == "removed":
        store.remove("b")
        del expected["b"]
    else:
        store.put("c", 30)
        expected["c"] = 30
    store.commit()
    assert store.metrics.num_keys == len(expected)
    for reader in (provider, new_provider(run="run-2")):
        assert dict(reader.get_read_store(2).iterator()) == expected
