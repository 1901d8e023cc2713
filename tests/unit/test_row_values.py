"""Whatever a row or a key takes comes back equal, or it is refused and names its column."""

from __future__ import annotations

import enum
import json
import math
from collections import Counter, OrderedDict, deque, namedtuple
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StructField, StructType

from redis_state.codec.typed_row import TypedKey, TypedRow
from redis_state.errors import UsageError
from redis_state.format.header import Family
from redis_state.rows.typed_rows import typed_row_codec
from redis_state.types.declared import schema_json

UTC = timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
ROW: Any = Row
pytestmark = pytest.mark.usefixtures("new_york")

Pair = namedtuple("Pair", "a b")  # as people write it


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


KINDS = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary",
    "date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(38,38)", "decimal(1,0)",
    "array<int>", "array<double>", "array<string>", "array<timestamp>", "array<decimal(10,2)>",
    "array<array<int>>", "array<date>", "map<string,int>", "map<double,string>",
    "map<timestamp,int>", "map<decimal(10,2),int>", "map<array<int>,string>",
    "map<struct<a: int, b: array<string>>,date>", "map<string,map<string,timestamp>>",
    "struct<a: int, b: string>", "struct<a: timestamp, b: struct<c: decimal(10,2)>>",
    "struct<a: array<map<int,float>>>",
]  # fmt: skip
NAIVE = [
    datetime(2024, 11, 3, 1, 30),
    datetime(2024, 11, 3, 1, 30, fold=1),
    datetime(2024, 7, 1, 12, 0, 0, 5),
    datetime(1883, 11, 18, 12),
    datetime.min,
    datetime.max,
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
]
TIMES: list[Any] = [
    *NAIVE,
    *(one.replace(tzinfo=UTC) for one in NAIVE),
    *(one.replace(tzinfo=NEW_YORK) for one in NAIVE),
    *(one.replace(tzinfo=timezone(timedelta(hours=hours))) for one in NAIVE for hours in (-12, 14)),
    pd.Timestamp("2024-11-03 06:30", tz="UTC"),
    pd.Timestamp("2024-11-03 06:30", tz="UTC").tz_convert("America/New_York"),
    pd.Timestamp("2024-07-01 12:00:00.000001"),
    pd.Timestamp(1, unit="ns"),
    pd.Timestamp(1, unit="ns", tz="UTC"),
    pd.NaT,
    *(np.datetime64("2024-07-01T12", unit) for unit in ("h", "m", "s", "ms", "us", "ns", "ps")),
    *(np.datetime64("2024-07-01", unit) for unit in ("Y", "M", "W", "D")),
    np.datetime64(1, "ns"), np.datetime64(2**62, "s"), np.datetime64(2**62, "us"),
    np.datetime64("NaT", "s"), np.datetime64("NaT", "ns"), np.timedelta64(5, "ns"),
    date(2024, 2, 29), date.min, date.max, time(1), timedelta(1), pd.Timedelta(5),
]  # fmt: skip
SINGLE: list[Any] = [
    None, True, 0, 1, -1, 127, 128, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**70,
    16777217, 10**400, 0.0, -0.0, 1.0, 0.1, 1e300, math.nan, math.inf, "", "a", "1", "é", "\0",
    "\ud800", b"", b"a\0", bytearray(b"a"), memoryview(b"a"), Color.RED, Level.LOW, object(), 1j,
    Decimal("1.5"), Decimal("-0.00"), Decimal("1.005"), Decimal("99999999.995"), Decimal("1E+30"),
    Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("1E-400"), Decimal("1E+999999"),
    np.bool_(True), np.int8(1), np.int64(-5), np.uint64(2**64 - 1), np.float16(0.1),
    np.float32(0.1), np.float64(0.1), np.float64("nan"), np.longdouble(1), np.str_("a\0"),
    np.bytes_(b"a\0"), np.void(b"a"), np.complex64(1), pd.NA, pa.scalar(1),
]  # fmt: skip
SEVERAL: list[Any] = [
    [], [1, 2], (1, None), [1, "2"], ["a", None], {1, 2}, frozenset({1}), {1: 2}, {"a": 1}, {},
    {"a": None}, {None: 1}, {"a": 1, "c": 2}, {"a": 1, "b": "x"}, [("a", 1)], "12", b"12",
    iter([1, 2]), range(3), deque([1]), Counter("a"), OrderedDict(a=1), Pair(1, "x"),
    Row(a=1, b="x"), ROW(1, "x"), Row(b="x", a=1), (1, "x"), [1, "x"],
    {Decimal("1.001"): 1, Decimal("1.002"): 2}, {0.1: "a", math.nan: "b"}, {(1, 2): "a"},
    {Row(a=1, b=("x",)): date(2024, 1, 1)}, {"a": {"b": NAIVE[1]}},
    {one.replace(tzinfo=UTC): 1 for one in NAIVE[2:3]},
    np.array(5), np.array([1]), np.array([1, 2]), np.array([[1], [2]]), np.array([0.5, math.nan]),
    np.array(["a"]), np.array(["2024-07-01T12"], "datetime64[ns]"),
    np.array(["2024-07-01"], "datetime64[D]"), np.ma.masked_array([1, 2], mask=np.bool_(True)),
    pd.Series([1, 2]), pd.Series(["a", None]), pd.Series([1, None], dtype="Int64"),
    pd.Series([pd.Timestamp("2024-07-01")]), pd.Index([1]), pd.Categorical(["a"]),
    pd.DataFrame({"a": [1]}), pa.array([1, None]), pa.array([Decimal("1.00")]),
    (NAIVE[0], (Decimal("1.005"),)), {"a": NAIVE[1], "b": {"c": Decimal("-0.001")}},
    ([{1: 0.5}, None],),
]  # fmt: skip
VALUES = [*SINGLE, *TIMES, *SEVERAL]


