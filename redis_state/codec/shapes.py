"""Rules that convert Python objects to values for msgpack, and back; no I/O.

A rule is compiled once from a type (`type_hints`) and works in both directions: `plain` accepts
only values that `build` can restore. Records become maps by field name, tuples and sets lists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from enum import Enum
from types import NoneType
from typing import Any, NoReturn, cast

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.codec.single_values import Misfit, class_name, is_numpy_time, plain_scalar
from redis_state.errors import FormatError

DEPTH_MAX = 64
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1
KEYS: frozenset[type] = frozenset({str, int, float, bool, bytes, NoneType})
SCALARS: frozenset[type] = frozenset({*KEYS, datetime})
_EDGES = (1, 9999)
UNDECLARED = "where no type is declared"


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


@dataclass(slots=True)
class Scalars(Shape):
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

    def build(self, plain: Any, *, lenient: bool) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.build`."""
        return plain


@dataclass(slots=True)
class LiteralShape(Shape):
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

    def build(self, plain: Any, *, lenient: bool) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.build`."""
        return plain


class Undeclared(Shape):
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
            return _each(value, self, depth)
        if kind is dict:
            return _items(value, ANY_KEY, self, depth)
        found = scalar(value)
        if type(found) in SCALARS:
            return found
        if _is_compound(value):
            raise Misfit(f"is a {class_name(value)} {UNDECLARED}")
        return misfit(value, "")

    def build(self, plain: Any, *, lenient: bool) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.build`."""
        return plain


class AnyKey(Shape):
    """Key of a dict without a declared key type."""

    name = "None, bool, int, float, str, bytes or datetime"
    exact = KEYS

    def plain(self, value: Any, depth: int) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.plain`."""
        found = value if type(value) in KEYS else scalar(value)
        return found if type(found) in SCALARS else misfit(value, "")

    def build(self, plain: Any, *, lenient: bool) -> Any:  # noqa: ARG002  # as Shape's
        """Implements `Shape.build`."""
        return plain


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


@dataclass(slots=True)
class Items(Shape):
    """A list, a set, or a tuple of any length."""

    name: str
    make: Callable[[Iterable[Any]], Any]
    classes: tuple[type, ...]
    of: Shape
    is_sorted: bool = False

    @property
    def runs_code(self) -> bool:  # type: ignore[override]  # read only
        """True if the items run code."""
        return self.of.runs_code

    def plain(self, value: Any, depth: int) -> Any:
        """Implements `Shape.plain`."""
        if type(value) not in self.classes and not (tuple in self.classes and _is_tuple(value)):
            misfit(value, self.name)
        plain = _each(value, self.of, depth)
        if self.is_sorted:
            plain.sort(key=lambda one: cast(bytes, msgpack.packb(one, datetime=True)))
        return plain

    def build(self, plain: Any, *, lenient: bool) -> Any:
        """Implements `Shape.build`."""
        if not isinstance(plain, list):
            mismatch(plain, "a list")
        return self.make(_built(plain, self.of, lenient))


@dataclass(slots=True)
class FixedTuple(Shape):
    """A tuple with a type for each position."""

    name: str
    of: tuple[Shape, ...]

    @property
    def runs_code(self) -> bool:  # type: ignore[override]  # read only
        """True if an item runs code."""
        return any(one.runs_code for one in self.of)

    def plain(self, value: Any, depth: int) -> Any:
        """Implements `Shape.plain`."""
        if not _is_tuple(value):
            misfit(value, self.name)
        if len(value) != len(self.of):
            raise Misfit(f"is a tuple of {len(value)}, not {self.name}")
        try:
            return [shape.plain(one, depth + 1) for shape, one in zip(self.of, value, strict=True)]
        except Misfit as error:
            raise error.below("[]", "") from None

    def build(self, plain: Any, *, lenient: bool) -> Any:
        """Implements `Shape.build`."""
        if not isinstance(plain, list) or len(plain) != len(self.of):
            mismatch(plain, f"a list of {len(self.of)}")
        pairs = zip(self.of, plain, strict=True)
        try:
            return tuple([shape.build(one, lenient=lenient) for shape, one in pairs])
        except Misfit as error:
            raise error.below("[]", "") from None


@dataclass(slots=True)
class Dicts(Shape):
    """A dict. `parts` has the types of some keys' values; all other values have the type `of`."""

    name: str
    key: Shape
    of: Shape
    parts: dict[str, Shape] = field(default_factory=dict)

    @property
    def runs_code(self) -> bool:  # type: ignore[override]  # read only
        """True if a value runs code."""
        return self.of.runs_code or any(one.runs_code for one in self.parts.values())

    def plain(self, value: Any, depth: int) -> Any:
        """Implements `Shape.plain`."""
        if type(value) is not dict:
            misfit(value, self.name)
        return _items(value, self.key, self.of, depth, self.parts)

    def build(self, plain: Any, *, lenient: bool) -> Any:
        """Implements `Shape.build`."""
        if not isinstance(plain, dict):
            mismatch(plain, "a map")
        try:
            if self.parts:
                return {
                    key: self.parts.get(key, self.of).build(one, lenient=lenient)
                    for key, one in plain.items()
                }
            return {
                self.key.build(key, lenient=lenient): self.of.build(one, lenient=lenient)
                for key, one in plain.items()
            }
        except Misfit as error:
            raise error.below("[]", "") from None


