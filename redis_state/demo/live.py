"""Reads of the running job's state, by key, from another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import cycle
from typing import Any

from redis_state.errors import NotFoundError
from redis_state.live import Reader
from redis_state.types.schema import Row

_KEYS = (
    ("carriers", {"carrier": "UA"}),
    ("aircraft", {"tailnum": "N725MQ"}),
    ("rotations", {"tailnum": "N258JB"}),
    ("carriers", {"carrier": "DL"}),
)


def reads(reader: Reader) -> Iterator[str]:
    """Yields endlessly: each step reads one key now and describes its value in a line."""
    for query, key in cycle(_KEYS):
        (name,) = key.values()
        try:
            value = reader.query(query).operator(0).get(key)
        except NotFoundError:
            value = None
        yield f"{query:9} {name:6} " + (_text(value) if value else "nothing yet")


def _text(columns: Mapping[str, Any]) -> str:
    """Formats the columns of one state row; columns of a nested row count as its own."""
    parts: list[str] = []
    for column, value in columns.items():
        if isinstance(value, Row):
            parts.append(_text(value.as_dict()))
        elif isinstance(value, datetime):
            parts.append(f"{column} {value:%Y-%m-%d %H:%M}")
        else:
            parts.append(f"{column} {value}")
    return ", ".join(parts)
