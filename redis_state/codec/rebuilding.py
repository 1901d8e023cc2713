"""Compares an object with its copy that was rebuilt from the stored fields; no I/O."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from redis_state.codec.shapes import parts_of


def lost_part(value: Any, back: Any) -> str | None:
    """Returns the path to the first difference, or ``None``.

    Ignores fields that a class excludes from comparisons.
    """
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            if not one.init and one.compare and not _same(value, back, one.name):
                return f".{one.name}"
    mine, other = list(parts_of(value)), list(parts_of(back))
    if not mine and not other:
        return None if _equal(value, back) else ""
    if isinstance(value, (set, frozenset)):
        return None if _equal(value, back) else ""
    if len(mine) != len(other) or type(value) is not type(back):
        return ""
    for (part, one), (_, again) in zip(mine, other, strict=True):
        below = lost_part(one, again)
        if below is not None:
            return part + below
    return None


def _same(value: Any, back: Any, name: str) -> bool:
    missing = object()
    return _equal(getattr(value, name, missing), getattr(back, name, missing))


def _equal(one: Any, other: Any) -> bool:
    try:
        # Only NaN differs from itself.
        return one is other or bool(one == other) or bool(one != one and other != other)
    except Exception:  # noqa: BLE001  # the code of a user's class
        return False
