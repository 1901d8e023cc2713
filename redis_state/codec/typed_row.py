"""Encodes rows of a Spark schema as MessagePack (docs/format.md, section 10.6); no pyspark.

The bytes are an array ``[schema id, expiry, field, …]``. The id names the schema of the state
variable that the row was written with. The expiry is in ms since 1970, or nil.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import tzinfo
from decimal import InvalidOperation
from typing import Any, NoReturn

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.codec.column_rules import (
    ColumnRule,
    Reading,
    exact_type,
    fits,
    key_writer,
    listed,
    read_all,
    rules_of,
)
from redis_state.codec.ordered_key import decode_first, encode_tuple
from redis_state.errors import FormatError, UsageError
from redis_state.types.schema import INTEGERS, Atomic, kind_of
from redis_state.types.single_values import Misfit

ROW_CODEC = "typed-row"
"""Codec name of families with such rows."""

HEAD = 2


class TypedRow:
    """Encodes and decodes the rows of one state variable.

    Args:
        schema: Spark's JSON of the present columns.
        written: All schemas that rows may have been written with, by id. The present schema is
            appended if it is missing.
        zone: Time zone of the timestamps that are returned; ``None`` for naive ones in the zone of
            this machine, as PySpark returns them.
        rows: Returns structs as `Row` objects, instead of tuples.

    Raises:
        UsageError: A column has a type that cannot be stored, or its type has changed.
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
        rows: bool = False,
    ) -> None:
        reading = Reading(zone, rows)
        self.schema = schema
        self.what = what
        self.written = [*written] if schema in written else [*written, schema]
        self.id = self.written.index(schema)
        self._fields = rules_of(schema, reading, what)
        self.names = [field.name for field in self._fields]
        self._size = len(self._fields)
        self._older = {
            id_: _placed(rules_of(old, reading, what), self._fields, what)
            for id_, old in enumerate(self.written)
            if id_ != self.id
        }
        # Rows of these types are stored and returned unchanged.
        self._plain = all(field.read is None for field in self._fields)
        self._bounds = _bounds(self._fields)
        self._known: set[tuple[type, ...]] = set()
        if self._plain:
            self._known.add(tuple(exact_type(field.type) for field in self._fields))
        self._pack = _packers

    def encode(self, row: Any, expiry: int | None = None) -> bytes:
        """Encodes a row: a tuple, list or `Row` with a value for each column.

        Raises:
            UsageError: The row is neither, or a value does not fit its column. The message names
                it.
        """
        try:
            if isinstance(row, (tuple, list)) and tuple(map(type, row)) in self._known:
                for at, low, high in self._bounds:
                    if not low <= row[at] <= high:
                        return self._converted(row, expiry)
                packed: bytes = self._pack.pack((self.id, expiry, *row))
                return packed
        except TypeError:
            pass
        except (ValueError, OverflowError) as error:
            self._refuse_bytes(error)
        return self._converted(row, expiry)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decodes the values of a row.

        Raises:
            FormatError: The bytes are not a row of this variable.
        """
        return self.decode_with_expiry(data)[1]

    def decode_with_expiry(self, data: bytes) -> tuple[int | None, tuple[Any, ...]]:
        """Decodes the expiry of a row, in ms since 1970 or ``None``, and its values.

        Raises:
            FormatError: The bytes are not a row of this variable.
        """
        try:
            found = msgpack.unpackb(data, use_list=False, raw=False)
            id_, expiry = found[0], found[1]
            if id_ == self.id and len(found) == self._size + HEAD:
                if self._plain:
                    return expiry, found[HEAD:]
                return expiry, read_all(self._fields, found[HEAD:])
            place = self._older[id_]
            older = found[HEAD:]
            placed = [None if at is None else older[at] for at in place]
            return expiry, read_all(self._fields, placed)
        except (
            ValueError, TypeError, KeyError, IndexError, OverflowError, InvalidOperation,
            msgpack.UnpackException,
        ) as error:  # fmt: skip
            raise FormatError(
                f"decoding {self.what}", found="the bytes do not fit its schema"
            ) from error

    def expiry(self, data: bytes) -> int | None:
        """Returns the expiry of a row, in ms since 1970; ``None`` means never."""
        return self.decode_with_expiry(data)[0]

    def with_expiry(self, data: bytes, expiry: int) -> bytes:
        """Returns a stored row with another expiry, in ms since 1970.

        Raises:
            FormatError: The bytes are not a row of this variable.
        """
        self.decode_with_expiry(data)
        id_, _, *values = msgpack.unpackb(data, use_list=False, raw=False)
        packed: bytes = self._pack.pack((id_, expiry, *values))
        return packed

    def _converted(self, row: Any, expiry: int | None) -> bytes:
        try:
            values = listed(row)
        except Misfit:
            raise UsageError(
                f"encoding {self.what}",
                found=f"it is of type {type(row).__name__}, not a tuple",
                advice=f"Give a tuple with the columns {', '.join(self.names)}.",
            ) from None
        if len(values) != self._size:
            raise UsageError(
                f"encoding {self.what}",
                found=f"it has {len(values)} values",
                advice=f"Give one for each column: {', '.join(self.names)}.",
            )
        plain: list[Any] = []
        value: Any = None
        try:
            for field, value in zip(self._fields, values, strict=True):
                if value is None and not field.nullable:
                    raise self._null(field)
                plain.append(None if value is None else field.write(value))
        except _UNFIT as error:
            raise _unfit(self._fields[len(plain)], value, error, self.what) from None
        try:
            packed: bytes = self._pack.pack((self.id, expiry, *plain))
        except (ValueError, OverflowError) as error:
            self._refuse_bytes(error)
        return packed

    def _null(self, field: ColumnRule) -> UsageError:
        return UsageError(
            f"encoding {self.what}",
            found=f"column '{field.name}' is NOT NULL and was given None",
            advice="Give a value, or declare the column without NOT NULL.",
        )

    def _refuse_bytes(self, error: Exception) -> NoReturn:
        broken = isinstance(error, UnicodeEncodeError)
        raise UsageError(
            f"encoding {self.what}",
            found="a text has a character that UTF-8 cannot write (half of a surrogate pair)"
            if broken
            else "a value is too large",
            advice="Give texts of whole characters. Nothing was changed."
            if broken
            else "Nothing was changed.",
        ) from None


class TypedKey:
    """Encodes and decodes keys of a Spark schema; encoded keys sort by their columns in order.

    Args:
        schema: Spark's JSON of the columns.
        zone: See `TypedRow`, as for `rows`.

    Attributes:
        plain: True if keys are returned as they are stored.

    Raises:
        UsageError: A column has a type that cannot be stored.
    """

    __slots__ = ("_bounds", "_exact", "_fields", "_writes", "names", "plain", "what")

    def __init__(
        self, schema: str, *, what: str = "a key", zone: tzinfo | None = None, rows: bool = False
    ) -> None:
        self._fields = rules_of(schema, Reading(zone, rows), what)
        self.names = [field.name for field in self._fields]
        self.what = what
        self.plain = all(field.read is None for field in self._fields)
        # Keys of exactly these types are encoded without conversion.
        exact = tuple(exact_type(field.type) for field in self._fields)
        self._exact = exact if self.plain and object not in exact else ()
        self._bounds = _bounds(self._fields)
        self._writes = [key_writer(field) for field in self._fields]

    def encode(self, key: Any) -> bytes:
        """Encodes a key: a tuple with a value for each column.

        Raises:
            UsageError: The key is not such a tuple, or a value does not fit its column.
        """
        if type(key) is tuple:
            if tuple(map(type, key)) == self._exact:
                for at, low, high in self._bounds:
                    if not low <= key[at] <= high:
                        break
                else:
                    return encode_tuple(key)
            values: Sequence[Any] = key
        else:
            values = self._listed(key)
        if len(values) != len(self._fields):
            raise self._no_key()
        plain: list[Any] = []
        value: Any = None
        try:
            for write, value in zip(self._writes, values, strict=True):
                plain.append(None if value is None else write(value))
        except _UNFIT as error:
            raise _unfit(self._fields[len(plain)], value, error, self.what) from None
        return encode_tuple(plain)

    def _listed(self, key: Any) -> Sequence[Any]:
        try:
            return listed(key)
        except Misfit:
            raise self._no_key() from None

    def _no_key(self) -> UsageError:
        return UsageError(
            f"encoding {self.what}",
            found=f"it is not a tuple of {len(self._fields)} values",
            advice=f"Give a value for each column: {', '.join(self.names)}.",
        )

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decodes a key.

        Raises:
            FormatError: The bytes are not a key of this schema.
        """
        return self.decode_first(data)[0]

    def decode_first(self, data: bytes, at: int = 0) -> tuple[tuple[Any, ...], int]:
        """Decodes the key that starts at `at`, and returns its end too.

        Raises:
            FormatError: The bytes are not a key of this schema.
        """
        plain, end = decode_first(data, at)
        if type(plain) is not tuple or len(plain) != len(self._fields):
            raise FormatError(f"decoding {self.what}", found="the bytes do not fit its schema")
        if self.plain:
            return plain, end
        return read_all(self._fields, plain), end


