"""Converts values of a state row to the types of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from redis_state.rows.variants import Variant
from redis_state.types.schema import Row
from redis_state.types.values import Internal


def to_json(value: Any) -> Any:
    """Converts a value of a state row to JSON types; a value without a JSON type becomes text."""
    if isinstance(value, Internal):
        return value.isoformat()
    if isinstance(value, Variant):
        return {"value": value.value.hex(), "metadata": value.metadata.hex()}
    if isinstance(value, Row):
        return to_json(value.as_dict())
    if isinstance(value, Mapping):
        return {str(to_json(name)): to_json(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    return value


def json_text(value: Any) -> str | None:
    """Returns a value as JSON text; ``None`` stays ``None``."""
    return None if value is None else json.dumps(to_json(value), ensure_ascii=False)
