"""Converts values of a state row to the types of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

from redis_state.rows.variants import Variant
from redis_state.types.schema import Row
from redis_state.types.values import Internal


def to_json(value: Any) -> Any:
    """Converts a value of a state row to JSON types; a value without a JSON type becomes text.

    A map two of whose keys are the same text becomes a list of pairs. `map` instead of
    comprehensions: each level of a nested value takes one frame of Python's stack.
    """
    if isinstance(value, Internal):
        return value.isoformat()
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Variant):
        return {"value": value.value.hex(), "metadata": value.metadata.hex()}
    if isinstance(value, Row):
        value = value.as_dict()
    if isinstance(value, Mapping):
        names, parts = map(to_json, value), list(map(to_json, value.values()))
        pairs = list(map(list, zip(names, parts, strict=True)))
        found = {_name(name): part for name, part in pairs}
        return found if len(found) == len(pairs) else pairs
    if isinstance(value, (list, tuple)):
        return list(map(to_json, value))
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    return str(value)


def _name(shown: Any) -> str:
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def json_text(value: Any) -> str | None:
    """Returns a value as JSON text; ``None`` stays ``None``."""
    return None if value is None else json.dumps(to_json(value), ensure_ascii=False)
