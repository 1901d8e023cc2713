"""Keys by numpy are those that are made one after the other, byte for byte and hash for hash."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_state.errors import ConfigError
from redis_state.rows.codec import codec_of
from redis_state.rows.key_arrays import KeyArrays, OneByOneError
from redis_state.rows.murmur3 import hash_key
from tests.contract.planting import family, schema

FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf])
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-128, 127),
    "short": st.integers(-(1 << 15), (1 << 15) - 1),
    "integer": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": FLOATS,
    "double": st.floats() | FLOATS,
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "binary": st.binary(max_size=20),
    "date": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    "timestamp": TIMES.map(lambda at: at.replace(tzinfo=timezone.utc)),
    "timestamp_ntz": TIMES,
    "decimal(18,3)": st.decimals(-(10**14), 10**14, places=3),
    "interval day to second": st.timedeltas(timedelta(days=-9), timedelta(days=9)),
    "interval year to month": st.integers(-1000, 1000),
    "time(6)": st.times(),
}


@st.composite
def keys(draw: st.DrawFn) -> tuple[str, list[tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    columns = {f"c{at}": name for at, name in enumerate(names)}
    nulls = draw(st.booleans())
    row = st.tuples(*[KINDS[name] | st.none() if nulls else KINDS[name] for name in names])
    return schema(**columns), draw(st.lists(row, min_size=1, max_size=8))


@settings(deadline=None)
@given(keys())
def test_key_arrays_equal_single_keys(drawn: tuple[str, list[tuple[Any, ...]]]) -> None:
    kind, rows = drawn
    codec = codec_of(family(kind, schema(v="long")))
    made = KeyArrays(codec, list(zip(*rows, strict=True)))
    assert made.stored() == [codec.encode_key(row) for row in rows]
    assert made.hashes().tolist() == [hash_key(codec.key, row) for row in rows]


@pytest.mark.parametrize("columns", [1, 63, 64, 65])
def test_key_arrays_accept_any_number_of_columns(columns: int) -> None:
    kind = schema(**{f"c{at}": "string" if at % 3 == 0 else "integer" for at in range(columns)})
    codec = codec_of(family(kind, schema(v="long")))
    row = [(f"text {at}" if at % 3 == 0 else at) if at % 5 else None for at in range(columns)]
    made = KeyArrays(codec, [[value, value] for value in row])
    assert made.stored() == [codec.encode_key(row)] * 2
    assert made.hashes().tolist() == [hash_key(codec.key, row)] * 2


@pytest.mark.parametrize(
    ("type_", "value"),
    [("decimal(38,2)", Decimal(1)), ("string", "x" * 2000), ("string", "\ud800")],
)
def test_unsupported_type_falls_back_to_single_keys(type_: str, value: Any) -> None:
    codec = codec_of(family(schema(k=type_), schema(v="long")))
    with pytest.raises(OneByOneError):
        KeyArrays(codec, [[value]]).hashes()


def test_partly_hashed_kind_falls_back_to_single_keys() -> None:
    kind = schema(a="string", b="long")
    codec = codec_of(family(kind, schema(v="long"), kind="prefix", params=(1,)))
    with pytest.raises(OneByOneError):
        KeyArrays(codec, [["a"], [1]])


@pytest.mark.parametrize(
    ("type_", "value"), [("long", "1"), ("integer", 1 << 31), ("string", 1), ("long", True)]
)
def test_mistyped_values_are_refused(type_: str, value: Any) -> None:
    codec = codec_of(family(schema(k=type_), schema(v="long")))
    with pytest.raises(ConfigError):
        KeyArrays(codec, [[value]])
    with pytest.raises(ConfigError):
        codec.encode_key([value])
