"""A state at one version as a table whose Arrow schema is known before its rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from redis_state.backend.client import Client
from redis_state.errors import ConfigError
from redis_state.reader.arrow_types import arrow_array, arrow_type, library
from redis_state.reader.columns import columns_of
from redis_state.reader.family import FamilyChoice, RowCodec
from redis_state.reader.json_values import json_text
from redis_state.reader.key_filter import keys_of
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.rows.spark_types import Struct, Type
from redis_state.reader.stored import StoredRows
from redis_state.reader.versions import Source, Stores, Wanted

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 16_384
"""In a batch."""

Path = tuple[str, ...]


class StateTable:
    """The rows of a state: key columns, then value columns; of a list a row for each element.

    A store of Python has no columns: its keys and values are JSON texts.

    Args:
        source: A view, which has one version.

    Attributes:
        schema: All columns.

    Raises:
        RedisStateError: As `OperatorState.get`; `ConfigError` also without pyarrow.
    """

    def __init__(
        self, client: Client, source: Source, operator: int, store: str, family: str
    ) -> None:
        library("reading state as a table")
        import pyarrow as pa

        choice = FamilyChoice(client, operator, family, None)
        stored = StoredRows(client, source, operator, store, choice)
        codec, _ = stored.opened(Wanted())
        self._codec: RowCodec = codec
        self._columns = columns_of(codec)
        # Of one version: what looks at many is not asked for.
        stores = cast("Stores", source)
        self._state = OperatorState(client, stores, operator, store, family, None)
        self.schema: pa.Schema = pa.schema(
            [
                pa.field(name, pa.string() if type_ is None else arrow_type(type_))
                for name, type_ in zip(self._columns.names, self._columns.types, strict=True)
            ]
        )

    @property
    def key(self) -> Struct | None:
        """The key columns; ``None`` for a store of Python."""
        return self._codec.columns[0]

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self._columns.names[: self._columns.keys]

    def keys_with(self, equal: Mapping[Path, Sequence[Any]]) -> list[dict[str, Any]] | None:
        """The keys that `batches` takes for a filter; ``None`` if it does not come down to keys.

        Args:
            equal: As `key_filter.keys_of`.
        """
        key, value = self._codec.columns
        if key is None or value is None or len(set(value.names)) < len(value.names):
            return None
        return keys_of(key, equal)

    def chosen(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of some of the columns.

        Raises:
            ConfigError: There is none of that name.
        """
        import pyarrow as pa

        return pa.schema([self.schema.field(at) for at in self._columns.places(columns)])

    def batches(
        self, columns: Sequence[str] | None = None, keys: Sequence[Mapping[str, Any]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows, in bounded batches.

        Args:
            columns: Those that are wanted, in their order; ``None`` means all.
            keys: Those whose rows are wanted; ``None`` means all.

        Raises:
            RedisStateError: As `OperatorState.to_batches`.
        """
        schema = self.chosen(columns)
        if keys is not None:
            return self._of_keys(schema, keys)
        if self.key is None:
            return self._as_json(schema)
        return self._state.to_batches(rows=ROWS, columns=schema.names)

    @property
    def has_lists(self) -> bool:
        """Whether a key has a list of values."""
        return self._codec.family.multi_value

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names of the value columns."""
        return self._columns.names[self._columns.keys :]

    def look_up(
        self, keys: Sequence[Any], columns: Sequence[str]
    ) -> tuple[list[pa.Array], list[bool]]:
        """Value columns of keys, null where there is no such key, and which keys there are.

        Args:
            keys: As `OperatorState.get_many` takes them.
            columns: Value columns; the state has no lists.

        Raises:
            RedisStateError: As `OperatorState.get_many`.
        """
        import pyarrow as pa

        found = self._state.get_many(keys)
        there = [one is not None for one in found]
        value = self._codec.columns[1]
        if value is None:
            return [pa.array(map(json_text, found), type=pa.string()) for _ in columns], there
        arrays = []
        for name in columns:
            field = value.fields[self.value_names.index(name)]
            values = [None if one is None else one[field.name] for one in found]
            arrays.append(arrow_array(field.type, values))
        return arrays, there

    def _as_json(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = self._state.scan(columns=schema.names)
        while some := list(islice(rows, ROWS)):
            arrays = [pa.array([json_text(row[name]) for row in some]) for name in schema.names]
            yield pa.RecordBatch.from_arrays(
                [array.cast(pa.string()) for array in arrays], schema=schema
            )

    def _of_keys(
        self, schema: pa.Schema, keys: Sequence[Mapping[str, Any]]
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        key, value = self._codec.columns
        if key is None or value is None:
            raise ConfigError(
                "reading keys of a table", found="a store of Python has no key columns"
            )
        places = [self._columns.names.index(name) for name in schema.names]
        types: list[Type] = [field.type for field in (*key.fields, *value.fields)]
        names = (*key.names, *value.names)
        for start in range(0, len(keys), ROWS):
            some = keys[start : start + ROWS]
            rows: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
            for one, found in zip(some, self._state.get_many(some), strict=True):
                if found is not None:
                    several = found if self._codec.family.multi_value else [found]
                    rows += [(one, each) for each in several]
            if rows:
                arrays = [
                    arrow_array(
                        types[at],
                        [
                            _in_order(types[at], row[at >= len(key.fields)][names[at]])
                            for row in rows
                        ],
                    )
                    for at in places
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_order(type_: Type, value: Any) -> Any:
    """A struct as its values; that of a key is given by names."""
    if isinstance(type_, Struct) and isinstance(value, Mapping):
        return tuple(_in_order(field.type, value[field.name]) for field in type_.fields)
    return value
