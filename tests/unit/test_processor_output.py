"""Output of a processor, as Arrow batches of the announced schema."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from redis_state.errors import UsageError
from redis_state.spark.processor.output import output_of

PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
TIMED = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", tz="UTC"))])
ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from(["a", "b"]),
        st.integers(-5, 5),
        st.none() | st.floats(-1, 1, allow_nan=False),
    ),
    max_size=100,
)


def table(given_: Any, form: Any, schema: pa.Schema = PLAIN, zone: str = "UTC") -> pa.Table:
    return pa.Table.from_batches(list(output_of(given_, form, schema, zone)), schema)


def frame(rows: list[tuple[Any, ...]], names: list[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=names).astype({"n": "int64"}) if rows else pd.DataFrame()


@settings(max_examples=30)
@given(st.lists(ROWS, max_size=6), st.booleans())
def test_frames_of_any_size_are_emitted_in_order(
    parts: list[list[tuple[Any, ...]]], turned: bool
) -> None:
    """Short ones are put together; the order of columns does not matter."""
    frames = [frame(rows, PLAIN.names) for rows in parts]
    if turned:
        frames = [one[one.columns[::-1]] for one in frames]
    wanted = [row for rows in parts for row in rows]
    columns = table(frames, "pandas").to_pydict()
    assert list(zip(*columns.values(), strict=True)) == wanted
    rows = [Row(**dict(zip(PLAIN.names, row, strict=True))) for row in wanted]
    assert table(rows, "rows").to_pydict() == columns
    tables = [pa.Table.from_pylist([row.asDict() for row in rows], PLAIN)] if rows else []
    assert table(tables, "arrow").to_pydict() == columns


@pytest.mark.usefixtures("new_york")
def test_naive_times_of_rows_are_in_the_workers_time_zone() -> None:
    stamp = pa.timestamp("us", tz="UTC")
    schema = pa.schema(
        [
            ("t", stamp),
            ("many", pa.list_(stamp)),
            ("by", pa.map_(pa.string(), stamp)),
            ("both", pa.struct([("t", stamp), ("naive", pa.timestamp("us"))])),
        ]
    )
    naive = datetime(2024, 7, 1, 12)
    moment = datetime(2024, 7, 1, 16, tzinfo=timezone.utc)
    both = Row(t=naive, naive=naive)
    row = Row(t=naive, many=[naive, None, moment], by={"a": naive, "b": None}, both=both)
    nothing = Row(t=None, many=None, by=None, both=None)
    pandas = Row(t=pd.Timestamp(naive), many=[], by={}, both=Row(t=None, naive=None))
    found = table([row, nothing, pandas], "rows", schema).to_pylist()
    assert found == [
        {
            "t": moment,
            "many": [moment, None, moment],
            "by": [("a", moment), ("b", None)],
            "both": {"t": moment, "naive": naive},
        },
        nothing.asDict(),
        {"t": moment, "many": [], "by": [], "both": {"t": None, "naive": None}},
    ]


def test_times_of_frames_are_in_the_sessions_time_zone() -> None:
    given_ = [pd.DataFrame({"k": ["a", "b"], "t": [datetime(2024, 7, 1, 12), pd.NaT]})]
    found = table(given_, "pandas", TIMED, "Europe/Berlin")["t"].to_pylist()
    assert [one and one.isoformat() for one in found] == ["2024-07-01T10:00:00+00:00", None]


def test_missing_values_of_a_frame_are_null() -> None:
    given_ = [
        pd.DataFrame({"k": [None], "n": [1], "x": [float("nan")]}),
        pd.DataFrame({"k": [np.nan], "n": pd.array([None], "Int64"), "x": [1]}),
        pd.DataFrame({"k": [pd.NA], "n": [2.0], "x": [pd.NA]}),
    ]
    assert table(given_, "pandas").to_pylist() == [
        {"k": None, "n": 1, "x": None},
        {"k": None, "n": None, "x": 1.0},
        {"k": None, "n": 2, "x": None},
    ]


def test_nested_and_rare_types_are_emitted_from_rows_and_frames() -> None:
    schema = pa.schema(
        [
            ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
            ("l", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.int32())),
            ("d", pa.decimal128(5, 2)),
            ("day", pa.date32()),
            ("raw", pa.binary()),
        ]
    )
    wanted = {
        "s": {"a": 1, "b": "x"}, "l": [1, None], "m": [("k", 1)], "d": Decimal("1.20"),
        "day": date(2024, 1, 1), "raw": b"\0",
    }  # fmt: skip
    row = Row(**{**wanted, "s": Row(a=1, b="x"), "m": {"k": 1}})
    assert table([row], "rows", schema).to_pylist() == [wanted]
    made = pd.DataFrame({name: [value] for name, value in wanted.items()})
    assert table([made], "pandas", schema).to_pylist() == [wanted]


@pytest.mark.parametrize(
    ("form", "wrong", "found"),
    [
        ("pandas", {"k": "a"}, "a dict instead of a pandas DataFrame"),
        ("pandas", pd.DataFrame({"k": ["a"], "n": [1]}), "without the column 'x'"),
        ("pandas", pd.DataFrame({"k": ["a"], "n": [1], "x": [1], "y": [1]}), "the column 'y'"),
        ("pandas", pd.DataFrame({"k": ["a"], "n": ["b"], "x": [1]}), "of column 'n'"),
        ("pandas", pd.DataFrame({"k": [1], "n": [1], "x": [1]}), "of column 'k'"),
        ("pandas", pd.DataFrame({"k": ["a"], "n": [1.5], "x": [1]}), "of column 'n'"),
        ("pandas", pd.DataFrame({"k": ["a"] * 99, "n": [1.5] * 99, "x": 1}), "of column 'n'"),
        ("rows", Row(k="a", n=1.5, x=1.0), "of column 'n'"),
        ("rows", pd.DataFrame(), "a DataFrame instead of a dict"),
        ("rows", Row(k="a", n="b", x=1.0), "of column 'n'"),
        ("rows", Row(k="a", other=1), "the column 'other'"),
        ("arrow", {"k": "a"}, "a dict instead of a RecordBatch"),
        ("arrow", pa.table({"k": ["a"], "n": ["b"], "x": [1.0]}), "of column 'n'"),
    ],
)
def test_unfitting_output_is_refused_by_name(form: Any, wrong: Any, found: str) -> None:
    def given_() -> Iterator[Any]:
        yield wrong

    with pytest.raises(UsageError, match=found):
        table(given_(), form)


def test_a_column_without_nulls_refuses_them() -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False)])
    for form, wrong in (("pandas", pd.DataFrame({"k": [None]})), ("rows", Row(k=None))):
        with pytest.raises(UsageError, match="nulls in column 'k'"):
            table([wrong], form, schema)
