"""The rows of a family as rows of a table: columns of the key, then of the value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis_state.errors import ConfigError
from redis_state.format.rows import split_elements
from redis_state.reader.family_scan import RowPiece
from redis_state.reader.scan import ScanRows
from redis_state.reader.table_columns import RowCodec, columns_of, only_places
from redis_state.rows.python_codec import PythonCodec
from redis_state.types.schema import Atomic
from redis_state.types.values import to_internal

Filter = Mapping[str, Any] | Callable[[dict[str, Any]], object] | None
"""Columns and their required values, or a function of a row."""

Prefix = Any
"""First part of keys; `OperatorState.scan` describes its forms."""


def rows_of_table(codec: RowCodec, stored: ScanRows) -> Iterator[list[Any]]:
    """Yields the values of rows in the order of the columns; a list has a row for each element.

    Raises:
        FormatError: The bytes are not such rows.
    """
    lists = codec.family.multi_value
    for stored_key, stored_value in stored:
        key = [*codec.key_row(stored_key)]
        for value in split_elements(stored_value) if lists else (stored_value,):
            yield [*key, *codec.value_row(value)]


class RowSelection:
    """Selects rows of a table.

    Args:
        prefix: See `OperatorState.scan`.
        where: See `OperatorState.scan`.
        columns: See `OperatorState.scan`; other columns are parsed only where `prefix` or `where`
            need them.

    Attributes:
        codec: Codec of the rows, without the columns that are not needed.
        places: Positions of the wanted columns.

    Raises:
        ConfigError: A column is unknown, or the prefix does not fit.
    """

    def __init__(
        self,
        codec: RowCodec,
        *,
        prefix: Prefix,
        where: Filter,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.columns = columns_of(codec)
        self.places = self.columns.places(columns)
        self._names = self.columns.names
        self._where = where if callable(where) else None
        self._equal: list[tuple[int, Any]] = []
        self._range: tuple[bytes, bytes | None] | None = None
        if prefix is not None and isinstance(codec, PythonCodec):
            self._range = codec.prefix_range(prefix)
        elif prefix is not None:
            self._equal += enumerate(self._leading(prefix))
        if where is not None and not callable(where):
            self._equal += zip(self.columns.places(where), where.values(), strict=True)
        needed = [*self.places, *(at for at, _ in self._equal)]
        if self._where is not None:
            needed += self.columns.asked
        self.codec = only_places(codec, self.columns, needed)

    @property
    def every(self) -> bool:
        """True if all rows are wanted."""
        return self._range is None and self._where is None and not self._equal

    def rows(self, stored: ScanRows) -> Iterator[list[Any]]:
        """Yields the selected rows, in the order of the columns.

        Raises:
            FormatError: The bytes are not such rows.
        """
        if self._range is not None:
            low, high = self._range
            stored = [row for row in stored if row[0] >= low and (high is None or row[0] < high)]
        equal, where, names = self._equal, self._where, self._names
        asked = self.columns.asked
        for row in rows_of_table(self.codec, stored):
            if all(_same(row[at], value) for at, value in equal) and (
                where is None or where({names[at]: row[at] for at in asked})
            ):
                yield row

    def _leading(self, prefix: Any) -> list[Any]:
        names = self._names[: self.columns.keys]
        advice = f"Give values of the first key columns. Key columns: {', '.join(names)}."
        if isinstance(prefix, Mapping):
            leading = names[: len(prefix)]
            if set(leading) != set(prefix):
                raise ConfigError(
                    "scanning by a prefix",
                    found="it has other columns than the first ones of the key",
                    advice=advice,
                )
            values = [prefix[name] for name in leading]
        else:
            values = list(prefix) if _is_sequence(prefix) else [prefix]
        if len(values) > len(names):
            raise ConfigError(
                "scanning by a prefix", found="it has more values than the key", advice=advice
            )
        # A value of another type than its column would match no row, so it raises.
        for name, type_, value in zip(names, self.columns.types, values, strict=False):
            if isinstance(type_, Atomic) and value is not None:
                to_internal(type_, value, name=name)
        return values


def flat_rows(
    pieces: Iterable[RowPiece],
    *,
    prefix: Prefix,
    where: Filter,
    columns: Sequence[str] | None,
) -> Iterator[dict[str, Any]]:
    """Yields rows as dicts of their columns.

    Raises:
        ConfigError: A column is unknown, or the prefix does not fit.
    """
    of: RowCodec | None = None
    for codec, stored in pieces:
        if codec is not of:
            of, chosen = codec, RowSelection(codec, prefix=prefix, where=where, columns=columns)
            places = chosen.places
            names = [chosen.columns.names[at] for at in places]
        for row in chosen.rows(stored):
            yield dict(zip(names, [row[at] for at in places], strict=True))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _same(value: Any, wanted: Any) -> bool:
    """Returns whether a value is the wanted one; a struct may be given by its fields' names."""
    if isinstance(wanted, Mapping) and hasattr(value, "as_dict"):
        return bool(value.as_dict() == dict(wanted))
    if isinstance(value, tuple) and isinstance(wanted, list):
        return list(value) == wanted
    return is_same(value, wanted)


def is_same(value: Any, wanted: Any) -> bool:
    """Returns whether Spark treats two values of a column as equal; NaN equals NaN."""
    both_nan = isinstance(value, float) and isinstance(wanted, float) and value != value
    return wanted != wanted if both_nan else bool(value == wanted)
