"""Rows and keys of a Spark schema: they come back, schemas change, misfits are named."""

from __future__ import annotations

import math
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgpack  # type: ignore[import-untyped]  # the package ships no types
import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyspark.sql import Row

from redis_state.codec.ordered_key import encode_key
from redis_state.codec.typed_row import TypedKey, TypedRow
from redis_state.errors import FormatError, UsageError
from redis_state.types.declared import schema_json

BERLIN = ZoneInfo("Europe/Berlin")
NTZ = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))
# Away from the ends of the calendar, where a zone would lead out of it.
TIMES = st.datetimes(
    datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(timezone.utc) | st.just(BERLIN)
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DECIMALS = st.decimals(-999, 999, places=2, allow_nan=False, allow_infinity=False)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, width=32),
    "double": st.floats(allow_nan=False),
    "string": TEXT,
    "binary": st.binary(max_size=8),
    "date": st.dates(),
    "timestamp": TIMES,
    "timestamp_ntz": NTZ,
    "decimal(5,2)": DECIMALS,
}


def _typed(depth: int) -> st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]:
    """DDL of a type, and the values it has."""
    plain = st.sampled_from(sorted(SCALARS)).map(lambda name: (name, SCALARS[name]))
    if not depth:
        return plain
    inner = _typed(depth - 1)
    arrays = inner.map(lambda one: (f"array<{one[0]}>", st.lists(st.none() | one[1], max_size=3)))
    maps = st.tuples(st.sampled_from(["string", "int", "date", "decimal(5,2)"]), inner).map(
        lambda two: (
            f"map<{two[0]},{two[1][0]}>",
            st.dictionaries(SCALARS[two[0]], st.none() | two[1][1], max_size=3),
        )
    )
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda many: (
            "struct<" + ", ".join(f"f{at}: {one[0]}" for at, one in enumerate(many)) + ">",
            st.tuples(*(st.none() | one[1] for one in many)),
        )
    )
    return plain | arrays | maps | structs


COLUMNS = st.lists(_typed(2), min_size=1, max_size=3)


def _ddl(columns: list[tuple[str, Any]]) -> str:
    return schema_json(", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(columns)))


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, and float by float the same bits but for what NaN carries."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("d", one) == struct.pack(
            "d", other
        )
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, datetime) and one.tzinfo is not None:
        # A clock leaves hours out and shows others twice: what is kept is the moment.
        return bool(one.astimezone(timezone.utc) == other.astimezone(timezone.utc))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@given(COLUMNS, st.data())
def test_rows_of_every_type_come_back(columns: list[tuple[str, Any]], data: st.DataObject) -> None:
    row = TypedRow(_ddl(columns), zone=timezone.utc)
    value = tuple(data.draw(st.none() | strategy) for _, strategy in columns)
    expiry = data.draw(st.none() | st.integers(0, 2**53))
    found_expiry, found = row.decode_with_expiry(row.encode(value, expiry))
    assert found_expiry == expiry
    assert same(found, value)
    # What was read is written as the same bytes: a value of a value moves nothing.
    assert row.encode(found, expiry) == row.encode(value, expiry)


