"""Python objects ↔ what msgpack can write, guided by type hints; no I/O.

Writing needs no hints: records become maps by field name, tuples and sets become lists. Reading
needs them: a `Shape` is compiled once from a type, so that a record can be built where its class's
module is not importable.
"""

from __future__ import annotations

import dataclasses
import typing
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.errors import ConfigError, FormatError

DEPTH_MAX = 64
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1
_KEYS = (str, int, float, bool, bytes, NoneType)
_SCALARS = (*_KEYS, datetime)
_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_SETS = (set, frozenset)
_STORABLE = (
    "These can be stored: None, bool, int, float, str, bytes, datetime with a time zone, "
    "dataclasses, named tuples, and lists, tuples, sets and dicts of these."
)


def to_plain(value: object, path: str, *, depth: int = 0) -> Any:
    """The same value of types that msgpack writes; a copy wherever it is mutable.

    Args:
        path: Names the value in an error, such as ``Session.pages``.

    Raises:
        ConfigError: A part cannot be stored; the message names it and its type.
    """
    kind = type(value)
    if kind is int:
        return value if INT_MIN <= typing.cast(int, value) <= INT_MAX else _too_large(path)
    if kind in _KEYS:
        return value
    if depth > DEPTH_MAX:
        _refuse(path, f"is nested more than {DEPTH_MAX} deep")
    deeper = depth + 1
    if kind is list or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        return [to_plain(one, f"{path}[]", depth=deeper) for one in typing.cast(list[Any], value)]
    if kind is dict:
        items = typing.cast(dict[Any, Any], value).items()
        return {_key(key, path): to_plain(one, f"{path}[]", depth=deeper) for key, one in items}
    record = _fields(value)
    if record is not None:
        return {name: to_plain(one, f"{path}.{name}", depth=deeper) for name, one in record.items()}
    if isinstance(value, _SETS):
        parts = [to_plain(one, f"{path}[]", depth=deeper) for one in value]
        return sorted(
            parts, key=lambda part: typing.cast(bytes, msgpack.packb(part, datetime=True))
        )
    return _foreign(value, path, depth)


def _foreign(value: object, path: str, depth: int) -> Any:
    """Times, and the scalars of numpy and pandas, which a function meets in a data frame."""
    if type(value) is datetime:
        if value.utcoffset() is None:
            _refuse(path, "is a datetime without a time zone")
        return value
    for name in ("to_pydatetime", "item"):
        convert = getattr(value, name, None)
        if convert is not None and type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
            converted = convert()
            if type(converted) in _SCALARS:
                return to_plain(converted, path, depth=depth)
    return _refuse(path, f"is a {type(value).__name__}")


def _fields(value: object) -> dict[str, Any] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]  # named
    return None


def _key(key: object, path: str) -> object:
    if type(key) in _KEYS:
        return to_plain(key, f"a key of {path}")
    return _foreign(key, f"a key of {path}", 0)


def _too_large(path: str) -> NoReturn:
    _refuse(path, "is an int of more than 64 bits")


def _refuse(path: str, found: str) -> NoReturn:
    raise ConfigError("writing an object", found=f"{path} {found}", advice=_STORABLE)


class Shape:
    """What a type makes of plain values; this one leaves them as they are."""

    def build(self, plain: Any, path: str, *, lenient: bool) -> Any:
        """The value of the type.

        Args:
            lenient: Leave out fields that a record does not know, which is an error otherwise.

        Raises:
            FormatError: The plain value does not have the form of the type.
        """
        del path, lenient
        return plain


@dataclass(slots=True)
class _Items(Shape):
    make: Any
    of: Shape

    def build(self, plain: Any, path: str, *, lenient: bool) -> Any:
        if not isinstance(plain, list):
            _mismatch(path, plain, "a list")
        return self.make(self.of.build(one, f"{path}[]", lenient=lenient) for one in plain)


@dataclass(slots=True)
class _Tuple(Shape):
    of: tuple[Shape, ...]

    def build(self, plain: Any, path: str, *, lenient: bool) -> Any:
        if not isinstance(plain, list) or len(plain) != len(self.of):
            _mismatch(path, plain, f"a list of {len(self.of)}")
        pairs = zip(self.of, plain, strict=True)
        return tuple(shape.build(one, f"{path}[]", lenient=lenient) for shape, one in pairs)


@dataclass(slots=True)
class _Dict(Shape):
    of: Shape

    def build(self, plain: Any, path: str, *, lenient: bool) -> Any:
        if not isinstance(plain, dict):
            _mismatch(path, plain, "a map")
        items = plain.items()
        return {key: self.of.build(one, f"{path}[]", lenient=lenient) for key, one in items}


