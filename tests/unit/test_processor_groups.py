"""Rows of a partition by groups, and their event times."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_state.batches.event_time import Notes, in_time, newest_time, watermark_of
from redis_state.errors import FormatError
from redis_state.spark.processor.groups import FORMS, RowForm, groups

UTC_MICROS = pa.timestamp("us", tz="UTC")
MIDNIGHT = datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC"))
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["", "a", "b", "é", None]),
    "bytes": (pa.binary(), [b"", b"\0", b"a", None]),
    "number": (pa.int32(), [-1, 0, 7, None]),
    "flag": (pa.bool_(), [False, True, None]),
    "day": (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29), None]),
    "decimal": (pa.decimal128(5, 2), [Decimal("-1.10"), Decimal("0.00"), Decimal("3.25"), None]),
    "time": (UTC_MICROS, [MIDNIGHT, MIDNIGHT.replace(microsecond=1), None]),
    "naive": (pa.timestamp("us"), [datetime(2024, 1, 1), datetime(2024, 1, 2), None]),
    "float": (pa.float64(), [-math.inf, -1.5, 0.0, 2.5, None]),
    "pair": (
        pa.struct([("start", UTC_MICROS), ("n", pa.int32())]),
        [{"start": MIDNIGHT, "n": 1}, {"start": MIDNIGHT, "n": None}, {"start": None, "n": 1}],
    ),
}


def numbers(form: RowForm, rows: Any) -> list[int]:
    if form == "arrow":
        return list(rows["v"].to_pylist())
    return [row["v"] for row in rows] if form == "rows" else rows["v"].tolist()


def shown(form: RowForm, table: pa.Table, *keys: str) -> list[tuple[Any, list[int]]]:
    return [(key, numbers(form, rows)) for key, rows in groups(table, keys, form, "UTC")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", sorted(KEYS))
@settings(max_examples=25)
@given(data=st.data())
def test_each_group_is_yielded_once_with_its_rows_in_order(
    form: RowForm, kind: str, data: st.DataObject
) -> None:
    type_, values = KEYS[kind]
    keys = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=12))
    other = data.draw(
        st.lists(st.sampled_from(["x", None]), min_size=len(keys), max_size=len(keys))
    )
    table = pa.table(
        {"k": pa.array(keys, type_), "o": pa.array(other, pa.string()), "v": range(len(keys))}
    )
    wanted: dict[str, tuple[tuple[Any, ...], list[int]]] = {}
    for number, pair in enumerate(zip(keys, other, strict=True)):
        wanted.setdefault(repr(pair), (pair, []))[1].append(number)
    found = shown(form, table, "k", "o")
    assert sorted(map(repr, found)) == sorted(map(repr, wanted.values()))


@pytest.mark.parametrize("form", FORMS)
def test_nan_is_one_key_and_so_are_both_zeros(form: RowForm) -> None:
    """As Spark groups floating-point numbers; the sign of zero and of NaN does not count."""
    values = [0.0, -0.0, math.nan, 1.0, -math.nan, 0.0, None, -0.0, math.nan, None]
    for type_ in (pa.float64(), pa.float32()):
        table = pa.table({"k": pa.array(values, type_), "v": range(len(values))})
        found = {
            "nan" if key[0] is not None and math.isnan(key[0]) else key[0]: rows
            for key, rows in shown(form, table, "k")
        }
        assert len(shown(form, table, "k")) == len(found)
        assert found == {0.0: [0, 1, 5, 7], 1.0: [3], "nan": [2, 4, 8], None: [6, 9]}


@pytest.mark.parametrize("form", FORMS)
def test_empty_partition_has_no_groups(form: RowForm) -> None:
    table = pa.table({"k": pa.array([], pa.string()), "v": pa.array([], pa.int64())})
    assert shown(form, table, "k") == []


@pytest.mark.parametrize("form", FORMS)
@given(chunks=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4))
def test_chunks_of_the_table_do_not_matter(form: RowForm, chunks: list[list[int]]) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    parts = [pa.table({"k": one, "v": one}, schema=schema) for one in chunks]
    table = pa.concat_tables(parts) if parts else schema.empty_table()
    flat = sorted(key for one in chunks for key in one)
    wanted = [((key,), list(rows)) for key, rows in groupby(flat)]
    assert shown(form, table, "k") == wanted


def test_frames_have_naive_times_of_the_session_and_an_index_of_their_own() -> None:
    table = pa.table(
        {
            "k": [2, 1, 2],
            "t": pa.array([MIDNIGHT] * 3, UTC_MICROS),
            "d": pa.array([date(2024, 1, 1)] * 3),
        }
    )
    for _, frame in groups(table, ["k"], "pandas", "Europe/Berlin"):
        assert isinstance(frame, pd.DataFrame)
        assert frame.index.tolist() == list(range(len(frame)))
        assert frame["t"].tolist() == [datetime(2024, 1, 1, 1)] * len(frame)
        assert frame["d"].tolist() == [date(2024, 1, 1)] * len(frame)


MICROS = st.integers(-5, 5).map(lambda ms: ms * 1000) | st.integers(-6_000, 6_000)


@given(st.lists(st.none() | MICROS), st.integers(0, 6))
def test_rows_up_to_the_watermark_of_the_batch_before_are_late(
    micros: list[int | None], late_ms: int
) -> None:
    for type_ in (UTC_MICROS, pa.timestamp("us")):
        table = pa.table({"t": pa.array(micros, pa.int64()).cast(type_)})
        kept = in_time(table, "t", late_ms)["t"].cast(pa.int64()).to_pylist()
        wanted = [one for one in micros if one is None or one > late_ms * 1000]
        assert kept == wanted
        newest = max((one // 1000 for one in micros if one is not None), default=0)
        assert newest_time(table, "t") == max(0, newest)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100))), st.integers(0, 50))
def test_the_watermark_is_behind_the_newest_time_of_all_partitions_and_never_falls(
    times: list[tuple[int, int]], delay: int
) -> None:
    found = watermark_of((Notes(*one) for one in times), delay)
    newest = max((one[0] for one in times), default=0)
    assert found == max([0, newest - delay, *(one[1] for one in times)])


@given(st.integers(0, 2**53), st.integers(0, 2**53))
def test_notes_round_trip(newest: int, watermark: int) -> None:
    assert Notes.decode(Notes(newest, watermark).encode()) == Notes(newest, watermark)
    assert Notes.decode(None) == Notes(0, 0)


@pytest.mark.parametrize("bad", [b"", b"\xc1", b"\x91\x01", b"\x93\x01\x02\x03", b"\x01"])
def test_malformed_notes_are_refused(bad: bytes) -> None:
    with pytest.raises(FormatError, match="event times"):
        Notes.decode(bad)
