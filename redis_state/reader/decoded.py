"""Values that were found, as `get_many` gives them: many of one family at once where it can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from redis_state.reader.asked_keys import MANY
from redis_state.reader.keyed import Hit
from redis_state.reader.rows.codec import Codec
from redis_state.reader.rows.spark_types import Atomic

# Of these Arrow hands out the very objects that a single row has.
_SAME = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary"}
)


def decoded(hits: Sequence[Hit | None]) -> list[Any]:
    """The value of each hit; of list state a list.

    Raises:
        FormatError: Bytes are no such value.
    """
    there = [hit for hit in hits if hit is not None]
    rows: list[Any] | None = _together(there)
    if rows is None:
        rows = [
            codec.decode_values(value) if codec.family.multi_value else codec.decode_value(value)
            for codec, value in there
        ]
    rest = iter(rows)
    return [None if hit is None else next(rest) for hit in hits]


def _together(hits: Sequence[Hit]) -> list[dict[str, Any]] | None:
    if len(hits) < MANY or len({id(codec) for codec, _ in hits}) > 1:
        return None
    codec = hits[0][0]
    if not isinstance(codec, Codec) or codec.family.multi_value:
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
        arrays = columnar.value_arrays(codec, [value for _, value in hits])
    except columnar.OneByOneError:
        return None
    names = codec.values.columns.names
    columns = [array.to_pylist() for array in arrays]
    # All of it without a step of Python for each row.
    return list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))
