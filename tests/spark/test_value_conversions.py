"""Conversions of values, with Spark's own as oracle: of state, and of what is given out."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from redis_state.codec.typed_row import TypedRow
from redis_state.errors import UsageError
from redis_state.spark.processor.transform_with_state import transform_with_state
from redis_state.types.declared import schema_json
from tests.spark.streams import PROVIDER, ROCKSDB

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

NOWHERE = "redis://127.0.0.1:1"
D = Decimal
NUMBERS = ["1.005", "-1.005", "2.345", "0.004", "-0.00", "-0.004", "1E-30", "12345678.995", "7"]
STATE: dict[str, list[Any]] = {
    "decimal(10,2)": [*map(D, NUMBERS)],
    "decimal(38,18)": [D("1.0000000000000000005"), D("-0E-20")],
    "array<decimal(10,2)>": [[D("1.005"), None, D("-0.00")]],
    "map<decimal(10,2),decimal(10,2)>": [{D("1.005"): D("2.345")}],
    "struct<a: decimal(10,2), b: struct<c: decimal(10,2)>>": [(D("1.005"), (D("-0.004"),))],
    "float": [0.1, np.float32(0.1), 1e-50, -0.0],
    "double": [0.1, np.float64(0.1), -0.0],
    "int": [5, np.int64(5)],
    "bigint": [2**63 - 1, np.uint64(7)],
    "string": ["a", np.str_("é")],
    "date": [date(2024, 2, 29), np.datetime64("2024-02-29")],
    "timestamp": [
        datetime(2024, 7, 1, 12, 0, 0, 5),
        datetime(2024, 7, 1, 12, tzinfo=timezone.utc),
        np.datetime64("2024-07-01T12:00:00.000005"),
        pd.Timestamp("2024-07-01 12:00"),
    ],
    "timestamp_ntz": [datetime(2024, 7, 1, 12), np.datetime64("2024-07-01T12:00:00", "s")],
    "array<int>": [[1, None], (np.int8(1),)],
    "struct<a: int, b: string>": [Row(a=1, b="x"), (1, "x"), {"b": "x", "a": 1}, {"a": 1}],
    "map<string,array<struct<a: int>>>": [{"k": [Row(a=1), None, (2,)]}],
}


class Keeps(StatefulProcessor):
    """Writes each value of a type, and gives out what it reads then."""

    def __init__(self, kinds: dict[str, list[Any]]) -> None:
        self._kinds = kinds

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states = [
            handle.getValueState(f"s{at}", f"v {kind}") for at, kind in enumerate(self._kinds)
        ]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for state, (kind, values) in zip(self._states, self._kinds.items(), strict=True):
            for number, value in enumerate(values):
                state.update((value,))
                found = repr(_plain(state.get()))
                yield pd.DataFrame({"kind": [kind], "n": [number], "found": [found]})


def _plain(value: Any) -> Any:
    """Rows as the tuples that they are."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return [*map(_plain, value)]
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    return value


def both(spark: SparkSession, processor: StatefulProcessor, schema: str) -> tuple[Any, Any]:
    """Outputs of Spark's operator and of ours."""
    spark.conf.set(PROVIDER, ROCKSDB)
    frame = spark.createDataFrame([("a",)], "k string")
    theirs = frame.groupBy("k").transformWithStateInPandas(
        processor, outputStructType=schema, outputMode="Update", timeMode="None"
    )
    ours = transform_with_state(
        frame, processor, store="none", key="k", schema=schema, time_mode="None", url=NOWHERE
    )
    return theirs.collect(), ours.collect()


def test_stored_value_equals_sparks_conversion(spark: SparkSession) -> None:
    theirs, ours = both(spark, Keeps(STATE), "kind string, n int, found string")
    assert len(ours) == sum(map(len, STATE.values()))
    assert sorted(ours) == sorted(theirs)