def _wanted(kind: str, value: Any) -> Any:
    """Value that an accepted value reads back as: itself, rounded as Spark rounds."""
    if value is None:
        return None
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").partition(",")[2])
        with localcontext() as context:
            context.prec = 100
            return Decimal(int(value) if isinstance(value, np.integer) else value).quantize(
                Decimal((0, (1,), -scale)), rounding="ROUND_HALF_UP"
            )
    if kind == "float":
        return float(np.float32(value))
    if kind in ("timestamp", "timestamp_ntz") and isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    if kind == "date" and isinstance(value, np.datetime64):
        return value.astype("datetime64[D]").item()
    if isinstance(value, np.str_):
        return str.__str__(value)
    return value


def _moment(value: datetime) -> datetime:
    plain = value.to_pydatetime() if isinstance(value, pd.Timestamp) else value
    return plain.astimezone(UTC)


def agree(kind: str, given_: Any, found: Any) -> bool:
    wanted = _wanted(kind, given_)
    if wanted is None or found is None:
        return wanted is found
    if kind == "timestamp":
        return _moment(wanted) == _moment(found)
    if wanted != wanted and found != found:
        return True
    if kind.startswith("decimal"):
        return bool(wanted == found) and not (found == 0 and found.is_signed())
    return bool(wanted == found) and str(wanted).startswith("-") is str(found).startswith("-")


PLAIN = [kind for kind in KINDS if "<" not in kind]


@pytest.mark.parametrize("kind", PLAIN)
def test_single_value_round_trips_or_is_refused(kind: str) -> None:
    row = TypedRow(schema_json(f"c {kind}"))
    taken = 0
    for value in VALUES:
        try:
            data = row.encode((value,))
        except UsageError as error:
            named = "'c'" in str(error) or "surrogate" in str(error)
            assert named, error  # noqa: PT017  # most are taken
            continue
        (found,) = row.decode(data)
        assert agree(kind, value, found), (value, found)
        assert row.encode((found,)) == data
        taken += 1
    assert taken > 2


def _items_agree(kind: str, given_: Any, found: Any) -> bool:
    items = given_.to_pylist() if isinstance(given_, pa.Array) else list(given_)
    return len(items) == len(found) and all(map(agree, [kind] * len(items), items, found))