@given(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=4), st.data())
def test_keys_of_every_type_come_back_and_one_begins_behind_the_other(
    kinds: list[str], data: st.DataObject
) -> None:
    key = TypedKey(schema_json(", ".join(f"c{n} {k}" for n, k in enumerate(kinds))), zone=BERLIN)
    values = [
        tuple(data.draw(st.none() | SCALARS[kind]) for kind in kinds)
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    together = b"head" + b"".join(map(key.encode, values)) + encode_key(7)
    at = len(b"head")
    for value in values:
        found, at = key.decode_first(together, at)
        assert same(found, tuple(0.0 if type(one) is float and not one else one for one in value))
    assert together[at:] == encode_key(7)


@pytest.mark.parametrize("kind", sorted(set(SCALARS) - {"decimal(5,2)", "double", "float"}))
@given(data=st.data())
def test_the_order_of_key_bytes_is_that_of_the_values(kind: str, data: st.DataObject) -> None:
    key = TypedKey(schema_json(f"c {kind}"))
    values = data.draw(st.lists(SCALARS[kind], max_size=6))
    assert sorted(values) == sorted(values, key=lambda one: key.encode((one,)))


@given(st.lists(st.floats(allow_nan=False)))
def test_keys_of_floats_are_in_order_and_zero_has_no_sign(values: list[float]) -> None:
    key = TypedKey(schema_json("c double"))
    assert sorted(values) == sorted(values, key=lambda one: key.encode((one,)))
    assert key.encode((-0.0,)) == key.encode((0.0,))
    assert key.encode((math.nan,)) == key.encode((-math.nan,))


def test_a_float_of_the_row_keeps_its_bits() -> None:
    row = TypedRow(schema_json("a float, b double"))
    assert row.decode(row.encode((0.1, 0.1))) == (struct.unpack("f", struct.pack("f", 0.1))[0], 0.1)
    (nan, zero) = row.decode(row.encode((math.nan, -0.0)))
    assert math.isnan(nan)
    assert math.copysign(1, zero) == -1
    assert row.decode(row.encode((math.inf, -math.inf))) == (math.inf, -math.inf)
    with pytest.raises(UsageError, match="column 'a' is float"):
        row.encode((1e39, 0.0))


def _scalars_of_numpy() -> list[tuple[str, Any, Any]]:
    return [
        ("tinyint", np.int8(-3), -3),
        ("smallint", np.int16(-3), -3),
        ("int", np.int32(7), 7),
        ("int", np.int64(7), 7),
        ("bigint", np.int64(-(2**63)), -(2**63)),
        ("bigint", np.uint32(2**32 - 1), 2**32 - 1),
        ("boolean", np.bool_(True), True),
        ("float", np.float32(0.5), 0.5),
        ("float", np.float64(0.5), 0.5),
        ("double", np.float64(0.1), 0.1),
        ("double", np.int64(3), 3.0),
        ("double", 3, 3.0),
        ("string", np.str_("é"), "é"),
        ("binary", bytearray(b"ab"), b"ab"),
        ("binary", memoryview(b"ab"), b"ab"),
        ("binary", np.bytes_(b"ab"), b"ab"),
        ("date", date(2024, 2, 29), date(2024, 2, 29)),
        ("timestamp_ntz", pd.Timestamp("2024-01-01 00:00:00.000001"),
         datetime(2024, 1, 1, 0, 0, 0, 1)),
        ("array<bigint>", np.array([1, 2]), [1, 2]),
        ("array<double>", (1, None), [1.0, None]),
        ("array<string>", pd.Series(["a", "b"]), ["a", "b"]),
        ("decimal(5,2)", 3, Decimal("3.00")),
        ("decimal(5,2)", Decimal("1.2"), Decimal("1.20")),
        ("struct<a: int, b: string>", Row(a=1, b="x"), (1, "x")),
        ("struct<a: int, b: string>", {"b": "x", "a": 1}, (1, "x")),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "wanted"), _scalars_of_numpy())
def test_scalars_of_numpy_and_pandas(kind: str, value: Any, wanted: Any) -> None:
    row = TypedRow(schema_json(f"c {kind}"))
    (found,) = row.decode(row.encode((value,)))
    assert same(found, wanted)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("tinyint", 128),
        ("smallint", -(2**15) - 1),
        ("int", 2**31),
        ("bigint", 2**63),
        ("bigint", np.uint64(2**63)),
        ("int", True),
        ("int", 1.0),
        ("int", np.float64(1.0)),
        ("bigint", "1"),
        ("boolean", 1),
        ("boolean", "true"),
        ("string", b"a"),
        ("string", 1),
        ("binary", "a"),
        ("float", "1"),
        ("double", Decimal(1)),
        ("double", True),
        ("date", datetime(2024, 1, 1)),
        ("date", "2024-01-01"),
        ("timestamp", date(2024, 1, 1)),
        ("timestamp", 0),
        ("timestamp", pd.NaT),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=timezone.utc)),
        ("timestamp_ntz", pd.NaT),
        ("decimal(5,2)", Decimal("1000")),
        ("decimal(5,2)", Decimal("NaN")),
        ("decimal(5,2)", Decimal("Infinity")),
        ("decimal(5,2)", 1.5),
        ("decimal(5,2)", "1.5"),
        ("array<int>", "12"),
        ("array<int>", 12),
        ("array<int>", {1: 2}),
        ("array<int>", [1, "2"]),
        ("map<string,int>", [("a", 1)]),
        ("map<string,int>", {"a": "1"}),
        ("map<string,int>", {None: 1}),
        ("struct<a: int>", (1, 2)),
        ("struct<a: int>", "1"),
        ("struct<a: int>", 1),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_column(kind: str, value: Any) -> None:
    row = TypedRow(schema_json(f"before int, `the column` {kind}"), what="state variable 'x'")
    with pytest.raises(UsageError, match=r"state variable 'x'.*column 'the column'"):
        row.encode((1, value))


