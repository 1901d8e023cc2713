"""Whatever a state object takes comes back equal, or it is refused and names the part."""

from __future__ import annotations

import enum
import math
import pickle
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NewType, TypedDict
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_state.codec.state_object import StateObject
from redis_state.errors import ConfigError, FormatError

UTC = timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
FAR = timezone(timedelta(hours=14))
Visits = NewType("Visits", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int | None = None


class Options(TypedDict, total=False):
    depth: int
    at: Point


@dataclass(frozen=True)
class Page:
    url: str
    score: float = 0.0


@dataclass(frozen=True)
class Longer(Page):
    more: int = 0


@dataclass
class Session:
    visits: int = 0
    tags: list[str] = None  # type: ignore[assignment]  # as it is often written
    page: Page = None  # type: ignore[assignment]  # the same
    pages: dict[str, Page] = field(default_factory=dict)


@dataclass
class Counted:
    """Class with fields that its constructor does not accept."""

    names: list[str]
    count: int = field(init=False, default=0)
    cache: dict[str, int] = field(init=False, default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.count = len(self.names)


@dataclass
class Clamped:
    part: float

    def __post_init__(self) -> None:
        self.part = min(self.part, 1.0)


@dataclass
class Checked:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("never mind")


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)
    color: Color | None = None


TIMES = [
    datetime(2024, 5, 1, 12, tzinfo=UTC),
    datetime(2024, 5, 1, 12, 30, 0, 5, tzinfo=NEW_YORK),
    datetime(2024, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=1),
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    datetime.min.replace(tzinfo=FAR),
    datetime.max.replace(tzinfo=FAR),
    datetime(2024, 5, 1),
    pd.Timestamp("2024-01-01T00:00:00Z"),
    pd.Timestamp(1, unit="ns", tz="UTC"),
    pd.Timestamp("2024-01-01"),
    pd.NaT,
    *(np.datetime64("2024-01-01", unit) for unit in ("Y", "D", "s", "us", "ns")),
    np.datetime64("NaT", "s"),
    np.timedelta64(5, "ns"),
    np.timedelta64(5, "s"),
    date(2024, 1, 1),
    timedelta(seconds=1),
]
SCALARS = [
    None, True, False, 0, 1, -1, 2**53 + 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 2**200,
    0.0, -0.0, 1.0, 0.1, math.nan, math.inf, 1e308, "", "s", "1", "\0", "é", "\ud800", "red",
    b"", b"s", b"\0", bytearray(b"s"), memoryview(b"s"), Decimal("1.5"), Decimal("NaN"), 1j,
    Color.RED, Level.HIGH, pd.NA, object(), int, len, range(3),
    np.int8(1), np.int64(5), np.uint64(2**64 - 1), np.float16(0.5), np.float32(0.1),
    np.float64(0.1), np.float64("nan"), np.longdouble(1), np.bool_(True), np.str_("s\0"),
    np.bytes_(b"s"), np.complex128(1), np.void(b"ab"), pa.scalar(5),
    np.array(5), np.array([1]), np.array([1, 2]), np.array(["a"]), np.array([]),
    pd.Series([1]), pd.Series([1, 2]), pd.Series(["a"]), pd.Index([1]), pd.DataFrame({"a": [1]}),
    pd.Timedelta(5), pd.Period("2024"), pd.Categorical(["a"]), pa.array([1]),
]  # fmt: skip
# Without their types, which the values below break.
POINT: Any = Point
PAGE: Any = Page
SESSION: Any = Session
TREE: Any = Tree
RECORDS = [
    POINT(1), POINT(1, 2), POINT("a"), PAGE("u"), PAGE("u", 1), PAGE(None), PAGE(5), Longer("u"),
    SESSION(1), SESSION(1, ["a"]), SESSION(1, "text"), SESSION("s"), SESSION(1, [1]),
    SESSION(1, ("a",)), SESSION(1, ["a"], PAGE("u"), {"k": PAGE("v")}), SESSION(1, [], 5),
    SESSION(pages={"k": 1}), SESSION(pages={1: PAGE("u")}), SESSION(np.int64(3), [np.str_("a")]),
    Counted(["a", "b"]), Clamped(0.5), Checked(1, 2), TREE("a", [TREE("b", color=Color.RED)]),
    TREE("a", [PAGE("u")]), TREE("a", color="red"),
]  # fmt: skip
LEAVES = st.sampled_from([*SCALARS, *TIMES, *RECORDS])


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner.filter(_hashable), max_size=3).map(set)
        | st.dictionaries(inner.filter(_hashable), inner, max_size=2)
        | st.builds(Point, inner, inner)
        | st.builds(Session, inner, inner, inner, inner)
        | st.builds(Tree, inner, st.lists(inner, max_size=2))
    ),
    max_leaves=6,
)
HINTS: list[Any] = [
    object, bool, int, float, str, bytes, datetime, Visits, Color, Level, Point, Page, Session,
    Counted, Clamped, Checked, Tree, Options, list, dict, tuple, set, frozenset, list[int],
    list[Any], list[Page], list[float | None], dict[str, Page], dict[int, list[str]],
    dict[Color, int], dict[datetime, Point], dict[tuple[int, int], int], dict[str, Any],
    tuple[int, str], tuple[Page, ...], tuple[()], tuple[float, Point | None], set[int],
    frozenset[Point], int | str, int | datetime | None, Page | None, Literal["red", 1],
    Literal["s"] | None, Color | None, list[list[Color]], dict[str, dict[str, tuple[int, ...]]],
]  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    """Equal and of the same kinds of containers; not-a-number is equal to itself."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        # Two hours of one name are equal to nothing in another zone.
        return one.astimezone(UTC) == other.astimezone(UTC)
    if isinstance(one, (list, tuple, dict, set, frozenset)):
        if not isinstance(
            other, (set, frozenset) if isinstance(one, (set, frozenset)) else type(one)
        ):
            return False
        if isinstance(one, dict) and isinstance(other, dict):
            return len(one) == len(other) and all(
                equal(mine, again) and equal(one[mine], other[again])
                for mine, again in zip(one, other, strict=True)
            )
        if isinstance(one, (set, frozenset)):
            return len(one) == len(other) and all(any(equal(a, b) for b in other) for a in one)
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(type(one), "__dataclass_fields__"):
        return type(one) is type(other) and equal(vars(one), vars(other))
    return bool(one == other) or (one != one and other != other)


def check(hint: Any, value: Any) -> None:
    codec = StateObject(hint)
    try:
        data = codec.encode(value)
    except ConfigError:
        return
    assert equal(value, codec.decode(data))


# What Hypothesis thinks of the length of a value is not what is tested.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("hint", HINTS, ids=str)
@settings(max_examples=40)
@given(value=VALUES)
def test_a_value_comes_back_equal_or_is_refused(hint: Any, value: Any) -> None:
    check(hint, value)


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_single_values_come_back_equal_or_are_refused(hint: Any) -> None:
    for value in [*SCALARS, *TIMES, *RECORDS]:
        check(hint, value)
        check(list[hint], [value])
        check(dict[str, hint], {"a": value})


TAKEN: list[tuple[Any, Any]] = [
    (Session, Session(1)),
    (Session, Session(1, ["a"], Page("u", 2), {"k": Page("v")})),
    (Tree, Tree("a", [Tree("b", [], Color.BLUE)])),
    (Counted, Counted(["a"])),
    (Color, Color.RED),
    (dict[Color, Level], {Color.RED: Level.HIGH}),
    (Options, {"depth": 1, "at": Point(1, 2), "other": [1]}),
    (Visits, 5),
    (tuple[()], ()),
    (tuple[float, Point | None], (1, None)),
    (float, 5),
    (Literal["red", 1], 1),
    (int | datetime | None, datetime.max.replace(tzinfo=UTC)),
    (datetime, pd.Timestamp("2024-01-01T00:00:00Z")),
    (list[float], [np.float32(0.5), np.int8(3)]),
]


@pytest.mark.parametrize(("hint", "value"), TAKEN, ids=str)
def test_fitting_value_round_trips(hint: Any, value: Any) -> None:
    codec = StateObject(hint)
    back = codec.decode(codec.encode(value))
    assert equal(value, back)
    assert codec.encode(back) == codec.encode(value)


@pytest.mark.parametrize(
    ("hint", "value", "named"),
    [
        (Session, SESSION(1, "text"), r"Session\.tags is a str, not list\[str\]"),
        (Session, SESSION("s"), r"Session\.visits is a str, not int"),
        (Session, SESSION(1, ["a", None]), r"Session\.tags\[\] is a NoneType, not str"),
        (Session, SESSION(pages={"k": 1}), r"Session\.pages\[\] is a int, not Page"),
        (Session, SESSION(pages={1: PAGE("")}), r"a key of Session\.pages is a int, not str"),
        (Session, SESSION(1, ["\ud800"]), r"Session\.tags\[\] is a str with half of a surrogate"),
        (Session, SESSION(2**64), r"Session\.visits is an int of more than 64 bits"),
        (dict[str, int], {"\ud800": 1}, r"a key of .* is a str with half"),
        (list[Page], [Longer("u")], r"\[\] is a .*Longer, not Page"),
        (tuple[int, str], (1,), r"a tuple of 1, not tuple\[int, str\]"),
        (tuple[int, str], Point(1, 2), "a Point was given"),
        (list[datetime], [datetime(2024, 1, 1)], r"\[\] is a datetime without a time zone"),
        (list[datetime], [datetime.min.replace(tzinfo=FAR)], "outside the years 1 to 9999"),
        (list[datetime], [pd.NaT], r"is a pandas\.NaTType, not datetime"),
        (list[datetime], [np.datetime64(1, "ns")], "datetime64, which has no time zone"),
        (list[datetime], [pd.Timestamp(1, unit="ns", tz="UTC")], "finer than a microsecond"),
        (dict, {"a": (1, 2)}, r"\[\] is a tuple where no type is declared"),
        (dict, {"a": PAGE("u")}, r"\[\] is a .*Page where no type is declared"),
        (dict, {"a": np.array([1])}, r"\[\] is a numpy\.ndarray"),
        (dict, {"a": pd.Series([1])}, r"\[\] is a pandas\.Series"),
        (object, (1, 2), r"object is a tuple where no type is declared\. Declare its type"),
        (object, 1j, "object is a complex"),
        (Literal["red", 1], 2, "is not one of 'red', 1"),
        (list[Color], ["red"], r"\[\] is a str, not Color"),
    ],
    ids=str,
)
def test_unfitting_value_is_refused_and_named(hint: Any, value: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        StateObject(hint).encode(value)


def test_fields_changed_by_the_class_are_checked() -> None:
    counted = Counted(["a"])
    counted.cache["x"] = 1
    assert StateObject(Counted).decode(StateObject(Counted).encode(counted)) == counted
    counted.count = 7
    with pytest.raises(ConfigError, match=r"Counted\.count would come back as another value"):
        StateObject(Counted).encode(counted)
    clamped = Clamped(0.5)
    clamped.part = 2.0
    with pytest.raises(ConfigError, match=r"list\[\]\.part would come back as"):
        StateObject(list[Clamped]).encode([clamped])
    checked = Checked(1, 2)
    checked.high = 0
    with pytest.raises(ConfigError, match="ValueError is raised when it is made from its fields"):
        StateObject(Checked).encode(checked)
    with pytest.raises(ConfigError, match=r"Checked\.low has no value"):
        StateObject(Checked).encode(Checked.__new__(Checked))


class Mixed(enum.Enum):
    PAIR = (1, 2)


@pytest.mark.parametrize("hint", [Mixed, Literal[Mixed.PAIR], date, Decimal, Page | Point, complex])
def test_types_that_do_not_round_trip_are_refused_at_once(hint: Any) -> None:
    with pytest.raises(ConfigError, match="preparing a state object"):
        StateObject(hint)


@pytest.mark.parametrize(
    ("hint", "stored", "named"),
    [
        (Session, {"visits": 1, "tags": "text"}, r"Session\.tags was stored as a str, not as a"),
        (Session, {"pages": {"k": 1}}, r"Session\.pages\[\] was stored as a int, not as a map"),
        (list[tuple[int, int]], [[1]], r"\[\] was stored as a list, not as a list of 2"),
        (Tree, {"name": "a", "color": "green"}, r"color was stored as a value that Color does not"),
    ],
)
def test_value_stored_in_another_form_is_named(hint: Any, stored: Any, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        StateObject(hint).decode(StateObject(object).encode(stored))


def test_value_of_an_older_release_is_read() -> None:
    """Earlier releases checked no scalar, and wrote None for fields whose default is None."""
    stored = StateObject(object).encode({"visits": "s", "tags": None, "page": None})
    found = StateObject(Session).decode(stored)
    assert found == SESSION("s")


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_pickled_codec_encodes_the_same(hint: Any) -> None:
    here, there = StateObject(hint), pickle.loads(pickle.dumps(StateObject(hint)))
    for value in [*SCALARS, *TIMES, *RECORDS]:
        found = []
        for codec in (here, there):
            try:
                found.append(codec.encode(value))
            except ConfigError as error:
                found.append(str(error))
        assert found[0] == found[1]
