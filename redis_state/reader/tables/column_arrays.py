"""Stored keys and values as Arrow arrays, a column each: all at once where `columnar` can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis_state.reader.table_columns import RowCodec
from redis_state.rows.arrow_types import arrow_type, named_array
from redis_state.rows.codec import FamilyCodec
from redis_state.rows.json_values import json_text
from redis_state.types.schema import Type

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_state.rows.row_matrix import Pieces


def key_columns(codec: RowCodec, keys: Pieces) -> list[pa.Array]:
    """Returns the key columns of stored keys; of a store of Python one column of JSON texts.

    Raises:
        FormatError: The bytes are not such keys.
    """
    return _columns(codec, 0, keys)


def value_columns(codec: RowCodec, values: Pieces) -> list[pa.Array]:
    """Returns the value columns of single values; of a store of Python one of JSON texts.

    Raises:
        FormatError: The bytes are not such values.
    """
    return _columns(codec, 1, values)


def _columns(codec: RowCodec, part: int, pieces: Pieces) -> list[pa.Array]:
    if isinstance(codec, FamilyCodec):
        from redis_state.rows import columnar

        arrays_of = (columnar.key_arrays, columnar.value_arrays)[part]
        try:
            return _whole(codec, part, arrays_of(codec, pieces), len(pieces))
        except columnar.NotColumnarError:
            pass
    row_of = (codec.key_row, codec.value_row)[part]
    return _row_by_row(codec, part, [row_of(piece) for piece in _bytes(pieces)])


def _bytes(pieces: Pieces) -> Sequence[bytes]:
    if isinstance(pieces, Sequence):
        return pieces
    from redis_state.rows.row_matrix import split

    return split(pieces)


def _whole(codec: FamilyCodec, part: int, arrays: list[pa.Array], rows: int) -> list[pa.Array]:
    """Returns the arrays, with typed nulls in place of columns that are not requested."""
    if codec.asked is None:
        return arrays
    fields = codec.columns[part].fields
    return [
        array if at in codec.asked[part] else _nulls(field.type, rows)
        for at, (array, field) in enumerate(zip(arrays, fields, strict=True))
    ]


def _nulls(type_: Type, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(rows, arrow_type(type_))


def _row_by_row(codec: RowCodec, part: int, rows: Sequence[Sequence[Any]]) -> list[pa.Array]:
    columns, asked = codec.columns[part], None if codec.asked is None else codec.asked[part]
    if columns is None:
        import pyarrow as pa

        return [pa.array([json_text(row[0]) for row in rows], type=pa.string())]
    return [
        named_array(field.name, field.type, [row[at] for row in rows])
        if asked is None or at in asked
        else _nulls(field.type, len(rows))
        for at, field in enumerate(columns.fields)
    ]