@pytest.mark.parametrize("schema", ["a int, b int", "a string, b string", "a int, b date"])
@pytest.mark.parametrize("value", ["ab", b"ab", {"a": 1, "b": 2}, 1, None, object()])
def test_value_that_is_not_a_row_is_refused(schema: str, value: Any) -> None:
    row = TypedRow(schema_json(schema), what="state variable 'x'")
    with pytest.raises(UsageError, match=f"of type {type(value).__name__}, not a tuple"):
        row.encode(value)


@pytest.mark.parametrize("value", [(), (1,), (1, 2, 3), [1], Row(a=1)])
def test_a_row_of_another_length_is_refused(value: Any) -> None:
    row = TypedRow(schema_json("a int, b int"))
    with pytest.raises(UsageError, match=f"it has {len(value)} values"):
        row.encode(value)


def test_a_column_may_forbid_null() -> None:
    row = TypedRow(schema_json("a int not null, b int"))
    assert row.decode(row.encode((1, None))) == (1, None)
    with pytest.raises(UsageError, match="column 'a' is NOT NULL"):
        row.encode((None, 1))


def test_half_a_character_is_refused_whatever_way_a_row_goes() -> None:
    for schema in ("s string", "s string, d date", "s array<string>", "s map<string,int>"):
        row = TypedRow(schema_json(schema))
        broken: Any = "\ud800"
        if "array" in schema:
            broken = ["\ud800"]
        if "map" in schema:
            broken = {"\ud800": 1}
        value = (broken, None) if "d date" in schema else (broken,)
        with pytest.raises(UsageError, match="half of a surrogate pair"):
            row.encode(value)
    with pytest.raises(UsageError, match="half of a surrogate pair"):
        TypedKey(schema_json("s string")).encode(("\ud800",))


def test_time_stamps_are_the_same_moment_from_any_zone() -> None:
    row = TypedRow(schema_json("t timestamp"), zone=BERLIN)
    moment = datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)
    for given_ in (moment, moment.astimezone(BERLIN), pd.Timestamp(moment)):
        (found,) = row.decode(row.encode((given_,)))
        assert found == moment
        assert found.utcoffset() == timedelta(hours=2)
    # Both hours of the night in which the clock goes back.
    for fold in (0, 1):
        night = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold)
        (found,) = row.decode(row.encode((night,)))
        assert (found, found.fold) == (night, fold)


def test_a_naive_time_stamp_is_of_this_machines_zone() -> None:
    row = TypedRow(schema_json("t timestamp"))
    local = datetime(2024, 7, 1, 12, 0, 0, 5)
    assert row.decode(row.encode((local,))) == (local,)
    aware = local.astimezone(timezone.utc)
    assert row.encode((aware,)) == row.encode((local,))


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("tinyint", "smallint"),
        ("tinyint", "int"),
        ("tinyint", "bigint"),
        ("smallint", "int"),
        ("smallint", "bigint"),
        ("int", "bigint"),
    ],
)
@given(data=st.data())
def test_whole_numbers_become_wider(older: str, newer: str, data: st.DataObject) -> None:
    before = schema_json(f"n {older}")
    value = data.draw(SCALARS[older])
    bytes_ = TypedRow(before).encode((value,), 5)
    row = TypedRow(schema_json(f"n {newer}"), [before])
    assert row.decode_with_expiry(bytes_) == (5, (value,))
    assert row.id == 1
    wide = data.draw(SCALARS[newer])
    assert row.decode(row.encode((wide,))) == (wide,)


