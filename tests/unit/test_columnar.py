"""Rows read column by column are those that are read one after the other, or are not read so."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_state.errors import FormatError
from redis_state.format.header import Family
from redis_state.rows.arrow_types import arrow_array
from redis_state.rows.codec import FamilyCodec, codec_of
from redis_state.rows.columnar import NotColumnarError, key_arrays, value_arrays
from redis_state.rows.unsafe_row import encode
from tests.unit.unsafe_row_vectors import VECTORS, named

NO_COLUMNS = ("array", "map", "calendar")
MIXED = (
    "booleans", "bytes", "shorts", "integers", "longs", "floats", "doubles", "strings", "binary",
    "compact decimals", "large decimals", "dates", "timestamps", "times", "window", "null struct",
)  # fmt: skip


def codec(schema: Any) -> FamilyCodec:
    text = json.dumps(schema)
    return codec_of(Family(0, "default", "none", (), text, text))


def one_by_one(of: FamilyCodec, rows: list[bytes]) -> list[pa.Array]:
    decoded = [of.value_row(row) for row in rows]
    return [
        arrow_array(field.type, [row[at] for row in decoded])
        for at, field in enumerate(of.values.columns.fields)
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_columnar_decoding_equals_row_decoding(vector: dict[str, Any]) -> None:
    of = codec(vector["schema"])
    rows = [b"\0" + bytes.fromhex(vector["row"])] * 3
    expected = one_by_one(of, rows)
    for array in expected:
        array.validate(full=True)
    if any(word in vector["name"] for word in NO_COLUMNS):
        with pytest.raises(NotColumnarError):
            value_arrays(of, rows)
        return
    found = value_arrays(of, rows)
    assert _shown(found) == _shown(expected)
    assert _shown(key_arrays(of, [b"\0\0" + row for row in rows])) == _shown(expected)


def test_rows_of_different_lengths_and_nulls_are_decoded_together() -> None:
    strings = named("strings")
    of = codec(strings["schema"])
    count = len(of.values.columns.fields)
    bits = (1 << count) - 1
    empty = b"\0" + bits.to_bytes(8, "little") + bytes(8 * count)
    rows = [b"\0" + bytes.fromhex(strings["row"]), empty] * 2
    found = value_arrays(of, rows)
    assert found == one_by_one(of, rows)
    assert found[0].null_count == 2


@settings(max_examples=300)
@given(
    st.sampled_from(MIXED),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_rows_are_refused(name: str, changes: list[tuple[int, int]]) -> None:
    vector = named(name)
    of = codec(vector["schema"])
    whole = b"\0" + bytes.fromhex(vector["row"])
    damaged = bytearray(whole)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    rows = [whole, bytes(damaged), whole]
    try:
        found = value_arrays(of, rows)
    except NotColumnarError:
        return
    try:
        expected = one_by_one(of, rows)
    except FormatError as error:
        # Arrow holds days that Python has no dates for.
        assert "outside the years" in str(error)  # noqa: PT017  # what is left is looked at
        return
    assert _shown(found) == _shown(expected)


def _shown(arrays: list[pa.Array]) -> str:
    """As text, in which one NaN is like another."""
    return "\n".join(f"{array.type} {array}" for array in arrays)


def test_long_texts_need_little_extra_memory() -> None:
    schema = {"type": "struct", "fields": [{"name": "t", "type": "string", "nullable": True}]}
    of = codec(schema)
    texts = ["a" * 200, "b" * (3 << 20), "", None, *(f"{n:04d}" * 250 for n in range(16_000))]
    rows = [b"\0" + encode(of.values.columns, {"t": text}) for text in texts]
    total = sum(map(len, rows))
    tracemalloc.start()
    try:
        (array,) = value_arrays(of, rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert array.to_pylist() == texts
    # The rows joined, the same without versions, the texts, and what one slice takes.
    assert peak < 4 * total + (48 << 20)
