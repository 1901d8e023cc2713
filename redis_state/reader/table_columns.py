"""The columns of a family as a table has them: those of the key, then those of the value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redis_state.errors import ConfigError
from redis_state.reader.python_codec import PythonCodec
from redis_state.reader.rows.codec import Codec
from redis_state.reader.rows.spark_types import Type, free_name, is_opaque
from redis_state.reader.typed_rows import TypedRowCodec

RowCodec = Codec | PythonCodec | TypedRowCodec
"""Rows of Spark and of processors have columns; a store of Python has plain keys and values."""

_KEY, _VALUE = "key", "value"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table.

    Attributes:
        names: All different: a value column that is called like a key column is
            ``value.<name>``, and what still comes twice gets a number.
        types: ``None`` for what only the values themselves tell, as in stores of Python.
        keys: How many of them are of the key.
        asked: Places of those that are handed out unless some are named.
    """

    names: tuple[str, ...]
    types: tuple[Type | None, ...]
    keys: int
    asked: tuple[int, ...]

    def places(self, wanted: Iterable[str] | None) -> list[int]:
        """Where columns are; ``None`` means those that the codec hands out.

        Raises:
            ConfigError: There is none of that name.
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


def columns_of(codec: RowCodec) -> Columns:
    """The columns of a codec's rows."""
    key, value = codec.columns
    if key is None or value is None:
        return Columns((_KEY, _VALUE), (None, None), 1, (0, 1))
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
    return Columns(tuple(names), types, keys, tuple(places))


def only_columns(codec: RowCodec, names: Iterable[str]) -> RowCodec:
    """The codec of these columns, which does not parse the others.

    Raises:
        ConfigError: There is none of a name.
    """
    columns = columns_of(codec)
    return only_places(codec, columns, columns.places(names))


def readable_columns(codec: RowCodec) -> list[str]:
    """The names of the columns whose type has a form outside of Spark."""
    columns = columns_of(codec)
    pairs = zip(columns.names, columns.types, strict=True)
    return [name for name, type_ in pairs if type_ is None or not is_opaque(type_)]


def only_places(codec: RowCodec, columns: Columns, places: Iterable[int]) -> RowCodec:
    """The codec of the columns at these places, which does not parse the others."""
    wanted = set(places)
    if len(wanted) == len(columns.names):
        return codec
    keys = columns.keys
    return codec.only(
        [at for at in wanted if at < keys], [at - keys for at in wanted if at >= keys]
    )
