"""Reads and writes the records of Spark's `AvroStateEncoder`, with the library fastavro.

The types are those of Spark's `SchemaConverters.toAvroTypeWithDefaults`. Every column is a union
with null. Integers up to 32 bits are `int`. Dates and timestamps are Spark's internal numbers.
Decimals are `fixed`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

from redis_state.errors import ConfigError, FormatError, UnreadableError
from redis_state.rows.unsafe_row import in_order, lookup_type
from redis_state.types.schema import UNASKED, Array, Atomic, Map, Row, Struct, Type
from redis_state.types.values import to_internal, to_python

_KNOWN_MAX = 256
_PRIMITIVES = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "date": "int",
    "long": "long",
    "timestamp": "long",
    "timestamp_ntz": "long",
    "float": "float",
    "double": "double",
    # Avro writes a string and `bytes` alike.
    "string": "bytes",
    "binary": "bytes",
    "void": "null",
}
_REALS = ("float", "double")
_FIXED_BYTES = tuple(
    next(n for n in range(1, 17) if 10**digits <= 1 << 8 * n - 1) for digits in range(39)
)
"""Bytes that hold a decimal and its sign, indexed by the number of digits."""


@dataclass(frozen=True, slots=True)
class AvroRecord:
    """Writes and reads records of these columns."""

    columns: Struct

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encodes a record of these values, for a look-up.

        Raises:
            ConfigError: A value does not fit its column, or rows cannot be looked up by the type.
        """
        out = io.BytesIO()
        _library().schemaless_writer(out, _schema(self.columns), _internal(self.columns, values))
        return out.getvalue()

    def decode(self, data: bytes, wanted: Struct) -> Row:
        """Decodes the columns of `wanted` by name; a column that the record lacks is ``None``.

        Raises:
            FormatError: The bytes are not a record of these columns.
            UnreadableError: A text is not UTF-8.
        """
        library, stream = _library(), io.BytesIO(data)
        try:
            found = library.schemaless_reader(
                # Only the keys of a map are decoded as text here; `_map_key` restores their
                # bytes.
                stream,
                _schema(self.columns),
                None,
                handle_unicode_errors="surrogateescape",
            )
        except Exception as error:  # fastavro raises any type of exception for malformed bytes
            raise FormatError(
                "decoding a row", found="it is not an Avro record of this schema"
            ) from error
        if stream.read(1):
            raise FormatError("decoding a row", found="bytes follow after the Avro record")
        return _row(self.columns, wanted, found)


def _library() -> Any:
    try:
        import fastavro
    except ImportError:
        raise ConfigError(
            "decoding a row",
            found="the query keeps its state in Avro, and the package fastavro is not installed",
            advice="Install it: pip install 'redis-state[avro]'.",
        ) from None
    return fastavro


@lru_cache(maxsize=_KNOWN_MAX)
def _schema(columns: Struct) -> Any:
    return _library().parse_schema(_record(columns, count()))


def _record(columns: Struct, names: count[int]) -> dict[str, Any]:
    # Fields are named by position, because Spark allows names that Avro rejects.
    fields = [
        {"name": f"f{at}", "type": _nullable(_avro_type(field.type, names))}
        for at, field in enumerate(columns.fields)
    ]
    return {"type": "record", "name": f"r{next(names)}", "fields": fields}


def _nullable(avro: Any) -> Any:
    return avro if isinstance(avro, list) or avro == "null" else ["null", avro]


def _avro_type(type_: Type, names: count[int]) -> Any:
    match type_:
        case Struct():
            return ["null", _record(type_, names)]
        case Array():
            return ["null", {"type": "array", "items": _avro_type(type_.element, names)}]
        case Map():
            return ["null", {"type": "map", "values": _avro_type(type_.value, names)}]
        case Atomic(name="decimal"):
            return {"type": "fixed", "name": f"d{next(names)}", "size": _size(type_)}
    if type_.name not in _PRIMITIVES:
        raise UnreadableError.of(type_.name, "rows in Avro cannot be read that have such a column")
    return _PRIMITIVES[type_.name]


def _size(decimal: Atomic) -> int:
    return _FIXED_BYTES[decimal.precision]


def _internal(columns: Struct, values: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at, (field, value) in enumerate(
        zip(columns.fields, in_order(columns, values), strict=True)
    ):
        raw = value
        if value is not None and isinstance(field.type, Struct):
            raw = _internal(field.type, value)
        elif value is not None:
            atomic = lookup_type(field.name, field.type)
            raw = to_internal(atomic, value, name=field.name)
            if atomic.name == "decimal":
                raw = raw.to_bytes(_size(atomic), "big", signed=True)
            elif atomic.name in _REALS and raw == 0:
                raw = 0.0
        found[f"f{at}"] = raw
    return found


def _row(written: Struct, wanted: Struct, found: Mapping[str, Any]) -> Row:
    there = {field.name: (field.type, found[f"f{at}"]) for at, field in enumerate(written.fields)}
    values: list[Any] = []
    for field in wanted.fields:
        if field.type is UNASKED:
            values.append(None)
            continue
        type_, raw = there.get(field.name, (field.type, None))
        try:
            values.append(_python(type_, field.type, raw))
        except UnreadableError as error:
            raise error.within(field.name) from None
    return Row(wanted.names, tuple(values))


def _python(written: Type, wanted: Type, raw: Any) -> Any:
    """Converts a value from the type it was written with to the type that the caller wants."""
    if raw is None:
        return None
    match written, wanted:
        case Struct(), Struct():
            return _row(written, wanted, raw)
        case Array(), Array():
            return [_python(written.element, wanted.element, one) for one in raw]
        case Map(), Map():
            return {
                _map_key(wanted.key, key): _python(written.value, wanted.value, one)
                for key, one in raw.items()
            }
        case Atomic(), Atomic():
            if written.name == "decimal":
                raw = int.from_bytes(raw, "big", signed=True)
            value = raw if written.name == "binary" else to_python(written, raw)
            return float(value) if wanted.name in _REALS else value
    raise FormatError("decoding a row", found="a column changed to a type that cannot be converted")


def _map_key(type_: Type, key: str) -> Any:
    """Decodes a map key again, with the reader's choice for text that is not UTF-8."""
    if key.isascii() or not isinstance(type_, Atomic):
        return key
    return to_python(type_, key.encode("utf-8", "surrogateescape"))
