"""Walks the parts of an object: those that cannot be written, or that a copy has lost; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from redis_state.codec.shape import INT_MAX, INT_MIN
from redis_state.types.single_values import Misfit


def unwritable(value: Any) -> Misfit | None:
    """Finds the part that msgpack cannot write in an object of the right form."""
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        return Misfit("is an int of more than 64 bits")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return Misfit("is a str with half of a surrogate pair")
    for part, one in parts_of(value):
        if found := unwritable(one):
            if part != "{key}":
                return found.below(part, "")
            found.path = part
            return found
    return None


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a value, each with its step of a path."""
    if is_dataclass(value):
        yield from ((f".{one.name}", getattr(value, one.name)) for one in fields(value) if one.init)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", one) for name, one in zip(value._fields, value, strict=True))
    elif isinstance(value, dict):
        yield from (("{key}", key) for key in value)
        yield from (("[]", one) for one in value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (("[]", one) for one in value)


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