@dataclass(slots=True)
class Optional(Shape):
    """None, or a value of another shape."""

    name: str
    of: Shape

    @property
    def runs_code(self) -> bool:  # type: ignore[override]  # read only
        """True if the value runs code."""
        return self.of.runs_code

    def plain(self, value: Any, depth: int) -> Any:
        """Implements `Shape.plain`."""
        return None if value is None else self.of.plain(value, depth)

    def build(self, plain: Any, *, lenient: bool) -> Any:
        """Implements `Shape.build`."""
        return None if plain is None else self.of.build(plain, lenient=lenient)


class RecordShape(Shape):
    """A dataclass or named tuple. Fields are added later, because a record may contain itself."""

    __slots__ = ("_fields", "_parts", "make", "name", "runs_code")

    def __init__(self, cls: type, *, runs_code: bool) -> None:
        self.name = cls.__name__
        self.make: Any = cls
        self.runs_code = runs_code
        self._fields: dict[str, tuple[Shape, bool]] = {}
        self._parts: list[tuple[str, frozenset[type], Callable[[Any, int], Any]]] = []

    def add(self, name: str, shape: Shape, *, required: bool) -> None:
        """Adds a field."""
        self._fields[name] = (shape, required)
        self._parts.append((name, shape.exact, shape.plain))
        self.runs_code = self.runs_code or (shape is not self and shape.runs_code)

    def plain(self, value: Any, depth: int) -> Any:
        """Implements `Shape.plain`."""
        if type(value) is not self.make:
            misfit(value, self.name)
        if depth > DEPTH_MAX:
            raise Misfit(f"is nested more than {DEPTH_MAX} deep")
        plain = {}
        name = ""
        try:
            for name, exact, part in self._parts:
                one = getattr(value, name)
                plain[name] = one if type(one) in exact else part(one, depth + 1)
        except Misfit as error:
            raise error.below(f".{name}", "") from None
        except AttributeError:
            raise Misfit("has no value").below(f".{name}", "") from None
        return plain

    def build(self, plain: Any, *, lenient: bool) -> Any:
        """Implements `Shape.build`."""
        if not isinstance(plain, dict):
            mismatch(plain, "a map")
        fields = self._fields
        if not lenient and not plain.keys() <= fields.keys():
            unknown = sorted(str(name) for name in plain if name not in fields)
            raise FormatError(
                "reading an object",
                found=f"{self.name} was stored with the field '{unknown[0]}', which the class "
                "does not have",
                advice="Read it with the newer class, or raise the version to drop the field.",
            )
        values = {}
        name = ""
        try:
            for name, (shape, required) in fields.items():
                if name in plain:
                    values[name] = shape.build(plain[name], lenient=lenient)
                elif required:
                    raise FormatError(
                        "reading an object",
                        found=f"{self.name} was stored without the field '{name}', which has no "
                        "default",
                        advice=(
                            "Give the field a default value, or give the state object a migrate "
                            "function."
                        ),
                    )
        except Misfit as error:
            raise error.below(f".{name}", "") from None
        return self.make(**values)


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


def misfit(value: Any, wanted: str) -> NoReturn:
    """Raises for a value of another type."""
    not_that = f", not {wanted}" if wanted else ""
    raise Misfit(f"is a {class_name(value)}{not_that}")


def mismatch(plain: object, wanted: str) -> NoReturn:
    """Raises for a value that was stored in another form."""
    raise Misfit(f"was stored as a {type(plain).__name__}, not as {wanted}")


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


def _is_tuple(value: object) -> bool:
    return isinstance(value, tuple) and not hasattr(value, "_fields")


def _is_compound(value: object) -> bool:
    """Returns whether a value could be stored if its type was declared."""
    return isinstance(value, (tuple, set, frozenset, Enum)) or hasattr(
        type(value), "__dataclass_fields__"
    )


def _each(values: Iterable[Any], of: Shape, depth: int) -> list[Any]:
    exact, plain, depth = of.exact, of.plain, depth + 1
    try:
        return [one if type(one) in exact else plain(one, depth) for one in values]
    except Misfit as error:
        raise error.below("[]", "") from None


def _items(
    value: dict[Any, Any],
    key_of: Shape,
    of: Shape,
    depth: int,
    parts: dict[str, Shape] | None = None,
) -> dict[Any, Any]:
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


def _built(plain: list[Any], of: Shape, lenient: bool) -> list[Any]:
    try:
        return [of.build(one, lenient=lenient) for one in plain]
    except Misfit as error:
        raise error.below("[]", "") from None
