"""Types of the columns that commands print of a store, for files of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_state.reader import OperatorState
from redis_state.types.schema import Array, Atomic, Struct, Type

BOOLEAN, LONG, STRING = Atomic("boolean", 1), Atomic("long", 8), Atomic("string", 0)

Types = Mapping[str, Type | None]
"""Types by column; ``None`` for a type that only the values have."""


def types_of(state: OperatorState, which: Mapping[str, Any]) -> tuple[Type | None, Type | None]:
    """Returns the types of a key and of a value; ``None`` in a store that Python keeps."""
    key, value = state.types(**which)
    lists = value is not None and state.family(**which).multi_value
    return key, Array(value) if lists and value is not None else value


def row_types(state: OperatorState, which: Mapping[str, Any]) -> Types:
    """Returns the types of the columns that `redis-state scan` prints, in their order."""
    key, value = types_of(state, which)
    if not isinstance(key, Struct):
        return {"key": None, "values" if state.family(**which).multi_value else "value": None}
    types: dict[str, Type | None] = {field.name: field.type for field in key.fields}
    if not isinstance(value, Struct):
        return types | {"values": value}
    return types | {
        f"value.{field.name}" if field.name in types else field.name: field.type
        for field in value.fields
    }
