"""Python keys as bytes: they come back, and their bytes have the order of the keys."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.codec.ordered_key import decode_key, encode_key, prefix_range
from redis_state.errors import FormatError, UsageError

INTS = st.integers(-(2**63), 2**64 - 1)
SCALARS = st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.binary() | st.text()
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)
ASCENDING: list[Any] = [
    *(None, False, True, -(2**63), -256, -255, -1, 0, 1, 255, 256, 2**64 - 1),
    *(float("-inf"), -1.5, 0.0, 1e-300, 2.5, float("inf"), float("nan")),
    *(b"", b"\0", b"\0\0", b"\0a", b"a", b"a\0", b"\xff", "", "\0", "a", "a\0", "aa", "é"),
    *((), (None,), ("a",), ("a", 1), ("a", "b"), ("a\0", "b"), {}, {"a": 1}),
]
VECTORS: list[tuple[Any, str]] = [
    (None, "01"),
    (0, "14"),
    (1, "1501"),
    (-1, "13fe"),
    (256, "160100"),
    (0.0, "218000000000000000"),
    (-0.0, "218000000000000000"),
    (b"a\0", "286100ff00"),
    ("é", "30c3a900"),
    (("a", 7), "38306100150700"),
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(KEYS)
def test_keys_round_trip(key: Any) -> None:
    assert same(decode_key(encode_key(key)), key)


@given(st.lists(INTS) | st.lists(st.floats(allow_nan=False)) | st.lists(st.text()))
def test_encoded_keys_sort_like_the_keys(keys: list[Any]) -> None:
    assert sorted(keys) == sorted(keys, key=encode_key)
    assert [(k, 1) for k in sorted(keys)] == sorted([(k, 1) for k in keys], key=encode_key)


def test_types_sort_in_the_documented_order() -> None:
    encoded = [encode_key(key) for key in ASCENDING]
    assert encoded == sorted(set(encoded))


@pytest.mark.parametrize(("key", "encoded"), VECTORS)
def test_encoding_of_keys_is_stable(key: Any, encoded: str) -> None:
    assert encode_key(key).hex() == encoded


def test_lists_are_tuples_and_maps_have_no_order() -> None:
    assert encode_key([1, [2]]) == encode_key((1, (2,)))
    assert encode_key({"a": 1, "b": 2}) == encode_key({"b": 2, "a": 1})
    assert decode_key(encode_key({"a": (1,)})) == {"a": (1,)}


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3))), st.text(max_size=3))
def test_element_prefix_covers_its_keys(keys: list[tuple[str, str]], first: str) -> None:
    start, end = prefix_range((first,))
    assert end is not None
    assert [start <= encode_key(key) < end for key in keys] == [key[0] == first for key in keys]


@given(st.lists(st.binary(max_size=4) | st.text(max_size=4)), st.binary(max_size=3))
def test_bytes_prefix_covers_its_keys(keys: list[Any], prefix: bytes) -> None:
    start, end = prefix_range(prefix)
    assert end is not None
    for key in keys:
        inside = start <= encode_key(key) < end
        assert inside == (isinstance(key, bytes) and key.startswith(prefix))


class Money(int):
    pass


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (object(), "object"),
        (Money(3), "Money"),
        (("a", {1, 2}), "set"),
        (2**64, "64 bits"),
        ("\ud800", "surrogate"),
    ],
)
def test_unencodable_key_is_named(key: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        encode_key(key)


def test_endless_nesting_raises_usage() -> None:
    nest: list[Any] = []
    nest.append(nest)
    with pytest.raises(UsageError, match="nested"):
        encode_key(nest)


def test_prefix_of_another_type_raises_usage() -> None:
    with pytest.raises(UsageError, match="int"):
        prefix_range(7)


@given(st.binary(max_size=12))
def test_arbitrary_bytes_decode_or_are_refused(data: bytes) -> None:
    with suppress(FormatError):
        decode_key(data)
