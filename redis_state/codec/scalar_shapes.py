"""Shapes of scalars, and of values without a declared type; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from types import NoneType
from typing import Any

from redis_state.codec.shape import (
    DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    Shape,
    StoredAsIs,
    misfit,
    plain_dict,
    plain_items,
)
from redis_state.types.single_values import Misfit, class_name, is_numpy_time, plain_scalar

KEYS: frozenset[type] = frozenset({str, int, float, bool, bytes, NoneType})
SCALARS: frozenset[type] = frozenset({*KEYS, datetime})
_EDGES = (1, 9999)
UNDECLARED = "where no type is declared"


@dataclass(slots=True)
class Scalars(StoredAsIs):
    """Values of the given classes, all of which msgpack supports natively."""

    name: str
    exact: frozenset[type]
    times: bool = False

    def plain(self, value: Any, depth: int) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.plain`."""
        if type(value) in self.exact:
            return value
        found = scalar(value)
        fits = type(found) in self.exact or (self.times and type(found) is datetime)
        return found if fits else misfit(value, self.name)


@dataclass(slots=True)
class LiteralShape(StoredAsIs):
    """Values that `Literal` lists."""

    name: str
    values: tuple[Any, ...]

    def plain(self, value: Any, depth: int) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.plain`."""
        found = plain_scalar(value)
        if any(type(one) is type(found) and one == found for one in self.values):
            return found
        if any(type(one) is type(found) for one in self.values):
            raise Misfit(f"is not one of {self.name}")
        return misfit(value, self.name)


class Undeclared(StoredAsIs):
    """Values that come back unchanged without a declared type: scalars, lists and dicts."""

    name = "None, bool, int, float, str, bytes, datetime, or a list or dict of these"
    exact = KEYS

    def plain(self, value: Any, depth: int) -> Any:
        """Implements `Shape.plain`."""
        kind = type(value)
        if kind in KEYS:
            return value
        if depth > DEPTH_MAX:
            raise Misfit(f"is nested more than {DEPTH_MAX} deep")
        if kind is list:
            return plain_items(value, self, depth)
        if kind is dict:
            return plain_dict(value, ANY_KEY, self, depth)
        found = scalar(value)
        if type(found) in SCALARS:
            return found
        if _is_compound(value):
            raise Misfit(f"is a {class_name(value)} {UNDECLARED}")
        return misfit(value, "")


class AnyKey(StoredAsIs):
    """Key of a dict without a declared key type."""

    name = "None, bool, int, float, str, bytes or datetime"
    exact = KEYS

    def plain(self, value: Any, depth: int) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.plain`."""
        found = value if type(value) in KEYS else scalar(value)
        return found if type(found) in SCALARS else misfit(value, "")


UNTYPED, ANY_KEY = Undeclared(), AnyKey()


@dataclass(slots=True)
class Enumerated(Shape):
    """Members of an enum, stored by their values."""

    name: str
    cls: type[Enum]

    def plain(self, value: Any, depth: int) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.plain`."""
        return value.value if isinstance(value, self.cls) else misfit(value, self.name)

    def build(self, plain: Any, *, lenient: bool) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.build`."""
        try:
            return self.cls(plain)
        except ValueError:
            raise Misfit(f"was stored as a value that {self.name} does not have") from None


def scalar(value: Any) -> Any:
    """Converts a scalar of NumPy or pandas, or a time, for msgpack; returns other values unchanged.

    Raises:
        Misfit: A time has no zone, or would not come back; an int has more than 64 bits.
    """
    if is_numpy_time(value):
        raise Misfit(f"is a {class_name(value)}, which has no time zone")
    if isinstance(value, datetime) and value == value:
        return _moment(value)
    found = plain_scalar(value)
    if type(found) is int and not INT_MIN <= found <= INT_MAX:
        raise Misfit("is an int of more than 64 bits")
    return found


def _moment(value: datetime) -> Any:
    if hasattr(value, "to_pydatetime"):
        if getattr(value, "nanosecond", 0):
            raise Misfit("is a time finer than a microsecond, such as floor('us') rounds")
        value = value.to_pydatetime()
    if type(value) is not datetime:
        return value
    if value.utcoffset() is None:
        raise Misfit("is a datetime without a time zone")
    if value.year in _EDGES:
        try:
            value.astimezone(timezone.utc)
        except OverflowError:
            raise Misfit("is a datetime outside the years 1 to 9999 in UTC") from None
    return value


def _is_compound(value: object) -> bool:
    """Returns whether a value could be stored if its type was declared."""
    return isinstance(value, (tuple, set, frozenset, Enum)) or hasattr(
        type(value), "__dataclass_fields__"
    )