@pytest.mark.parametrize("kind", PLAIN)
def test_array_of_values_round_trips_or_is_refused(kind: str) -> None:
    row = TypedRow(schema_json(f"c array<{kind}>"))
    for value in [*SEVERAL, *([one, None] for one in [*SINGLE, *TIMES])]:
        try:
            data = row.encode((value,))
        except UsageError:
            continue
        (found,) = row.decode(data)
        assert _items_agree(kind, value, found), (value, found)
        assert row.encode((found,)) == data


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(
    value=st.recursive(
        st.sampled_from(VALUES),
        lambda inner: st.lists(inner, max_size=2) | st.tuples(inner, inner),
        max_leaves=3,
    )
)
def test_accepted_value_encodes_to_the_same_bytes_again(kind: str, value: Any) -> None:
    row, key = TypedRow(schema_json(f"c {kind}")), TypedKey(schema_json(f"c {kind}"))
    try:
        data = row.encode((value,))
    except UsageError:
        return
    found = row.decode(data)
    assert row.encode(found) == data
    if value is None or "double" in kind or "float" in kind:
        return
    encoded = key.encode((value,))
    assert key.encode(key.decode(encoded)) == encoded


@pytest.mark.parametrize("fold", [0, 1])
def test_repeated_hour_round_trips(fold: int) -> None:
    at = datetime(2024, 11, 3, 1, 30, 0, 7, fold=fold)
    moment = datetime(2024, 11, 3, 5 + fold, 30, 0, 7, tzinfo=UTC)
    for kind, value in {
        "timestamp": at,
        "array<timestamp>": [at],
        "map<timestamp,timestamp>": {at: at},
        "struct<t: timestamp>": (at,),
    }.items():
        row, key = TypedRow(schema_json(f"c {kind}")), TypedKey(schema_json(f"c {kind}"))
        (found,) = row.decode(row.encode((value,)))
        (again,) = key.decode(key.encode((value,)))
        for one in (found, again):
            while not isinstance(one, datetime):
                one = next(iter(one))
            assert (one, one.fold) == (at, fold)
            assert one.astimezone(UTC) == moment
        assert row.encode((found,)) == row.encode((value,))
        assert key.encode((again,)) == key.encode((value,))


def test_unrepresentable_time_is_refused() -> None:
    row = TypedRow(schema_json("c timestamp"))
    for value in (datetime.min.replace(tzinfo=UTC), datetime.max, datetime.max.replace(tzinfo=UTC)):
        try:
            data = row.encode((value,))
        except UsageError as error:
            assert "outside the years 1 to 9999" in str(error)  # noqa: PT017  # some are taken
            continue
        assert agree("timestamp", value, row.decode(data)[0])
    in_utc = TypedRow(schema_json("c timestamp"), zone=UTC)
    for value in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert in_utc.decode(in_utc.encode((value,))) == (value,)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("decimal(10,2)", "1.005", "1.01"),
        ("decimal(10,2)", "-1.005", "-1.01"),
        ("decimal(10,2)", "2.345", "2.35"),
        ("decimal(10,2)", "-0.00", "0.00"),
        ("decimal(10,2)", "-0.004", "0.00"),
        ("decimal(10,2)", "99999999.994", "99999999.99"),
        ("decimal(1,0)", "0.5", "1"),
        ("decimal(1,0)", "-9.4", "-9"),
    ],
)
def test_decimals_are_rounded_as_by_spark_wherever_they_stand(
    kind: str, value: str, text: str
) -> None:
    number, wanted = Decimal(value), Decimal(text)
    shapes: dict[str, tuple[Any, Any]] = {
        kind: (number, wanted),
        f"array<{kind}>": ([number], [wanted]),
        f"map<{kind},{kind}>": ({number: number}, {wanted: wanted}),
        f"struct<d: {kind}>": ((number,), (wanted,)),
    }
    with localcontext() as context:
        context.prec = 3
        for shape, (given_, expected) in shapes.items():
            row, key = TypedRow(schema_json(f"c {shape}")), TypedKey(schema_json(f"c {shape}"))
            assert str(row.decode(row.encode((given_,)))) == str((expected,))
            assert str(key.decode(key.encode((given_,)))) == str((expected,))
            assert key.encode((given_,)) == key.encode((expected,))


def test_equal_maps_are_one_key() -> None:
    key = TypedKey(schema_json("c map<string,int>"))
    assert key.encode(({"a": 1, "b": 2},)) == key.encode(({"b": 2, "a": 1},))


