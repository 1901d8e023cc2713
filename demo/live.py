"""Reads of the running job's state, by key, from another process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from redis_state.errors import NotFoundError
from redis_state.reader import Reader

_KEYS = (
    ("carriers", {"carrier": "UA"}),
    ("aircraft", {"tailnum": "N725MQ"}),
    ("rotations", {"tailnum": "N258JB"}),
    ("carriers", {"carrier": "DL"}),
)


def reads(reader: Reader) -> Iterator[str]:
    """Endless: each step reads one key now and says in a line what is there."""
    for query, key in cycle(_KEYS):
        (name,) = key.values()
        try:
            value = reader.query(query).operator(0).get(key)
        except NotFoundError:
            value = None
        yield f"{query:9} {name:6} " + (_text(value) if value else "nothing yet")


def _text(value: dict[str, Any]) -> str:
    """The columns of one state row; those of a nested row count as its own."""
    parts: list[str] = []
    for column, one in value.items():
        parts.append(_text(one) if isinstance(one, dict) else f"{column} {one}")
    return ", ".join(parts)