def _bounds(fields: Sequence[ColumnRule]) -> list[tuple[int, int, int]]:
    """Returns position, minimum and maximum of each column of whole numbers."""
    return [
        (at, *INTEGERS[field.type.name])
        for at, field in enumerate(fields)
        if isinstance(field.type, Atomic) and field.type.name in INTEGERS
    ]


_UNFIT = (ValueError, TypeError, OverflowError, AttributeError, InvalidOperation)


def _unfit(field: ColumnRule, value: Any, error: Exception, what: str) -> UsageError:
    found = (
        error.of_column(field.name, kind_of(field.type))
        if isinstance(error, Misfit)
        else f"column '{field.name}' is {kind_of(field.type)}, and the value of type "
        f"{type(value).__name__} does not fit"
    )
    return UsageError(
        f"encoding {what}",
        found=found,
        advice="Convert the value, or declare the column with another type. Nothing was changed.",
    )


class _RowPackers(threading.local):
    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


_packers = _RowPackers()


def _placed(older: Sequence[ColumnRule], now: Sequence[ColumnRule], what: str) -> list[int | None]:
    """Returns the position of each present column in an older row; ``None`` for a newer column.

    Raises:
        UsageError: The older type of a column cannot be read as the present one.
    """
    places = {field.name: at for at, field in enumerate(older)}
    for field in now:
        at = places.get(field.name)
        if at is not None and not fits(older[at].type, field.type):
            raise UsageError(
                f"declaring {what}",
                found=f"column '{field.name}' was {kind_of(older[at].type)} and is "
                f"{kind_of(field.type)} now",
                advice=(
                    "Keep the type, or give the new column a new name. Columns may be added and "
                    "removed, and numbers may become wider."
                ),
            )
    return [places.get(field.name) for field in now]
