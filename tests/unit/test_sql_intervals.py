"""Intervals in batches that DuckDB reads: refused where it would give others, however nested."""

from __future__ import annotations

import pyarrow as pa
import pytest

from redis_state.errors import UnreadableError
from redis_state.sql.live_table import _check_durations, _has_durations

MOST = ((1 << 63) - 1) // 1000


def spans(*numbers: int | None) -> pa.Array:
    return pa.array(numbers, pa.int64()).view(pa.duration("us"))


def around(array: pa.Array) -> list[pa.Array]:
    """The array itself, and in each kind of container."""
    offsets = pa.array(range(len(array) + 1), pa.int32())
    keys = pa.array(range(len(array)))
    lists = pa.ListArray.from_arrays(offsets, array)
    return [
        array,
        lists,
        pa.StructArray.from_arrays([keys, lists], ["n", "waits"]),
        pa.MapArray.from_arrays(offsets, keys, array),
        pa.MapArray.from_arrays(offsets, array.fill_null(0), keys),
    ]


@pytest.mark.parametrize("far", [MOST + 1, -MOST - 1, (1 << 63) - 1, -(1 << 63)])
def test_far_interval_raises_unreadable_error_wherever_it_stands(far: int) -> None:
    for array in around(spans(0, far, None)):
        assert _has_durations(array.type)
        with pytest.raises(UnreadableError, match="column 'wait' of type day-time"):
            _check_durations(array, "wait")
        # Rows of another batch do not count.
        _check_durations(array.slice(0, 1), "wait")
        _check_durations(array.slice(2), "wait")


def test_intervals_that_fit_are_passed() -> None:
    for array in around(spans(MOST, -MOST, None)):
        _check_durations(array, "wait")
    assert not _has_durations(pa.list_(pa.int64()))
