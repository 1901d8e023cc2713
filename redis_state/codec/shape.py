"""Rules that convert Python objects to values for msgpack, and back; no I/O.

A rule is compiled once from a type (`type_hints`) and works in both directions: `plain` accepts
only values that `build` can restore. Records become maps by field name, tuples and sets lists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NoReturn

from redis_state.types.single_values import Misfit, class_name

DEPTH_MAX = 64
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1


class Shape(ABC):
    """Conversion between the values of a type and their stored form.

    Attributes:
        name: Name of the type in errors.
        exact: Classes whose values are stored unchanged. msgpack bounds whole numbers.
        runs_code: True if building a value runs code of its class, which may change or reject it.
    """

    name: str
    exact: frozenset[type] = frozenset()
    runs_code = False

    @abstractmethod
    def plain(self, value: Any, depth: int) -> Any:
        """Converts a value to types that msgpack writes; copies whatever is mutable.

        Raises:
            Misfit: `build` would not restore the same value.
        """

    @abstractmethod
    def build(self, plain: Any, *, lenient: bool) -> Any:
        """Builds the value from its stored form.

        Args:
            lenient: Ignores fields that a record does not know; otherwise they are an error.

        Raises:
            Misfit: The stored value does not have the form of the type.
            FormatError: A record has other fields than its class.
        """


class StoredAsIs(Shape):
    """A shape whose stored form is the value."""

    def build(self, plain: Any, *, lenient: bool) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.build`."""
        return plain


def misfit(value: Any, wanted: str) -> NoReturn:
    """Raises for a value of another type."""
    not_that = f", not {wanted}" if wanted else ""
    raise Misfit(f"is a {class_name(value)}{not_that}")


def mismatch(plain: object, wanted: str) -> NoReturn:
    """Raises for a value that was stored in another form."""
    raise Misfit(f"was stored as a {type(plain).__name__}, not as {wanted}")


def plain_items(values: Iterable[Any], of: Shape, depth: int) -> list[Any]:
    """Converts the items of a list, as `Shape.plain` does."""
    exact, plain, depth = of.exact, of.plain, depth + 1
    try:
        return [one if type(one) in exact else plain(one, depth) for one in values]
    except Misfit as error:
        raise error.below("[]", "") from None


def plain_dict(
    value: dict[Any, Any],
    key_of: Shape,
    of: Shape,
    depth: int,
    parts: dict[str, Shape] | None = None,
) -> dict[Any, Any]:
    """Converts the keys and values of a dict, as `Shape.plain` does.

    Args:
        parts: Shapes of the values of some keys; all other values have the shape `of`.
    """
    exact, keys, part = of.exact, key_of.exact, of.plain
    plain: dict[Any, Any] = {}
    is_key = True
    try:
        for key, one in value.items():
            is_key = True
            found = key if type(key) in keys else key_of.plain(key, depth + 1)
            is_key = False
            if parts and key in parts:
                plain[found] = parts[key].plain(one, depth + 1)
            else:
                plain[found] = one if type(one) in exact else part(one, depth + 1)
    except Misfit as error:
        if is_key:
            error.path = "{key}"
            raise error from None
        raise error.below("[]", "") from None
    return plain