@given(st.floats(width=32, allow_nan=False))
def test_a_float_becomes_a_double(value: float) -> None:
    before = schema_json("n float")
    row = TypedRow(schema_json("n double"), [before])
    assert same(row.decode(TypedRow(before).encode((value,))), (value,))


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("bigint", "int"),
        ("int", "string"),
        ("double", "float"),
        ("int", "double"),
        ("date", "timestamp"),
        ("timestamp", "timestamp_ntz"),
        ("decimal(5,2)", "decimal(9,2)"),
        ("array<int>", "array<bigint>"),
        ("struct<a: int>", "struct<a: int, b: int>"),
        ("int", "array<int>"),
    ],
)
def test_another_type_is_refused_by_the_name_of_the_column(older: str, newer: str) -> None:
    with pytest.raises(UsageError, match=r"column 'n' was .* and is .* now"):
        TypedRow(schema_json(f"n {newer}"), [schema_json(f"n {older}")])


def test_columns_come_go_and_change_places() -> None:
    first = schema_json("a int, b string, c date")
    second = schema_json("c date, d bigint, a int")
    old = TypedRow(first).encode((1, "x", date(2024, 1, 1)))
    row = TypedRow(second, [first])
    assert row.decode(old) == (date(2024, 1, 1), None, 1)
    third = schema_json("b string")
    assert TypedRow(third, row.written).decode(old) == ("x",)
    assert TypedRow(third, row.written).decode(row.encode((None, 2, 3))) == (None,)
    # Back to the first one: rows of both are read, and no schema is noted twice.
    back = TypedRow(first, row.written)
    assert back.id == 0
    assert back.written == [first, second]
    assert back.decode(old) == (1, "x", date(2024, 1, 1))


@given(st.lists(st.permutations(["a", "b", "c", "d"]), min_size=2, max_size=5), st.data())
def test_any_history_of_schemas_is_read_by_the_names_of_columns(
    orders: list[list[str]], data: st.DataObject
) -> None:
    written: list[str] = []
    rows: list[tuple[bytes, dict[str, int | None]]] = []
    row: TypedRow | None = None
    for order in orders:
        names = order[: data.draw(st.integers(1, 4))]
        row = TypedRow(schema_json(", ".join(f"{name} int" for name in names)), written)
        written = row.written
        values = {name: data.draw(st.none() | SCALARS["int"]) for name in names}
        rows.append((row.encode(tuple(values.values())), values))
    assert row is not None
    for bytes_, values in rows:
        assert row.decode(bytes_) == tuple(values.get(name) for name in row.names)


@given(st.binary(max_size=24))
def test_bytes_that_are_no_row_are_refused(data: bytes) -> None:
    for schema in ("a int", "a int, t timestamp", "a decimal(5,2), d date"):
        row = TypedRow(schema_json(schema), zone=timezone.utc)
        try:
            expiry, found = row.decode_with_expiry(data)
        except FormatError:
            continue
        assume(expiry is None or type(expiry) is int)
        assert len(found) == len(row.names)


def test_a_row_of_an_unknown_schema_is_refused() -> None:
    row = TypedRow(schema_json("a int"))
    for bad in (msgpack.packb([5, None, 1]), msgpack.packb([0, None]), msgpack.packb([]), b"\xc1"):
        with pytest.raises(FormatError, match="decoding a row"):
            row.decode(bad)


def test_bytes_that_are_no_key_are_refused() -> None:
    key = TypedKey(schema_json("a int, d date"), what="a key")
    for bad in (b"", b"\xff", encode_key((1,)), encode_key(1), encode_key((1, 2, 3))):
        with pytest.raises(FormatError):
            key.decode(bad)


@pytest.mark.parametrize("bad", [(), (1,), (1, 2, 3), "ab", b"ab", {1: 2, 3: 4}, 7, None])
def test_value_that_is_not_a_key_is_refused(bad: Any) -> None:
    with pytest.raises(UsageError, match="not a tuple of 2 values"):
        TypedKey(schema_json("a int, b int")).encode(bad)


def test_a_key_that_does_not_fit_names_its_column() -> None:
    key = TypedKey(schema_json("a int, d date"), what="a key of state variable 'm'")
    with pytest.raises(UsageError, match=r"a key of state variable 'm'.*column 'd' is date"):
        key.encode((1, "2024-01-01"))
