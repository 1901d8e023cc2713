"""Values that were found, as `get_many` gives them: many of one family at once where it can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby, repeat
from typing import Any

from redis_state.reader.asked_keys import MANY
from redis_state.reader.keyed import Hits
from redis_state.reader.rows.codec import Codec
from redis_state.reader.rows.spark_types import Atomic
from redis_state.reader.table_columns import RowCodec

# Of these Arrow hands out the very objects that a single row has.
_SAME = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary"}
)


def decoded(hits: Hits) -> list[Any]:
    """The value of each key, in their order, ``None`` where there is none; of list state a list.

    Raises:
        FormatError: Bytes are no such value.
    """
    found: list[Any] = [None] * len(hits)
    # The rows of a partition have one codec, and most often those of all have.
    for _, groups in groupby(hits.groups, key=lambda group: id(group.codec)):
        together = list(groups)
        values = [value for group in together for value in group.values]
        codec = together[0].codec
        rows: list[Any] | None = _together(codec, values)
        if rows is None:
            decode = codec.decode_values if codec.family.multi_value else codec.decode_value
            rows = list(map(decode, values))
        for at, row in zip(chain.from_iterable(one.places for one in together), rows, strict=True):
            found[at] = row
    return found


def _together(codec: RowCodec, values: Sequence[bytes]) -> list[dict[str, Any]] | None:
    if len(values) < MANY or not isinstance(codec, Codec) or codec.family.multi_value:
        return None
    fields = codec.values.columns.fields
    # Without columns there is nothing that says how many rows there are.
    if not fields or not all(
        isinstance(one.type, Atomic) and one.type.name in _SAME for one in fields
    ):
        return None
    try:
        from redis_state.reader import columnar
    except ImportError:  # they come with the extra `arrow`
        return None
    try:
        arrays = columnar.value_arrays(codec, values)
    except columnar.OneByOneError:
        return None
    names = codec.values.columns.labels
    columns = [array.to_pylist() for array in arrays]
    # All of it without a step of Python for each row.
    return list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))
