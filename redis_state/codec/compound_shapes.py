"""Shapes of lists, sets, tuples, dicts and records; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.codec.shape import DEPTH_MAX, Shape, misfit, mismatch, plain_dict, plain_items
from redis_state.errors import FormatError
from redis_state.types.single_values import Misfit


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
        plain = plain_items(value, self.of, depth)
        if self.is_sorted:
            plain.sort(key=lambda one: cast(bytes, msgpack.packb(one, datetime=True)))
        return plain

    def build(self, plain: Any, *, lenient: bool) -> Any:
        """Implements `Shape.build`."""
        if not isinstance(plain, list):
            mismatch(plain, "a list")
        try:
            return self.make([self.of.build(one, lenient=lenient) for one in plain])
        except Misfit as error:
            raise error.below("[]", "") from None


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
        return plain_dict(value, self.key, self.of, depth, self.parts)

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


def _is_tuple(value: object) -> bool:
    return isinstance(value, tuple) and not hasattr(value, "_fields")
