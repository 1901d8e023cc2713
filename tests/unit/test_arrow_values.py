"""Values of Arrow columns that no Python object stands for."""

from __future__ import annotations

import pyarrow as pa
import pytest

from redis_state.errors import UsageError
from redis_state.spark.processor.arrow_values import values_of

_UTC = pa.timestamp("us", tz="UTC")
FAR = pa.array([2_932_897, None], pa.int32()).view(pa.date32())
ENDS = pa.array([(1 << 63) - 1, None], pa.int64()).view(_UTC)
BYTES = pa.array([b"a\x80", None]).view(pa.string())


def below(column: pa.Array) -> list[pa.Array]:
    """The column itself, and in each kind of container."""
    offsets = pa.array([0, 1, 2], pa.int32())
    keys = pa.array([1, 2])
    return [
        column,
        pa.chunked_array([column]),
        pa.ListArray.from_arrays(offsets, column),
        pa.StructArray.from_arrays([column], ["f"]),
        pa.MapArray.from_arrays(offsets, keys, column),
    ]


@pytest.mark.parametrize("column", [*below(FAR), *below(ENDS)], ids=lambda one: str(one.type))
def test_far_time_raises_usage_error(column: pa.Array) -> None:
    with pytest.raises(UsageError, match=r"column 'x'.*no object.*Nothing was changed"):
        values_of(column, column.type, "column 'x'")


@pytest.mark.parametrize("column", below(BYTES), ids=lambda one: str(one.type))
def test_text_that_is_not_utf_8_raises_usage_error(column: pa.Array) -> None:
    with pytest.raises(UsageError, match=r"column 'x'.*not UTF-8.*binary"):
        values_of(column, column.type, "column 'x'")
