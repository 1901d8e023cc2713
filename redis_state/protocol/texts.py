"""Parses text and JSON that any program may have written to Redis.

Parsed values can be encoded again, compared and counted. They have no half of a surrogate pair, no
`NaN`, no number beyond the format's range, and no nesting too deep for later steps.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from redis_state.ids import NUMBER_MAX, text_number

DEPTH_MAX = 256
"""Deepest nesting of objects and arrays. A Spark type takes three levels for each struct."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_INSTEAD = "\ufffd"


def parse_json(raw: bytes) -> Any:
    """Parses a UTF-8 JSON value; a half of a surrogate pair becomes U+FFFD.

    Raises:
        ValueError: The bytes are not UTF-8, not JSON, or nested deeper than `DEPTH_MAX`.
    """
    text = raw.decode()
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if text.count("[") + text.count("{") > DEPTH_MAX:
        _check_depth(value)
    return _encodable(value) if _ESCAPED_SURROGATE.search(text) else value


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parses a JSON object, like `parse_json`.

    Raises:
        ValueError: The bytes are not a JSON object.
    """
    value = parse_json(raw)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def is_number(value: object) -> bool:
    """Returns whether a parsed value is a whole number in the format's range."""
    return type(value) is int and 0 <= value <= NUMBER_MAX


def number_or_zero(raw: bytes | None) -> int:
    """Parses a number in the format's text form; 0 if absent or malformed."""
    return text_number((raw or b"").decode("ascii", "replace")) or 0


_TOO_DEEP = f"it is nested deeper than {DEPTH_MAX}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            below
            for one in level
            if isinstance(one, (dict, list))
            for below in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub(_INSTEAD, value)
    if isinstance(value, list):
        return [_encodable(one) for one in value]
    if isinstance(value, dict):
        return {_encodable(name): _encodable(one) for name, one in value.items()}
    return value
