"""Decodes the values of `get_many`, many of one family at once where possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby, repeat
from typing import Any

from redis_state.reader.lookup.asked_keys import MANY
from redis_state.reader.lookup.key_search import Hits
from redis_state.reader.table_columns import RowCodec, value_decoder
from redis_state.rows.codec import FamilyCodec
from redis_state.types.schema import Atomic

# For these types Arrow returns the same Python objects as the decoder of single rows.
_SAME = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary"}
)


def decoded(hits: Hits) -> list[Any]:
    """Returns the value of each key in order, ``None`` for absent keys; of list state a list.

    Raises:
        FormatError: The bytes are not such a value.
    """
    found: list[Any] = [None] * len(hits)
    # The rows of a partition have one codec; most often all partitions share it.
    for _, groups in groupby(hits.groups, key=lambda group: id(group.codec)):
        together = list(groups)
        values = [value for group in together for value in group.values]
        codec = together[0].codec
        rows: list[Any] | None = _together(codec, values)
        if rows is None:
            rows = list(map(value_decoder(codec), values))
        for at, row in zip(chain.from_iterable(one.places for one in together), rows, strict=True):
            found[at] = row
    return found


def _together(codec: RowCodec, values: Sequence[bytes]) -> list[dict[str, Any]] | None:
    if len(values) < MANY or not isinstance(codec, FamilyCodec) or codec.family.multi_value:
        return None
    fields = codec.values.columns.fields
    # Without columns, nothing gives the number of rows.
    if not fields or not all(
        isinstance(one.type, Atomic) and one.type.name in _SAME for one in fields
    ):
        return None
    try:
        from redis_state.rows import columnar
    except ImportError:  # they come with the extra `arrow`
        return None
    try:
        arrays = columnar.value_arrays(codec, values)
    except columnar.NotColumnarError:
        return None
    names = codec.values.columns.labels
    columns = [array.to_pylist() for array in arrays]
    # All of it without a step of Python for each row.
    return list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))
