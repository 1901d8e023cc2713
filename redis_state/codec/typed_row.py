"""Rows of a Spark schema as MessagePack, and back (docs/format.md, section 10.6); no pyspark.

The bytes are an array ``[schema id, expiry, field, …]``: the id says which of the schemas that the
state variable has had the row was written with, the expiry is in ms since 1970 or nil.
"""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.codec.ddl import struct_of
from redis_state.codec.ordered_key import decode_first, encode_key
from redis_state.errors import FormatError, UsageError

Kind = str | dict[str, Any]
"""A type as Spark's JSON has it."""

ROW_CODEC = "typed-row"
"""What families of such rows call it."""

HEAD = 2
_INTEGERS = {
    "byte": (-(1 << 7), (1 << 7) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "integer": (-(1 << 31), (1 << 31) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
}
_WIDER = {
    "byte": {"short", "integer", "long"},
    "short": {"integer", "long"},
    "integer": {"long"},
    "float": {"double"},
}
_PLAIN: dict[str, type] = {"boolean": bool, "string": str, "double": float, "binary": bytes}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_NAIVE = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_FLOAT = struct.Struct("<f")

Convert = Callable[[Any], Any]


def schema_json(given: object) -> str:
    """A schema as Spark's JSON: of a `StructType`, or of DDL text.

    Raises:
        UsageError: It is neither, or has no columns or twice the same.
    """
    if isinstance(given, str):
        found = struct_of(given)
    else:
        to_json = getattr(given, "json", None)
        found = json.loads(to_json()) if callable(to_json) else {}
        if not isinstance(found, dict) or found.get("type") != "struct":
            raise UsageError(
                "reading a schema",
                found=f"it is of type {type(given).__name__}",
                advice="Give a StructType, or text such as 'count long'.",
            )
    names = [field["name"] for field in found["fields"]]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            "reading a schema",
            found="it has no column" if not names else "two columns have the same name",
            advice="Give each column a name of its own.",
        )
    return json.dumps(
        {"type": "struct", "fields": [_bare(field) for field in found["fields"]]},
        separators=(",", ":"),
    )


def _bare(field: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": field["name"], "type": field["type"], "nullable": field.get("nullable", True)}


@dataclass(frozen=True, slots=True)
class _Field:
    """A column: how its values are written and read; ``None`` means as they are."""

    name: str
    kind: Kind
    nullable: bool
    write: Convert
    read: Convert | None


class TypedRow:
    """Encodes and decodes the rows of one state variable.

    Args:
        schema: Spark's JSON of the columns as they are now.
        written: All schemas that rows may have been written with, by their ids; the present one is
            added if it is not among them.
        zone: Of time stamps that are handed out: ``None`` for naive ones in this machine's zone,
            as PySpark hands them out.

    Raises:
        UsageError: A column has a type that cannot be stored, or another one than before.
    """

    __slots__ = ("_bounds", "_fields", "_known", "_older", "_pack", "_plain", "_size", "id",
                 "names", "schema", "what", "written")  # fmt: skip

    def __init__(
        self,
        schema: str,
        written: Sequence[str] = (),
        *,
        what: str = "a row",
        zone: tzinfo | None = None,
    ) -> None:
        self.schema = schema
        self.what = what
        self.written = [*written] if schema in written else [*written, schema]
        self.id = self.written.index(schema)
        self._fields = _fields(schema, zone, what)
        self.names = [field.name for field in self._fields]
        self._size = len(self._fields)
        self._older = {
            id_: _placed(_fields(old, zone, what), self._fields, what)
            for id_, old in enumerate(self.written)
            if id_ != self.id
        }
        # Rows of these types go out and come in as they are.
        self._plain = all(field.read is None for field in self._fields)
        self._bounds = [
            (at, *_INTEGERS[field.kind])
            for at, field in enumerate(self._fields)
            if isinstance(field.kind, str) and field.kind in _INTEGERS
        ]
        self._known: set[tuple[type, ...]] = set()
        if self._plain:
            self._known.add(tuple(_exact(field.kind) for field in self._fields))
        self._pack = _packers

    def encode(self, row: Any, expiry: int | None = None) -> bytes:
        """The bytes of a row: a tuple, list or `Row` with a value for each column.

        Raises:
            UsageError: It is none, or a value does not fit its column, which the message names.
        """
        try:
            if isinstance(row, (tuple, list)) and tuple(map(type, row)) in self._known:
                for at, low, high in self._bounds:
                    if not low <= row[at] <= high:
                        raise self._unfit(at, row[at])
                packed: bytes = self._pack.pack((self.id, expiry, *row))
                return packed
        except TypeError:
            pass
        except UnicodeEncodeError:
            raise self._broken_text() from None
        return self._converted(row, expiry)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """The values of a row.

        Raises:
            FormatError: The bytes are not such a row.
        """
        return self.decode_with_expiry(data)[1]

    def decode_with_expiry(self, data: bytes) -> tuple[int | None, tuple[Any, ...]]:
        """When a row expires, in ms since 1970 or ``None``, and its values.

        Raises:
            FormatError: The bytes are not such a row.
        """
        try:
            found = msgpack.unpackb(data, use_list=False, raw=False)
            id_, expiry = found[0], found[1]
            if id_ == self.id and len(found) == self._size + HEAD:
                if self._plain:
                    return expiry, found[HEAD:]
                return expiry, self._read(found[HEAD:])
            place = self._older[id_]
            older = found[HEAD:]
            return expiry, self._read([None if at is None else older[at] for at in place])
        except (
            ValueError, TypeError, KeyError, IndexError, OverflowError, InvalidOperation,
            msgpack.UnpackException,
        ) as error:  # fmt: skip
            raise FormatError(
                f"decoding {self.what}", found="the bytes do not fit its schema"
            ) from error

    def expiry(self, data: bytes) -> int | None:
        """When a row expires, in ms since 1970; ``None`` means never."""
        return self.decode_with_expiry(data)[0]

    def _read(self, plain: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            value if value is None or field.read is None else field.read(value)
            for field, value in zip(self._fields, plain, strict=True)
        )

    def _converted(self, row: Any, expiry: int | None) -> bytes:
        if isinstance(row, (str, bytes, dict)) or not hasattr(row, "__len__"):
            raise UsageError(
                f"encoding {self.what}",
                found=f"it is of type {type(row).__name__}, not a tuple",
                advice=f"Give a tuple with the columns {', '.join(self.names)}.",
            )
        if len(row) != self._size:
            raise UsageError(
                f"encoding {self.what}",
                found=f"it has {len(row)} values",
                advice=f"Give one for each column: {', '.join(self.names)}.",
            )
        plain: list[Any] = []
        for at, (field, value) in enumerate(zip(self._fields, row, strict=True)):
            if value is None:
                if not field.nullable:
                    raise UsageError(
                        f"encoding {self.what}",
                        found=f"column '{field.name}' is NOT NULL and was given None",
                        advice="Give a value, or declare the column without NOT NULL.",
                    )
                plain.append(None)
                continue
            try:
                plain.append(field.write(value))
            except (ValueError, TypeError, OverflowError, AttributeError, InvalidOperation):
                raise self._unfit(at, value) from None
        try:
            packed: bytes = self._pack.pack((self.id, expiry, *plain))
        except UnicodeEncodeError:
            raise self._broken_text() from None
        return packed

    def _unfit(self, at: int, value: Any) -> UsageError:
        field = self._fields[at]
        return UsageError(
            f"encoding {self.what}",
            found=f"column '{field.name}' is {_shown(field.kind)}, and the value of type "
            f"{type(value).__name__} does not fit",
            advice="Convert the value, or declare the column with another type. Nothing was "
            "changed.",
        )

    def _broken_text(self) -> UsageError:
        return UsageError(
            f"encoding {self.what}",
            found="a text has a character that UTF-8 cannot write (half of a surrogate pair)",
            advice="Give texts of whole characters. Nothing was changed.",
        )


class TypedKey:
    """Encodes and decodes keys of a Spark schema, in the order of their columns.

    Attributes:
        plain: Keys come back as they were given.

    Raises:
        UsageError: A column has a type that cannot be stored.
    """

    __slots__ = ("_exact", "_fields", "names", "plain", "what")

    def __init__(self, schema: str, *, what: str = "a key", zone: tzinfo | None = None) -> None:
        self._fields = _fields(schema, zone, what)
        self.names = [field.name for field in self._fields]
        self.what = what
        # Types whose values are a key as they are.
        self.plain = all(field.read is None for field in self._fields)
        # Values of just these types are a key as they are.
        exact = tuple(_exact(field.kind) for field in self._fields)
        self._exact = exact if self.plain and object not in exact else ()

    def encode(self, key: Any) -> bytes:
        """The bytes of a key: a tuple with a value for each column.

        Raises:
            UsageError: It is none, or a value does not fit its column.
        """
        if type(key) is tuple and tuple(map(type, key)) == self._exact:
            return encode_key(key)
        if (
            isinstance(key, (str, bytes, dict))
            or not hasattr(key, "__len__")
            or len(key) != len(self._fields)
        ):
            raise UsageError(
                f"encoding {self.what}",
                found=f"it is not a tuple of {len(self._fields)} values",
                advice=f"Give a value for each column: {', '.join(self.names)}.",
            )
        plain = []
        for field, value in zip(self._fields, key, strict=True):
            try:
                plain.append(None if value is None else field.write(value))
            except (ValueError, TypeError, OverflowError, AttributeError, InvalidOperation):
                raise UsageError(
                    f"encoding {self.what}",
                    found=f"column '{field.name}' is {_shown(field.kind)}, and the value of type "
                    f"{type(value).__name__} does not fit",
                ) from None
        return encode_key(tuple(plain))

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """The key of its bytes.

        Raises:
            FormatError: The bytes are no such key.
        """
        return self.decode_first(data)[0]

    def decode_first(self, data: bytes, at: int = 0) -> tuple[tuple[Any, ...], int]:
        """The key that begins at a place, and where it ends.

        Raises:
            FormatError: The bytes are no such key.
        """
        plain, end = decode_first(data, at)
        if type(plain) is not tuple or len(plain) != len(self._fields):
            raise FormatError(f"decoding {self.what}", found="the bytes do not fit its schema")
        if self.plain:
            return plain, end
        return tuple(
            value if value is None or field.read is None else field.read(value)
            for field, value in zip(self._fields, plain, strict=True)
        ), end


class _Packers(threading.local):
    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


_packers = _Packers()


def _exact(kind: Kind) -> type:
    if isinstance(kind, str):
        return int if kind in _INTEGERS else _PLAIN.get(kind, object)
    return object


def _fields(schema: str, zone: tzinfo | None, what: str) -> list[_Field]:
    made = []
    for field in json.loads(schema)["fields"]:
        kind = field["type"]
        write, read = _converters(kind, zone, f"{what}, column '{field['name']}'")
        made.append(_Field(field["name"], kind, field["nullable"], write, read))
    return made


def _placed(older: Sequence[_Field], now: Sequence[_Field], what: str) -> list[int | None]:
    """Where the columns of today are in an older row; a column that came later has no place.

    Raises:
        UsageError: A column has a type now that the older one cannot be read as.
    """
    places = {field.name: at for at, field in enumerate(older)}
    for field in now:
        at = places.get(field.name)
        if at is not None and not _fits(older[at].kind, field.kind):
            raise UsageError(
                f"declaring {what}",
                found=f"column '{field.name}' was {_shown(older[at].kind)} and is "
                f"{_shown(field.kind)} now",
                advice="Keep the type, or give the new column a new name. Columns may be added and "
                "taken away, and numbers may become wider.",
            )
    return [places.get(field.name) for field in now]


def _fits(older: Kind, now: Kind) -> bool:
    if isinstance(older, str) and isinstance(now, str):
        return older == now or now in _WIDER.get(older, ())
    return older == now


def _shown(kind: Kind) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _item(value: Any) -> Any:
    """A NumPy scalar as a plain value; anything else as it is."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    return value


def _converters(kind: Kind, zone: tzinfo | None, what: str) -> tuple[Convert, Convert | None]:
    """How values of a type are written, and read where that takes something."""
    if isinstance(kind, dict):
        return _nested(kind, zone, what)
    if kind in _INTEGERS:
        return _integer(*_INTEGERS[kind]), None
    if kind in _PLAIN:
        return _of_type(_PLAIN[kind]), None
    if kind == "float":
        return _single, None
    if kind == "date":
        return _write_date, lambda days: date.fromordinal(days + _EPOCH_DAY)
    if kind == "timestamp":
        return _write_time, _time_reader(zone)
    if kind == "timestamp_ntz":
        return _write_naive, lambda micros: _EPOCH_NAIVE + micros * _MICROSECOND
    if kind.startswith("decimal("):
        precision, scale = map(int, kind[len("decimal(") : -1].split(","))
        return _decimal(precision, scale), Decimal
    raise UsageError(
        f"declaring {what}",
        found=f"its type is {kind}, which cannot be stored",
        advice="Take one of: numbers, boolean, string, binary, date, timestamp, timestamp_ntz, "
        "decimal, array, map, struct.",
    )


def _nested(kind: dict[str, Any], zone: tzinfo | None, what: str) -> tuple[Convert, Convert]:
    if kind["type"] == "array":
        write, read = _converters(kind["elementType"], zone, what)
        return (
            lambda value: [None if one is None else write(one) for one in _listed(value)],
            lambda plain: [None if one is None else read(one) if read else one for one in plain],
        )
    if kind["type"] == "map":
        write_key, read_key = _converters(kind["keyType"], zone, what)
        write, read = _converters(kind["valueType"], zone, what)
        return (
            lambda value: [
                (write_key(key), None if one is None else write(one)) for key, one in value.items()
            ],
            lambda plain: {
                (read_key(key) if read_key else key): (
                    None if one is None else read(one) if read else one
                )
                for key, one in plain
            },
        )
    fields = _fields(json.dumps({"type": "struct", "fields": kind["fields"]}), zone, what)

    def write_struct(value: Any) -> list[Any]:
        if isinstance(value, dict):
            value = [value.get(field.name) for field in fields]
        if isinstance(value, (str, bytes)) or len(value) != len(fields):
            raise ValueError
        return [
            None if one is None else field.write(one)
            for field, one in zip(fields, value, strict=True)
        ]

    return write_struct, lambda plain: tuple(
        one if one is None or field.read is None else field.read(one)
        for field, one in zip(fields, plain, strict=True)
    )


def _listed(value: Any) -> Any:
    if isinstance(value, (str, bytes, dict)):
        raise TypeError
    return value


def _integer(low: int, high: int) -> Convert:
    def write(value: Any) -> int:
        plain = _item(value)
        if type(plain) is not int or not low <= plain <= high:
            raise ValueError
        return plain

    return write


def _of_type(wanted: type) -> Convert:
    def write(value: Any) -> Any:
        plain = _item(value)
        if wanted is float and type(plain) is int:
            return float(plain)
        if wanted is bytes and isinstance(plain, (bytearray, memoryview)):
            return bytes(plain)
        if type(plain) is not wanted:
            raise TypeError
        return plain

    return write


def _single(value: Any) -> float:
    plain = _item(value)
    if type(plain) not in (float, int):
        raise TypeError
    if math.isnan(plain) or math.isinf(plain):
        return float(plain)
    found: float = _FLOAT.unpack(_FLOAT.pack(plain))[0]
    return found


def _write_date(value: Any) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value.toordinal() - _EPOCH_DAY


def _write_time(value: Any) -> int:
    value = _datetime(value)
    aware = value if value.tzinfo is not None else value.astimezone()
    micros: int = (aware - _EPOCH) // _MICROSECOND
    return micros


def _datetime(value: Any) -> datetime:
    """A time as one of Python's; pandas has times of its own."""
    plain = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    # pandas' NaT is a datetime to Python, and no moment; it is not even equal to itself.
    if not isinstance(plain, datetime) or plain != plain:
        raise TypeError
    return plain


def _write_naive(value: Any) -> int:
    value = _datetime(value)
    if value.tzinfo is not None:
        raise TypeError
    micros: int = (value - _EPOCH_NAIVE) // _MICROSECOND
    return micros


def _time_reader(zone: tzinfo | None) -> Convert:
    def read(micros: int) -> datetime:
        at = _EPOCH + micros * _MICROSECOND
        return at.astimezone().replace(tzinfo=None) if zone is None else at.astimezone(zone)

    return read


def _decimal(precision: int, scale: int) -> Convert:
    step = Decimal(1).scaleb(-scale)
    limit = Decimal(10) ** (precision - scale)

    def write(value: Any) -> str:
        plain = Decimal(value) if isinstance(value, (Decimal, int)) else None
        if plain is None or not plain.is_finite():
            raise TypeError
        rounded = plain.quantize(step)
        if not -limit < rounded < limit:
            raise ValueError
        return str(rounded)

    return write
