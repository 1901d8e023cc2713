"""Which keys a filter leaves: equalities of key columns as the keys that `get_many` takes.

A key column of a struct, such as a window, is a path for each of its parts. What is left out of the
filter is tested by who asked, on every row; the keys are only fewer rows to test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from redis_state.codec.single_values import INTEGERS
from redis_state.rows.spark_types import Struct, Type

KEYS_MAX = 10_000
"""The most keys that a filter stands for; with more, rows are read in their order."""

ColumnPath = tuple[str, ...]
"""Name of a column, and the names of the fields inside of it."""

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
    """The parts of a key by their paths, and the type of each.

    Returns:
        ``None`` if a key cannot be told by equalities: it has numbers with fractions, whose equal
        values may differ in bytes, or a list, a map or a collated string.
    """
    found: dict[ColumnPath, str] = {}
    for name, kind in _parts(key, ()):
        if isinstance(kind, Struct) or name in found:
            return None
        if getattr(kind, "collated", True) or getattr(kind, "name", "") not in _KINDS:
            return None
        found[name] = kind.name  # type: ignore[union-attr]  # only an Atomic has a collation
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
    """The keys whose parts all have one of these values.

    Args:
        equal: Values of parts by their paths; a part that is not there may have any value. Times
            with a zone are in UTC: in another one, two of them may be equal and not the same.

    Returns:
        Keys by name, each once; ``None`` if there is a part without values, a value of another type
        than its part, or more than `KEYS_MAX` keys.
    """
    parts = leaves(key)
    if not parts or any(path not in equal for path in parts):
        return None
    values: list[list[Any]] = []
    for path, kind in parts.items():
        if any(type(value) is not _KINDS[kind] for value in equal[path]):
            return None
        # A number that the part cannot hold is in no row.
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
