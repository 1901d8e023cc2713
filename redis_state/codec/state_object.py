"""State objects: any Python object as one binary value that carries its schema version.

The bytes are a msgpack array ``[1, version, object]``. The first number is the version of the
envelope itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.codec.object_parts import lost_part, unwritable
from redis_state.codec.scalar_shapes import UNDECLARED, Undeclared
from redis_state.codec.shape import DEPTH_MAX
from redis_state.codec.type_hints import STORABLE, shape_of
from redis_state.errors import ConfigError, FormatError
from redis_state.types.single_values import Misfit, class_name

ENVELOPE = 1
_ENVELOPE_PARTS = 3
_VERSION_MAX = 1 << 31
_UTC = 3  # msgpack's number for "timestamps become datetimes in UTC"

S = TypeVar("S")
Migrate = Callable[[Any, int], Any]


class StateObject(Generic[S]):
    """Writes objects of one type, and reads objects of older versions.

    Pass the class itself where versions do not matter. A field that is added with a default needs
    no new version.

    Args:
        cls: A dataclass, a named tuple, or a type such as ``dict[str, int]``, ``tuple[int, str]``.
            `object` accepts None, numbers, text, bytes, times, and lists and dicts of these.
        version: Written with each object. Raise it when the meaning of stored fields changes.
        migrate: Called with an object of an older version, as plain dicts and lists, and that
            version. Returns the form that the present version would have stored. Without `migrate`,
            unknown fields of an older version are ignored.

    Raises:
        ConfigError: The type has parts that cannot be stored, or the version is not positive.
    """

    def __init__(self, cls: type[S], *, version: int = 1, migrate: Migrate | None = None) -> None:
        if not 1 <= version <= _VERSION_MAX:
            raise ConfigError(
                "preparing a state object",
                found=f"its version is {version}",
                advice=f"Give a whole number from 1 to {_VERSION_MAX}.",
            )
        self.cls = cls
        self.version = version
        self.migrate = migrate
        self.name = getattr(cls, "__name__", str(cls))
        self._shape = shape_of(cls, self.name)

    def encode(self, value: S) -> bytes:
        """Encodes an object to bytes from which `decode` makes an equal one.

        Raises:
            ConfigError: The object has another type, or a part cannot be stored as its type.
        """
        try:
            if value is None:
                raise Misfit("is a NoneType")
            body = self._shape.plain(value, 0)
            data = msgpack.packb([ENVELOPE, self.version, body], datetime=True)
            if self._shape.runs_code:
                self._rebuild(value, body)
        except Misfit as error:
            raise self._refused(value, error) from None
        except (OverflowError, UnicodeEncodeError) as error:
            raise self._refused(value, unwritable(value) or Misfit(f"is too large: {error}")) from (
                None
            )
        except RecursionError:
            raise self._refused(value, Misfit(f"is nested more than {DEPTH_MAX} deep")) from None
        return cast(bytes, data)

    def _rebuild(self, value: S, body: Any) -> None:
        """Rejects an object that its class would not rebuild from the stored fields."""
        try:
            back = self._shape.build(body, lenient=False)
        except Exception as error:  # noqa: BLE001  # the code of a user's class
            raise Misfit(
                f"would not be read back: {type(error).__name__} is raised when it is made from "
                "its fields"
            ) from None
        part = lost_part(value, back)
        if part is not None:
            raise Misfit(
                "would come back as another value: it is set when the object is made from its "
                "fields"
            ).below(part, "")

    def _refused(self, value: object, error: Misfit) -> ConfigError:
        other = error.found.partition(",")[0] == f"is a {class_name(value)}"
        if not error.path and other and (value is None or not isinstance(self._shape, Undeclared)):
            return ConfigError(
                "writing a state object",
                found=f"a {type(value).__name__} was given",
                advice=f"Give a {self.name}, or call remove() to have no state.",
            )
        key = error.path.endswith("{key}")
        path = f"{self.name}{error.path.removesuffix('{key}')}"
        advice = (
            "Declare its type, as state=tuple[int, str] does."
            if UNDECLARED in error.found
            else "Give a value of that type, or declare another type."
        )
        return ConfigError(
            "writing an object",
            found=f"{'a key of ' if key else ''}{path} {error.found}",
            advice=f"{advice} Nothing was changed. {STORABLE}",
        )

    def decode(self, data: bytes) -> S:
        """Decodes a new object with each call.

        Raises:
            FormatError: The bytes are not a state object, are of a newer version, or lack a field
                that has no default.
        """
        version, body = _open(bytes(data))
        if version > self.version:
            raise _bad(
                f"it has version {version}, newer than {self.version} of {self.name}",
                "Read it with the newer class.",
            )
        older = version < self.version
        if older and self.migrate is not None:
            body = self.migrate(body, version)
        try:
            return cast(S, self._shape.build(body, lenient=older and self.migrate is None))
        except Misfit as error:
            raise FormatError(
                "reading an object",
                found=f"{self.name}{error.path} {error.found}",
                advice="Give the state object a migrate function that converts what was stored.",
            ) from None


def state_object(given: type[S] | StateObject[S]) -> StateObject[S]:
    """Wraps a class as a `StateObject` of version 1; returns a `StateObject` unchanged."""
    return given if isinstance(given, StateObject) else StateObject(given)


def _open(data: bytes) -> tuple[int, Any]:
    try:
        parts = msgpack.unpackb(data, timestamp=_UTC, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise _bad("the bytes are not MessagePack") from error
    if not isinstance(parts, list) or len(parts) != _ENVELOPE_PARTS or parts[0] != ENVELOPE:
        raise _bad("the bytes have no envelope of a state object")
    version = parts[1]
    if type(version) is not int or not 1 <= version <= _VERSION_MAX:
        raise _bad("its version is malformed")
    return version, parts[2]


def _bad(found: str, advice: str | None = None) -> FormatError:
    return FormatError("reading a state object", found=found, advice=advice)
