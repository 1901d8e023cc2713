"""Stored keys and values as Arrow arrays, a column each: all at once where `columnar` can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis_state.reader.arrow_types import arrow_array
from redis_state.reader.family import RowCodec
from redis_state.reader.json_values import json_text
from redis_state.reader.rows.codec import Codec
from redis_state.reader.rows.spark_types import Struct

if TYPE_CHECKING:
    import pyarrow as pa


def key_columns(codec: RowCodec, keys: Sequence[bytes]) -> list[pa.Array]:
    """The key columns of stored keys; of a store of Python one, with JSON texts.

    Raises:
        FormatError: They are no such keys.
    """
    if isinstance(codec, Codec):
        from redis_state.reader import columnar

        try:
            return columnar.key_arrays(codec, keys)
        except columnar.OneByOneError:
            pass
    return _row_by_row(codec.columns[0], [codec.key_row(key) for key in keys])


def value_columns(codec: RowCodec, values: Sequence[bytes]) -> list[pa.Array]:
    """The value columns of values that are no lists; of a store of Python one, with JSON texts.

    Raises:
        FormatError: They are no such values.
    """
    if isinstance(codec, Codec):
        from redis_state.reader import columnar

        try:
            return columnar.value_arrays(codec, values)
        except columnar.OneByOneError:
            pass
    return _row_by_row(codec.columns[1], [codec.value_row(value) for value in values])


def _row_by_row(columns: Struct | None, rows: Sequence[Sequence[Any]]) -> list[pa.Array]:
    if columns is None:
        import pyarrow as pa

        return [pa.array([json_text(row[0]) for row in rows], type=pa.string())]
    return [
        arrow_array(field.type, [row[at] for row in rows])
        for at, field in enumerate(columns.fields)
    ]