@dataclass(slots=True)
class _Optional(Shape):
    of: Shape

    def build(self, plain: Any, path: str, *, lenient: bool) -> Any:
        return None if plain is None else self.of.build(plain, path, lenient=lenient)


@dataclass(slots=True)
class _Record(Shape):
    """A dataclass or named tuple. Its fields are filled in later, as it may contain itself."""

    make: Any
    fields: dict[str, tuple[Shape, bool]]

    def build(self, plain: Any, path: str, *, lenient: bool) -> Any:
        if not isinstance(plain, dict):
            _mismatch(path, plain, "a map")
        unknown = sorted(str(name) for name in plain if name not in self.fields)
        if unknown and not lenient:
            raise FormatError(
                "reading an object",
                found=f"{path} was stored with the field '{unknown[0]}', which the class does "
                "not have",
                advice="Read it with the newer class, or raise the version to drop the field.",
            )
        values = {}
        for name, (shape, required) in self.fields.items():
            if name in plain:
                values[name] = shape.build(plain[name], f"{path}.{name}", lenient=lenient)
            elif required:
                raise FormatError(
                    "reading an object",
                    found=f"{path} was stored without the field '{name}', which has no default",
                    advice="Give the field a default, or the state object a migrate function.",
                )
        return self.make(**values)


def _mismatch(path: str, plain: object, wanted: str) -> NoReturn:
    raise FormatError(
        "reading an object",
        found=f"{path} was stored as a {type(plain).__name__}, not as {wanted}",
        advice="Give the state object a migrate function that converts what was stored.",
    )


def shape_of(hint: Any, path: str, known: dict[Any, _Record] | None = None) -> Shape:
    """Compile a type.

    Raises:
        ConfigError: Values of the type could not be read back as such.
    """
    known = {} if known is None else known
    if hint in (Any, object) or hint is None or hint in _SCALARS or typing.is_typeddict(hint):
        return Shape()
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if origin is Literal:
        return Shape()
    if origin in (typing.Union, UnionType):
        return _union(arguments, path, known)
    if origin in _LISTS or origin in _SETS:
        return _Items(origin if origin in _SETS else list, _argument(arguments, path, known))
    if origin in _DICTS:
        return _Dict(_argument(arguments[1:], path, known))
    if origin is tuple:
        return _tuple(arguments, path, known)
    is_class = isinstance(origin, type)
    if is_class and (dataclasses.is_dataclass(origin) or _is_named_tuple(origin)):
        return _record(origin, known)
    raise ConfigError(
        "preparing a state object", found=f"{path} has the type {hint}", advice=_STORABLE
    )


def _argument(arguments: tuple[Any, ...], path: str, known: dict[Any, _Record]) -> Shape:
    return shape_of(arguments[0], f"{path}[]", known) if arguments else Shape()


def _tuple(arguments: tuple[Any, ...], path: str, known: dict[Any, _Record]) -> Shape:
    if not arguments:
        return _Items(tuple, Shape())
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _Items(tuple, shape_of(arguments[0], f"{path}[]", known))
    return _Tuple(tuple(shape_of(one, f"{path}[]", known) for one in arguments))


def _union(arguments: tuple[Any, ...], path: str, known: dict[Any, _Record]) -> Shape:
    shapes = [shape_of(one, path, known) for one in arguments if one is not NoneType]
    if all(type(shape) is Shape for shape in shapes):
        return Shape()
    if len(shapes) == 1:
        return _Optional(shapes[0])
    raise ConfigError(
        "preparing a state object",
        found=f"{path} is a union of types that cannot be told apart when they are read",
        advice="Use one class with optional fields.",
    )


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _record(cls: type, known: dict[Any, _Record]) -> _Record:
    if cls in known:
        return known[cls]
    record = known[cls] = _Record(cls, {})
    hints = _hints(cls)
    for name, required in _required(cls).items():
        record.fields[name] = (shape_of(hints.get(name), f"{cls.__name__}.{name}", known), required)
    return record


def _required(cls: Any) -> Mapping[str, bool]:
    if _is_named_tuple(cls):
        return {name: name not in cls._field_defaults for name in cls._fields}
    missing = dataclasses.MISSING
    return {
        one.name: one.default is missing and one.default_factory is missing
        for one in dataclasses.fields(cls)
        if one.init
    }


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, localns={cls.__name__: cls})
    except NameError as error:
        raise ConfigError(
            "preparing a state object",
            found=f"the type hints of {cls.__name__} name '{error.name}', which is not found",
            advice="Define the classes of the fields at the top level of a module.",
        ) from error
