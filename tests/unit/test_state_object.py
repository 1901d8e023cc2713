"""State objects: what can be stored, how a class may change, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.codec.state_object import StateObject, state_object
from redis_state.errors import ConfigError, FormatError

UTC = timezone.utc


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    depth: int


@dataclass
class Page:
    url: str
    seen: datetime | None = None


ORIGIN = Point(0)


@dataclass
class Session:
    user: str
    pages: list[Page] = field(default_factory=list)
    by_url: dict[str, Page] = field(default_factory=dict)
    at: Point = ORIGIN
    pair: tuple[int, str] = (0, "")
    many: tuple[Point, ...] = ()
    tags: set[str] = field(default_factory=set)
    last: Page | None = None
    number: int | float = 0
    kind: Literal["a", "b"] = "a"
    options: Options = field(default_factory=Options)
    anything: Any = None
    length: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.length = len(self.pages)


@dataclass(frozen=True)
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


FULL = Session(
    "ann",
    [Page("/a", datetime(2024, 5, 1, 12, tzinfo=UTC))],
    {"/b": Page("/b")},
    Point(3, 4),
    (1, "x"),
    (Point(1), Point(2)),
    {"q", "p"},
    Page("/c"),
    1.5,
    "b",
    {"depth": 3},
    {"free": [1, None, b"\0", True]},
)


@pytest.mark.parametrize("value", [FULL, Session("bob")])
def test_dataclass_round_trips(value: Session) -> None:
    codec = StateObject(Session)
    data = codec.encode(value)
    assert codec.decode(data) == value
    assert codec.decode(data) is not codec.decode(data)
    assert codec.encode(codec.decode(data)) == data


@pytest.mark.parametrize(
    ("cls", "value"),
    [
        (object, {"a": [1, 2.5, None, b"x", "é"], 7: True}),
        (dict, {"a": 1}),
        (dict[str, Point], {"a": Point(1, 2)}),
        (list, [1, 2]),
        (tuple[int, float], (1, 2.0)),
        (tuple, (1, "a")),
        (frozenset[int], frozenset({3, 1})),
        (int, -(2**63)),
        (int, 2**64 - 1),
        (str, ""),
        (Point, Point(1, 2)),
        (datetime, datetime(1969, 1, 1, tzinfo=UTC)),
        (Tree, Tree("a", [Tree("b", [Tree("c")])])),
    ],
)
def test_other_types_round_trip(cls: type[Any], value: object) -> None:
    codec = StateObject(cls)
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)


def test_codec_can_be_pickled() -> None:
    codec = pickle.loads(pickle.dumps(StateObject(Session, version=3)))
    assert codec.decode(codec.encode(FULL)) == FULL


def test_stored_object_is_a_copy() -> None:
    codec = StateObject(Session)
    value = Session("ann")
    data = codec.encode(value)
    value.pages.append(Page("/late"))
    assert codec.decode(data).pages == []


def test_numpy_and_pandas_scalars_become_python_values() -> None:
    codec = StateObject(object)
    stamp = pd.Timestamp("2024-01-01T00:00:00Z")
    given = {"n": np.int64(4), "f": np.float32(0.5), "b": np.bool_(True), "t": stamp}
    expected = {"n": 4, "f": 0.5, "b": True, "t": stamp.to_pydatetime()}
    back = codec.decode(codec.encode(given))
    assert back == expected
    assert {name: type(one) for name, one in back.items()} == {
        "n": int, "f": float, "b": bool, "t": datetime
    }  # fmt: skip
    assert codec.decode(codec.encode({np.int32(2): 1})) == {2: 1}


def test_time_round_trips_as_the_same_instant() -> None:
    there = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    back = StateObject(datetime).decode(StateObject(datetime).encode(there))
    assert back == there
    assert back.utcoffset() == timedelta(0)


def cyclic() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Session("a", anything=Decimal(1)), "Session.anything is a Decimal"),
        (Session("a", anything=[1, object()]), r"Session.anything\[\] is a object"),
        (Session("a", anything={(1, 2): 3}), "a key of Session.anything is a tuple"),
        (Session("a", anything=2**64), "Session.anything is an int of more than 64 bits"),
        (Session("a", anything=datetime(2024, 1, 1)), "Session.anything is a datetime without"),
        (Session("a", anything=cyclic()), "nested more than 64 deep"),
        (Session("a", [Page("/", lambda: 1)]), r"Session.pages\[\].seen is a function"),  # type: ignore[arg-type]  # that is it
    ],
)
def test_unstorable_value_is_named(value: Session, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        StateObject(Session).encode(value)


@pytest.mark.parametrize("value", [None, {"user": "a"}, Page("/"), Session])
def test_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="Give a Session"):
        StateObject(Session).encode(value)


@dataclass
class NotStorable:
    price: Decimal


@dataclass
class Ambiguous:
    either: Page | Point


@pytest.mark.parametrize(
    ("cls", "named"),
    [
        (NotStorable, "NotStorable.price has the type"),
        (Ambiguous, "Ambiguous.either is a union"),
        (Decimal, "Decimal has the type"),
    ],
)
def test_types_that_cannot_be_read_back_are_refused(cls: type[Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        StateObject(cls)


def test_unresolved_type_hints_are_refused() -> None:
    @dataclass
    class Inner:
        a: int

    @dataclass
    class Outer:
        inner: Inner

    with pytest.raises(ConfigError, match="'Inner', which is not found"):
        StateObject(Outer)


@pytest.mark.parametrize("version", [0, -1, 2**32])
def test_a_version_is_a_positive_number(version: int) -> None:
    with pytest.raises(ConfigError):
        StateObject(Page, version=version)


@dataclass
class Old:
    name: str
    total: int


@dataclass
class Grown:
    name: str
    total: int
    mean: float = 0.5


@dataclass
class Renamed:
    title: str
    total: int


@dataclass
class Demanding:
    name: str
    total: int
    more: int


OLD = StateObject(Old).encode(Old("a", 3))


def test_class_may_gain_fields_with_defaults() -> None:
    assert StateObject(Grown).decode(OLD) == Grown("a", 3, 0.5)


def test_new_field_without_a_default_raises() -> None:
    with pytest.raises(FormatError, match="without the field 'more'"):
        StateObject(Demanding).decode(OLD)


def test_older_class_refuses_unknown_fields() -> None:
    new = StateObject(Grown).encode(Grown("a", 1))
    with pytest.raises(FormatError, match="field 'mean', which the class does not have"):
        StateObject(Old).decode(new)
    assert StateObject(Old, version=2).decode(new) == Old("a", 1)


def test_migrate_converts_older_versions() -> None:
    calls: list[int] = []

    def migrate(body: dict[str, Any], version: int) -> dict[str, Any]:
        calls.append(version)
        return {"title": body["name"].upper(), "total": body["total"]}

    codec = StateObject(Renamed, version=3, migrate=migrate)
    assert codec.decode(OLD) == Renamed("A", 3)
    assert calls == [1]
    assert codec.decode(codec.encode(Renamed("b", 1))) == Renamed("b", 1)
    assert calls == [1]


def test_a_newer_version_is_refused() -> None:
    data = StateObject(Old, version=2).encode(Old("a", 1))
    with pytest.raises(FormatError, match="version 2, newer than 1 of Old"):
        StateObject(Old).decode(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x01", b"\x93\x02\x01\x80", b"\x93\x01\x00\x80", b"\x92\x01\x01", OLD + b"x",
     OLD[:-1], b"\x93\x01\xc3\x80"],
)  # fmt: skip
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        StateObject(Old).decode(data)


@pytest.mark.parametrize(
    ("cls", "body"),
    [(Old, 5), (list, {}), (dict, []), (tuple[int, int], [1]), (Session, {"user": "a", "at": 1})],
)
def test_object_of_another_form_is_refused(cls: type[Any], body: Any) -> None:
    data = StateObject(object).encode(body)
    with pytest.raises(FormatError, match="was stored as a"):
        StateObject(cls).decode(data)


def test_class_without_a_version_is_version_1() -> None:
    codec = StateObject(Page, version=2)
    assert state_object(codec) is codec
    assert state_object(Page).version == 1


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=20,
)


@given(PLAIN.filter(lambda value: value is not None))
def test_any_plain_value_round_trips(value: object) -> None:
    codec = StateObject(object)
    assert codec.decode(codec.encode(value)) == value
