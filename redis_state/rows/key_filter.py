"""Translates equalities of key columns in a filter into the keys that `get_many` takes.

A struct in a key, such as a window, has one path for each of its parts. The caller still tests the
whole filter on every row; the keys only reduce the rows to test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from redis_state.types.schema import INTEGERS, Atomic, Struct, Type

KEYS_MAX = 10_000
"""Most keys that replace a scan. A filter with more keys reads the rows in their order."""

ColumnPath = tuple[str, ...]
"""Name of a column, followed by the names of the fields inside of it."""

_KINDS: Mapping[str, type] = {
    "boolean": bool,
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "date": date,
    "timestamp": datetime,
    "timestamp_ntz": datetime,
    "string": str,
    "binary": bytes,
}


def leaves(key: Struct) -> dict[ColumnPath, str] | None:
    """Returns the parts of a key by their paths, and the type of each.

    Returns:
        ``None`` if equalities cannot identify a key: it has a number with a fraction, whose equal
        values may differ in bytes, or a list, a map or a collated string.
    """
    found: dict[ColumnPath, str] = {}
    for name, kind in _parts(key, ()):
        if not isinstance(kind, Atomic) or name in found:
            return None
        if kind.collation or kind.name not in _KINDS:
            return None
        found[name] = kind.name
    return found


def _parts(struct: Struct, above: ColumnPath) -> list[tuple[ColumnPath, Type]]:
    found: list[tuple[ColumnPath, Type]] = []
    for field in struct.fields:
        path = (*above, field.name)
        if isinstance(field.type, Struct) and field.type.fields:
            found += _parts(field.type, path)
        else:
            found.append((path, field.type))
    return found


def keys_of(key: Struct, equal: Mapping[ColumnPath, Sequence[Any]]) -> list[dict[str, Any]] | None:
    """Returns the keys whose parts all have one of the given values.

    Args:
        equal: Values of parts by their paths; a missing part may have any value. Times with a zone
            are in UTC, because equal times in different zones are not the same object.

    Returns:
        Distinct keys by name; ``None`` if a part has no values, a value has another type than its
        part, or there are more than `KEYS_MAX` keys.
    """
    parts = leaves(key)
    if not parts or any(path not in equal for path in parts):
        return None
    values: list[list[Any]] = []
    for path, kind in parts.items():
        if any(type(value) is not _KINDS[kind] for value in equal[path]):
            return None
        # No row contains a number out of the part's range.
        low, high = INTEGERS.get(kind, (None, None))
        values.append(
            [
                value
                for value in dict.fromkeys(equal[path])
                if low is None or high is None or low <= value <= high
            ]
        )
    if math.prod(map(len, values)) > KEYS_MAX:
        return None
    return [_nested(tuple(parts), chosen) for chosen in itertools.product(*values)]


def _nested(paths: Sequence[ColumnPath], values: Sequence[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in zip(paths, values, strict=True):
        at = made
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = value
    return made
