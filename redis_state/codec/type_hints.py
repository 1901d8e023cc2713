"""Compiles type hints to shapes; no I/O."""

from __future__ import annotations

import dataclasses
import typing
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal

from redis_state.codec.compound_shapes import Dicts, FixedTuple, Items, Optional, RecordShape
from redis_state.codec.scalar_shapes import (
    ANY_KEY,
    KEYS,
    SCALARS,
    UNTYPED,
    AnyKey,
    Enumerated,
    LiteralShape,
    Scalars,
    Undeclared,
)
from redis_state.codec.shape import Shape
from redis_state.errors import ConfigError

STORABLE = (
    "These can be stored: None, bool, int, float, str, bytes, datetime with a time zone, "
    "enums of these, dataclasses, named tuples, and lists, tuples, sets and dicts of these."
)
_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_SETS = (set, frozenset)
_EXACT: Mapping[Any, frozenset[type]] = {
    None: frozenset({NoneType}),
    # A stored bool or int equals the number of the wider declared type.
    int: frozenset({int, bool}),
    float: frozenset({float, int, bool}),
    datetime: frozenset(),  # every moment is checked
}

KnownRecords = dict[Any, RecordShape]


def shape_of(hint: Any, path: str, known: KnownRecords | None = None) -> Shape:
    """Compiles a type to a shape.

    Args:
        path: Names the type in an error.
        known: Records that are being compiled, because they may contain themselves.

    Raises:
        ConfigError: Values of the type could not be read back as that type.
    """
    known = {} if known is None else known
    if hint in (Any, object):
        return UNTYPED
    if hint is None or hint in SCALARS:
        return _scalars(hint)
    if isinstance(hint, typing.NewType):
        return shape_of(hint.__supertype__, path, known)
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return shape_of(arguments[0], path, known)
    if origin is Literal:
        return _literal(arguments, path)
    if origin in (typing.Union, UnionType):
        return _union(arguments, path, known)
    if origin in _LISTS or origin in _SETS:
        return _items(origin, hint, _argument(arguments, path, known))
    if origin in _DICTS:
        key = _key(arguments[0], path, known) if arguments else ANY_KEY
        return Dicts(_name(hint), key, _argument(arguments[1:], path, known))
    if origin is tuple:
        return _tuple(hint, arguments, path, known)
    if typing.is_typeddict(origin):
        return _typed_dict(origin, known)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _enum(origin, path)
    if _is_record(origin):
        return _record(origin, known)
    raise _not_storable(hint, path)


def _not_storable(hint: Any, path: str) -> ConfigError:
    return ConfigError(
        "preparing a state object", found=f"{path} has the type {hint}", advice=STORABLE
    )


def _name(hint: Any) -> str:
    """Returns the name of a type for errors."""
    if hint is None or hint is NoneType:
        return "None"
    if typing.get_args(hint) or not isinstance(hint, type):
        return str(hint).replace("typing.", "").replace("collections.abc.", "")
    return hint.__name__


def _scalars(hint: Any) -> Scalars:
    known = _EXACT.get(None if hint is NoneType else hint)
    return Scalars(
        _name(hint), frozenset({hint}) if known is None else known, times=hint is datetime
    )


def _items(origin: Any, hint: Any, of: Shape) -> Items:
    if origin in _SETS:
        return Items(_name(hint), origin, _SETS, of, is_sorted=True)
    return Items("a list" if origin is not list else _name(hint), list, (list,), of)


def _argument(arguments: tuple[Any, ...], path: str, known: KnownRecords) -> Shape:
    return shape_of(arguments[0], f"{path}[]", known) if arguments else UNTYPED


def _key(hint: Any, path: str, known: KnownRecords) -> Shape:
    """Returns the shape of a dict's keys. Other keys than scalars are rejected when written."""
    try:
        shape = shape_of(hint, f"a key of {path}", known)
    except ConfigError:
        return ANY_KEY
    if isinstance(shape, (Scalars, LiteralShape, Enumerated)):
        return shape
    inner = shape.of if isinstance(shape, Optional) else None
    return shape if isinstance(inner, (LiteralShape, Enumerated)) else ANY_KEY


def _tuple(hint: Any, arguments: tuple[Any, ...], path: str, known: KnownRecords) -> Shape:
    if not arguments:
        # `tuple[()]`, too, has no arguments.
        empty = hint is not tuple and hint is not typing.Tuple  # noqa: UP006  # the alias
        return FixedTuple("an empty tuple", ()) if empty else _tuples(hint, UNTYPED)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuples(hint, shape_of(arguments[0], f"{path}[]", known))
    return FixedTuple(
        _name(hint), tuple(shape_of(one, f"{path}[]", known) for one in arguments if one != ())
    )


def _tuples(hint: Any, of: Shape) -> Items:
    return Items(_name(hint), tuple, (tuple,), of)


