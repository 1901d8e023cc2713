"""The columns of a family as columns of a table: those of the key, then those of the value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state.errors import ConfigError
from redis_state.rows.codec import FamilyCodec
from redis_state.rows.python_codec import PythonCodec
from redis_state.rows.typed_rows import TypedRowCodec
from redis_state.types.schema import Type, free_name, is_opaque

RowCodec = FamilyCodec | PythonCodec | TypedRowCodec
"""Codecs of rows. Rows of Spark and of processors have columns; rows of Python stores have none."""

_KEY, _VALUE = "key", "value"


def value_decoder(codec: RowCodec) -> Callable[[bytes], Any]:
    """Returns what decodes a whole stored value: a list for list state."""
    return codec.decode_values if codec.family.multi_value else codec.decode_value


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table.

    Attributes:
        names: Distinct names. A value column named like a key column becomes ``value.<name>``;
            remaining duplicates get a numeric suffix.
        types: ``None`` where only the values tell the type, as in stores of Python.
        keys: Number of key columns.
        asked: Positions of the columns that are returned by default.
    """

    names: tuple[str, ...]
    types: tuple[Type | None, ...]
    keys: int
    asked: tuple[int, ...]

    def places(self, wanted: Iterable[str] | None) -> list[int]:
        """Returns the positions of columns; ``None`` means the default columns.

        Raises:
            ConfigError: There is no column of a given name.
        """
        if wanted is None:
            return list(self.asked)
        found = []
        for name in wanted:
            if name not in self.names:
                raise ConfigError(
                    "choosing columns",
                    found=f"there is no column '{name}'",
                    advice=f"Columns: {', '.join(self.names)}.",
                )
            found.append(self.names.index(name))
        return found


def columns_of(codec: RowCodec) -> TableColumns:
    """Returns the columns of a codec's rows."""
    key, value = codec.columns
    if key is None or value is None:
        return TableColumns((_KEY, _VALUE), (None, None), 1, (0, 1))
    names: list[str] = []
    for name in key.names:
        names.append(free_name(name, names))
    for name in value.names:
        names.append(free_name(f"{_VALUE}.{name}" if name in key.names else name, names))
    types = tuple(field.type for field in (*key.fields, *value.fields))
    keys = len(key.fields)
    places: Sequence[int] = range(len(names))
    if codec.asked is not None:
        of_keys, of_values = codec.asked
        places = [*sorted(of_keys), *(keys + at for at in sorted(of_values))]
    return TableColumns(tuple(names), types, keys, tuple(places))


def only_columns(codec: RowCodec, names: Iterable[str]) -> RowCodec:
    """Returns the codec restricted to these columns; other columns are not parsed.

    Raises:
        ConfigError: There is no column of a given name.
    """
    columns = columns_of(codec)
    return only_places(codec, columns, columns.places(names))


def readable_columns(codec: RowCodec) -> list[str]:
    """Returns the names of the columns whose type has a form outside of Spark."""
    columns = columns_of(codec)
    pairs = zip(columns.names, columns.types, strict=True)
    return [name for name, type_ in pairs if type_ is None or not is_opaque(type_)]


def only_places(codec: RowCodec, columns: TableColumns, places: Iterable[int]) -> RowCodec:
    """Returns the codec restricted to the columns at these positions; others are not parsed."""
    wanted = set(places)
    if len(wanted) == len(columns.names):
        return codec
    keys = columns.keys
    return codec.only(
        [at for at in wanted if at < keys], [at - keys for at in wanted if at >= keys]
    )