class Gives(StatefulProcessor):
    """Emits one frame."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield self._frame


NAIVE = datetime(2024, 7, 1, 12)
FRAMES: list[tuple[str, Any]] = [
    ("a int, b string", pd.DataFrame([[1, "x"], [2, None]])),
    ("a decimal(5,2), b decimal(5,2)", pd.DataFrame({"a": [1.5, 2.25], "b": [float("nan"), 0.1]})),
    ("a struct<x: int, y: struct<z: string>>", pd.DataFrame({"a": [Row(x=1, y=Row(z="q"))]})),
    ("a array<struct<x: int>>", pd.DataFrame({"a": [[Row(x=1), (2,), {"x": 3}]]})),
    ("a map<string,struct<x: int>>", pd.DataFrame({"a": [{"k": Row(x=1)}]})),
    ("`a.b` int, `c.d` struct<`e.f`: int>", pd.DataFrame({"a.b": [1], "c.d": [(2,)]})),
    ("a array<timestamp>, b map<string,timestamp>",
     pd.DataFrame({"a": [[NAIVE, None]], "b": [{"k": NAIVE}]})),
    ("a struct<t: timestamp, n: timestamp_ntz>", pd.DataFrame({"a": [Row(t=NAIVE, n=NAIVE)]})),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "frame"), FRAMES, ids=[schema for schema, _ in FRAMES])
def test_frame_output_equals_sparks_conversion(
    spark: SparkSession, schema: str, frame: pd.DataFrame
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        theirs, ours = both(spark, Gives(frame), schema)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert ours == theirs


@pytest.mark.parametrize(
    ("schema", "frame"),
    [
        ("a string", pd.DataFrame({"a": [1]})),
        ("a int, b int", pd.DataFrame([[1]])),
        ("a int", pd.DataFrame({0: [1], "b": [1]})),
    ],
)
def test_frames_that_spark_refuses_are_refused(
    spark: SparkSession, schema: str, frame: pd.DataFrame
) -> None:
    spark.conf.set(PROVIDER, ROCKSDB)
    rows = spark.createDataFrame([("a",)], "k string")
    made = rows.groupBy("k").transformWithStateInPandas(
        Gives(frame), outputStructType=schema, outputMode="Update", timeMode="None"
    )
    with pytest.raises(PySparkException):
        made.collect()
    ours = transform_with_state(
        rows, Gives(frame), store="none", key="k", schema=schema, time_mode="None", url=NOWHERE
    )
    with pytest.raises(PySparkException, match="reading the rows of the function"):
        ours.collect()


class Dotted(StatefulProcessor):
    """Whose columns have names with dots."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("v.w", "`n.m` int, `s.t` struct<`x.y`: int>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total = sum(int(frame["v.1"].sum()) for frame in rows)
        self._value.update((total, (total,)))
        n, (same,) = self._value.get() or (0, (0,))
        yield pd.DataFrame({"k.1": [key[0]], "total.1": [n + same]})


def test_column_names_with_dots_are_accepted(spark: SparkSession) -> None:
    """Spark's own operator does not find such a column of its input."""
    schema = "`k.1` string, `total.1` int"
    frame = spark.createDataFrame([("a", 1), ("b", 2), ("a", 3)], "`k.1` string, `v.1` int")
    made = transform_with_state(
        frame, Dotted(), store="none", key="k.1", schema=schema, time_mode="None", url=NOWHERE
    )
    assert sorted(map(tuple, made.collect())) == [("a", 8), ("b", 4)]
    grouped = frame.groupBy(sf.col("`k.1`"))
    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"):
        grouped.transformWithStateInPandas(
            Dotted(), outputStructType=schema, outputMode="Update", timeMode="None"
        )


class GivesRows(Gives):
    """Emits one row."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield self._row


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        ("a struct<x: int, y: struct<z: string>>", Row(a=Row(x=1, y=Row(z="q")))),
        ("a array<struct<x: int>>, b map<string,struct<x: int>>",
         Row(a=[Row(x=1)], b={"k": Row(x=2)})),
        ("`a.b` int", Row(**{"a.b": 1})),
        ("a int, b int", Row(a=1)),
    ],
)  # fmt: skip
def test_row_output_equals_sparks_conversion(spark: SparkSession, schema: str, row: Any) -> None:
    if not hasattr(spark.createDataFrame([], "k string").groupBy("k"), "transformWithState"):
        pytest.skip("this Spark has no transformWithState in Python")
    spark.conf.set(PROVIDER, ROCKSDB)
    frame = spark.createDataFrame([("a",)], "k string")
    theirs = frame.groupBy("k").transformWithState(
        GivesRows(row), outputStructType=schema, outputMode="Update", timeMode="None"
    )
    ours = transform_with_state(
        frame, GivesRows(row), store="none", key="k", schema=schema, time_mode="None",
        rows="rows", url=NOWHERE,
    )  # fmt: skip
    assert ours.collect() == theirs.collect()


def test_value_that_spark_stores_as_null_is_refused() -> None:
    for kind, value in (
        ("decimal(10,2)", 1.5),
        ("string", 5),
        ("int", "1"),
        ("double", D("1.5")),
        ("boolean", 1),
    ):
        with pytest.raises(UsageError, match="column 'v'"):
            TypedRow(schema_json(f"v {kind}")).encode((value,))