def _literal(values: tuple[Any, ...], path: str) -> Shape:
    name = ", ".join(map(repr, values))
    if all(type(one) in KEYS for one in values):
        return LiteralShape(name, values)
    kinds = {type(one) for one in values}
    if len(kinds) == 1 and issubclass(kind := kinds.pop(), Enum):
        return _enum(kind, path)
    raise _not_storable(f"Literal[{name}]", path)


def _union(arguments: tuple[Any, ...], path: str, known: KnownRecords) -> Shape:
    shapes = [shape_of(one, path, known) for one in arguments if one is not NoneType]
    has_none = NoneType in arguments
    if any(isinstance(shape, (Undeclared, AnyKey)) for shape in shapes) and all(
        isinstance(shape, (Undeclared, Scalars, LiteralShape)) for shape in shapes
    ):
        return UNTYPED
    if len(shapes) == 1:
        name = f"{shapes[0].name} or None"
        if isinstance(shapes[0], Scalars):
            only = shapes[0]
            return Scalars(name, only.exact | {NoneType}, times=only.times)
        return Optional(name, shapes[0])
    if all(isinstance(shape, (Scalars, LiteralShape)) for shape in shapes):
        return _either(shapes, has_none=has_none)
    raise ConfigError(
        "preparing a state object",
        found=f"{path} is a union of types that cannot be distinguished when they are read",
        advice="Use one class with optional fields.",
    )


def _either(shapes: list[Shape], *, has_none: bool) -> Shape:
    """Merges kinds of scalars into one shape. The values of a `Literal` widen to their classes."""
    exact: set[type] = {NoneType} if has_none else set()
    for shape in shapes:
        exact |= (
            {type(one) for one in shape.values} if isinstance(shape, LiteralShape) else shape.exact
        )
    name = " or ".join([shape.name for shape in shapes] + ["None"] * has_none)
    return Scalars(
        name, frozenset(exact), times=any(getattr(one, "times", False) for one in shapes)
    )


def _enum(cls: type[Enum], path: str) -> Enumerated:
    for member in cls:
        if type(member.value) not in KEYS or member.value != member.value:
            raise ConfigError(
                "preparing a state object",
                found=f"{path} is an enum with a value of type {type(member.value).__name__}",
                advice="Enums are stored by their values: use texts or whole numbers.",
            )
    return Enumerated(cls.__name__, cls)


def _is_record(cls: Any) -> bool:
    return isinstance(cls, type) and (dataclasses.is_dataclass(cls) or _is_named_tuple(cls))


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _typed_dict(cls: Any, known: KnownRecords) -> Dicts:
    """Returns the shape of a TypedDict: typed keys, all optional, and untyped other keys."""
    made = Dicts(cls.__name__, _scalars(str), UNTYPED)
    for name, hint in _hints(cls).items():
        origin = typing.get_origin(hint)
        bare = typing.get_args(hint)[0] if origin in _WRAPPERS else hint
        made.parts[name] = shape_of(bare, f"{cls.__name__}.{name}", known)
    return made


_WRAPPERS = tuple(
    getattr(typing, name)
    for name in ("Required", "NotRequired", "ReadOnly")
    if hasattr(typing, name)
)


def _record(cls: type, known: KnownRecords) -> RecordShape:
    if cls in known:
        return known[cls]
    record = known[cls] = RecordShape(cls, runs_code=_runs_code(cls))
    hints = _hints(cls)
    for name, one in _fields(cls).items():
        shape = shape_of(hints.get(name, Any), f"{cls.__name__}.{name}", known)
        if one.default_is_none and not _takes_none(shape):
            # Many classes declare optional fields like `tags: list[str] = None`.
            shape = _union((hints[name], NoneType), f"{cls.__name__}.{name}", known)
        record.add(name, shape, required=one.required)
    return record


def _takes_none(shape: Shape) -> bool:
    return isinstance(shape, (Optional, Undeclared)) or NoneType in shape.exact


@dataclass(frozen=True, slots=True)
class _RecordField:
    required: bool
    default_is_none: bool


def _fields(cls: Any) -> Mapping[str, _RecordField]:
    if _is_named_tuple(cls):
        defaults = cls._field_defaults
        return {
            name: _RecordField(name not in defaults, defaults.get(name, name) is None)
            for name in cls._fields
        }
    missing = dataclasses.MISSING
    return {
        one.name: _RecordField(
            one.default is missing and one.default_factory is missing, one.default is None
        )
        for one in dataclasses.fields(cls)
        if one.init
    }


def _runs_code(cls: Any) -> bool:
    """Returns whether creating a record from its fields may change or lose a field."""
    if _is_named_tuple(cls):
        base = next((one for one in cls.__mro__ if "_fields" in vars(one)), cls)
        return base is not cls
    own = cls.__dataclass_params__.init is False or hasattr(cls, "__post_init__")
    derived = any(not one.init and one.compare for one in dataclasses.fields(cls))
    return own or derived or cls.__new__ is not object.__new__


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, localns={cls.__name__: cls})
    except NameError as error:
        raise ConfigError(
            "preparing a state object",
            found=f"the type hints of {cls.__name__} name '{error.name}', which is not found",
            advice="Define the classes of the fields at the top level of a module.",
        ) from error