@pytest.mark.parametrize("kind", ["tinyint", "int", "bigint"])
def test_a_key_stays_within_its_type(kind: str) -> None:
    key = TypedKey(schema_json(f"c {kind}"))
    for value in (2**63, -(2**63) - 1, np.uint64(2**63)):
        with pytest.raises(UsageError, match=r"column 'c' is .* out of its range"):
            key.encode((value,))


NOT_NULL = {
    "type": "struct",
    "fields": [
        {
            "name": "c",
            "nullable": True,
            "type": {
                "type": "struct",
                "fields": [
                    {"name": "a", "type": "integer", "nullable": False},
                    {
                        "name": "l",
                        "nullable": True,
                        "type": {"type": "array", "elementType": "long", "containsNull": False},
                    },
                ],
            },
        }
    ],
}


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        ("array<int>", [1, "2"], r"column 'c' is array, and c\[\] is integer: the value of type"),
        ("map<string,int>", {1: 1}, r"c\{key\} is string: the value of type int does not fit"),
        ("map<string,array<int>>", {"a": ["x"]}, r"c\{value\}\[\] is integer: the value of type"),
        ("struct<a: int, b: string>", (1, 2), r"c\.b is string: the value of type int"),
        ("struct<a: int, b: string>", {"a": 1, "c": 2}, "a field that the struct does not have"),
        ("map<decimal(5,2),int>", {Decimal("1.001"): 1, Decimal("1"): 2}, "two of its keys"),
        ("timestamp", pd.Timestamp(1, unit="ns"), "finer than a microsecond"),
        ("double", 2**53 + 1, "more digits than the type"),
        ("bigint", np.datetime64(5, "ns"), r"the value of type numpy\.datetime64 does not fit"),
        ("array<int>", {1, 2}, "the value of type set does not fit"),
        ("array<int>", iter([1]), "the value of type list_iterator does not fit"),
    ],
)  # fmt: skip
def test_the_part_that_does_not_fit_is_named(kind: str, value: Any, named: str) -> None:
    for rule in (TypedRow(schema_json(f"c {kind}")), TypedKey(schema_json(f"c {kind}"))):
        with pytest.raises(UsageError, match=named):
            rule.encode((value,))


def test_null_is_refused_where_it_is_forbidden_inside() -> None:
    class Struct:
        def json(self) -> str:
            import json

            return json.dumps(NOT_NULL)

    row = TypedRow(schema_json(Struct()))
    assert row.decode(row.encode(((1, [2]),))) == ((1, [2]),)
    for value, place in (((None, [2]), r"c\.a"), ((1, [None]), r"c\.l\[\]")):
        with pytest.raises(UsageError, match=f"{place} is .* NOT NULL"):
            row.encode((value,))


@pytest.mark.parametrize(
    "row", [{1, 2}, pd.DataFrame({"a": [1, 2], "b": [3, 4]}), bytearray(b"ab")]
)
def test_unordered_value_is_not_accepted_as_a_row(row: Any) -> None:
    with pytest.raises(UsageError, match="not a tuple"):
        TypedRow(schema_json("a int, b int")).encode(row)
    with pytest.raises(UsageError, match="not a tuple"):
        TypedKey(schema_json("a int, b int")).encode(row)


def test_live_read_names_structs_inside_map_keys() -> None:
    schema = schema_json("m map<array<struct<a: int>>, struct<b: array<int>>>")
    described = json.dumps({"key": json.loads(schema_json("k string"))})
    values = json.dumps({"now": 0, "written": [schema]})
    codec = typed_row_codec(Family(1, "v", "none", (), described, values))
    (found,) = codec.value_row(TypedRow(schema).encode(({((1,), (2,)): ([3],)},)))
    ((key, value),) = found.items()
    assert [one["a"] for one in key] == [1, 2]
    assert value["b"] == [3]


def test_comment_of_a_nested_column_may_change() -> None:
    def schema(inner: StructField) -> str:
        return schema_json(StructType([StructField("s", StructType([inner]))]))

    older = schema(StructField("a", IntegerType(), metadata={"comment": "old"}))
    now = schema(StructField("a", IntegerType()))
    assert older != now
    data = TypedRow(older).encode(((1,),))
    assert TypedRow(now, [older]).decode(data) == ((1,),)
    with pytest.raises(UsageError, match="was struct and is struct now"):
        TypedRow(schema(StructField("a", IntegerType(), nullable=False)), [older])
