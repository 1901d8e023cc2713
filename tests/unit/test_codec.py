"""Values that the codecs of the Python store accept, return and refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.codec import MSGPACK, RAW
from redis_state.errors import FormatError, UsageError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@dataclass
class Point:
    """As it was written."""

    x: int
    y: int = 0


@dataclass
class PointWithName:
    """The class after a year."""

    x: int
    name: str = "?"
    tags: list[str] = field(default_factory=list)


@dataclass
class Needy:
    """A field without a default, which nobody wrote."""

    z: int


class Pair(NamedTuple):
    """A key of two parts."""

    user: str
    day: int = 1


@given(PLAIN)
def test_values_round_trip(value: Any) -> None:
    assert MSGPACK.decode_value(MSGPACK.encode_value(value)) == value


def test_tuples_decode_as_lists() -> None:
    assert MSGPACK.decode_value(MSGPACK.encode_value((1, (2,)))) == [1, [2]]


def test_tuples_as_keys_of_dicts_stay_tuples() -> None:
    value = [{(1, (2,)): (3, 4), (): {("a",): None}, "b": 5}]
    found = [{(1, (2,)): [3, 4], (): {("a",): None}, "b": 5}]
    assert MSGPACK.decode_value(MSGPACK.encode_value(value)) == found


@pytest.mark.parametrize("value", [date(2024, 1, 1), {1}, object(), 1 << 64, "\ud800", 1j])
def test_other_values_are_refused_by_their_type(value: Any) -> None:
    with pytest.raises(UsageError, match="encoding a value"):
        MSGPACK.encode_value([value])


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="nesting"):
        MSGPACK.encode_value(endless)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\x81\x80\x01"])
def test_malformed_bytes_raise_format(data: bytes) -> None:
    with pytest.raises(FormatError):
        MSGPACK.decode_value(data)


def test_raw_codec_accepts_only_bytes() -> None:
    assert RAW.encode_key(bytearray(b"a")) == RAW.encode_value(memoryview(b"a")) == b"a"
    for wrong in ("a", 1, None, [1]):
        with pytest.raises(UsageError, match="no encoding"):
            RAW.encode_key(wrong)
        with pytest.raises(UsageError, match="no encoding"):
            RAW.encode_value(wrong)


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        (b"", [b"", b"\xff\xff"], []),
        (b"a", [b"a", b"a\xff", b"ab"], [b"", b"b", b"\xff"]),
        (b"a\xff", [b"a\xff", b"a\xff\xff"], [b"a", b"b"]),
        (b"\xff", [b"\xff", b"\xff\xff"], [b"\xfe\xff"]),
    ],
)
def test_prefix_range_covers_exactly_the_prefix(
    prefix: bytes, inside: list[bytes], outside: list[bytes]
) -> None:
    low, high = RAW.prefix_range(prefix)
    for key in inside:
        assert low <= key
        assert high is None or key < high
    for key in outside:
        assert key < low or (high is not None and key >= high)


def test_dataclass_may_gain_and_lose_fields() -> None:
    data = MSGPACK.with_values(Point).encode_value(Point(1, 2))
    assert MSGPACK.with_values(PointWithName).decode_value(data) == PointWithName(1)
    with pytest.raises(FormatError, match="'z'"):
        MSGPACK.with_values(Needy).decode_value(data)
    with pytest.raises(UsageError, match="encoding"):
        MSGPACK.with_values(Point).encode_value(PointWithName(1))


def test_named_tuple_keys_sort_by_their_fields() -> None:
    codec = MSGPACK.with_keys(Pair)
    keys = [Pair("ann", 2), Pair("ann", 10), Pair("bob", 1)]
    encoded = [codec.encode_key(key) for key in keys]
    assert encoded == sorted(encoded)
    assert [codec.decode_key(data) for data in encoded] == keys
    assert codec.decode_key(MSGPACK.encode_key(("cid",))) == Pair("cid", 1)


def test_unsupported_class_is_refused_as_a_codec() -> None:
    with pytest.raises(UsageError, match="neither a dataclass nor a named tuple"):
        MSGPACK.with_values(dict)


def test_list_encodes_as_its_concatenated_elements() -> None:
    codec = MSGPACK.with_lists()
    assert codec.encode_value([]) == b""
    assert codec.encode_value([1, "a"]) == codec.encode_value([1]) + codec.encode_value(["a"])
    assert codec.decode_value(codec.encode_value([1, None, [2]])) == [1, None, [2]]
