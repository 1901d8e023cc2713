"""State at one version as a table whose Arrow schema is known before its rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from redis_state.backend.client import Client
from redis_state.errors import ConfigError
from redis_state.format.rows import split_elements
from redis_state.reader.family import FamilyChoice, FamilySource
from redis_state.reader.family_scan import StoredRows
from redis_state.reader.lookup.asked_keys import AskedKeys
from redis_state.reader.lookup.key_search import KeyedReads
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.source import Source, Stores
from redis_state.reader.table_columns import RowCodec, columns_of, only_columns
from redis_state.reader.tables.column_arrays import value_columns
from redis_state.reader.version_request import VersionRequest
from redis_state.rows.arrow_types import arrow_type, library, named_array
from redis_state.rows.codec import FamilyCodec
from redis_state.rows.json_values import json_text
from redis_state.rows.key_filter import ColumnPath, keys_of
from redis_state.rows.typed_rows import TypedRowCodec
from redis_state.rows.unsafe_row import check_lookup
from redis_state.types.decoding import AS_WRITTEN, Decoding
from redis_state.types.schema import Struct, Type

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 16_384
"""Rows of a batch."""


class StateTable:
    """The rows of a state: key columns, then value columns; a list has a row for each element.

    A store of Python has no columns: its keys and values are JSON texts.

    Args:
        source: A view, which has one version.
        decoding: The forms of values.

    Attributes:
        schema: All columns.

    Raises:
        RedisStateError: See `OperatorState.get`; also `ConfigError` without pyarrow.
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        operator: int,
        store: str,
        family: str,
        decoding: Decoding = AS_WRITTEN,
    ) -> None:
        library("reading state as a table")
        import pyarrow as pa

        choice = FamilyChoice(client, operator, family, None, decoding)
        of = FamilySource(client, source, operator, store, choice)
        codec, _ = StoredRows(of).opened(VersionRequest())
        self._codec: RowCodec = codec
        self._columns = columns_of(codec)
        # The source has one version, so the methods of `Stores` for many versions are not called.
        stores = cast("Stores", source)
        self._state = OperatorState(client, stores, operator, store, family, None, decoding)
        self._keyed = KeyedReads(of)
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

    def keys_with(self, equal: Mapping[ColumnPath, Sequence[Any]]) -> list[dict[str, Any]] | None:
        """Returns the keys that a filter selects; ``None`` if it does not select by whole keys.

        Args:
            equal: See `key_filter.keys_of`.
        """
        key, value = self._codec.columns
        if key is None or value is None or not (key.distinct and value.distinct):
            return None
        return keys_of(key, equal)

    def chosen(self, columns: Sequence[str] | None) -> pa.Schema:
        """Returns the schema of some of the columns.

        Raises:
            ConfigError: There is no column of a given name.
        """
        import pyarrow as pa

        return pa.schema([self.schema.field(at) for at in self._columns.places(columns)])

    def batches(
        self, columns: Sequence[str] | None = None, keys: Sequence[Mapping[str, Any]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Returns an iterator over the rows, in bounded batches.

        Args:
            columns: Columns to return, in their order; ``None`` means all.
            keys: Keys whose rows to return; ``None`` means all.

        Raises:
            RedisStateError: See `OperatorState.to_batches`.
        """
        schema = self.chosen(columns)
        if keys is not None:
            return self._of_keys(schema, keys)
        if self.key is None:
            return self._as_json(schema)
        return self._state.to_batches(rows=ROWS, columns=schema.names)

    @property
    def has_lists(self) -> bool:
        """True if a key has a list of values."""
        return self._codec.family.multi_value

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names of the value columns."""
        return self._columns.names[self._columns.keys :]

    def check_look_up(self) -> None:
        """Checks that rows can be looked up by the key columns.

        Raises:
            ConfigError: Equal values of a column may have different bytes, or look-ups by its type
                are not implemented.
        """
        if isinstance(self._codec, FamilyCodec):
            check_lookup(self._codec.key)

    def look_up(self, keys: AskedKeys, columns: Sequence[str]) -> tuple[list[pa.Array], pa.Array]:
        """Returns the value columns of keys, null for absent keys, and a mask of existing keys.

        Args:
            columns: Value columns to parse; the state has no lists.

        Raises:
            RedisStateError: See `OperatorState.get_many`.
        """
        import pyarrow as pa

        places: list[int | None] = [None] * len(keys)
        # The rows of a partition have one codec; most often all partitions share it.
        groups: dict[int, tuple[RowCodec, list[bytes], list[int]]] = {}
        for group in self._keyed.find(keys, VersionRequest())[1].groups if len(keys) else ():
            _, values, of_group = groups.setdefault(id(group.codec), (group.codec, [], []))
            values += group.values
            of_group += group.places
        found: list[list[pa.Array]] = []
        count = 0
        for codec, values, of_group in groups.values():
            made = codec if codec is self._codec else self._like(codec)
            found.append(value_columns(only_columns(made, columns), values))
            for number, at in enumerate(of_group, count):
                places[at] = number
            count += len(of_group)
        taken = pa.array(places, type=pa.int64())
        arrays = []
        for name in columns:
            at = self.value_names.index(name)
            type_ = self.schema.field(self._columns.keys + at).type
            pieces = [of_group[at] for of_group in found]
            whole = pa.concat_arrays(pieces) if pieces else pa.nulls(0, type_)
            arrays.append(whole.take(taken))
        return arrays, taken.is_valid()

    def _found(
        self, keys: Sequence[Any], columns: Sequence[str]
    ) -> Iterator[list[Sequence[Any]] | None]:
        """Yields the value columns of each key by position; of a list, those of each element.

        Args:
            columns: Columns to parse.
        """
        if not keys:
            return
        codec, made = self._codec, only_columns(self._codec, columns)
        for hit in self._keyed.find(AskedKeys(keys), VersionRequest())[1].in_order():
            if hit is None:
                yield None
                continue
            if hit[0] is not codec:
                codec, made = hit[0], only_columns(self._like(hit[0]), columns)
            elements = split_elements(hit[1]) if made.family.multi_value else [hit[1]]
            yield [made.value_row(element) for element in elements]

    def _like(self, codec: RowCodec) -> RowCodec:
        """Returns a codec that gives rows of a partition the columns of this table.

        Raises:
            ConfigError: The partition has other columns.
        """
        if isinstance(codec, TypedRowCodec) and isinstance(self._codec, TypedRowCodec):
            # Where a time to live was removed, some rows and partitions still have one.
            codec = replace(codec, expires=self._codec.expires)
        if codec.columns[1] != self._codec.columns[1]:
            raise ConfigError(
                "reading keys of a table",
                found="partitions have different columns",
                advice="Read them by items or scan.",
            )
        return codec

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
        for start in range(0, len(keys), ROWS):
            some = keys[start : start + ROWS]
            rows: list[Sequence[Any]] = []
            for one, found in zip(some, self._found(some, schema.names), strict=True):
                own = [
                    _in_order(field.type, one[label])
                    for label, field in zip(key.labels, key.fields, strict=True)
                ]
                rows += [[*own, *each] for each in found or ()]
            if rows:
                arrays = [
                    named_array(name, types[at], [row[at] for row in rows])
                    for name, at in zip(schema.names, places, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_order(type_: Type, value: Any) -> Any:
    """Returns a struct as a tuple of its values; a struct in a key is given by names."""
    if isinstance(type_, Struct) and isinstance(value, Mapping):
        return tuple(_in_order(field.type, value[field.name]) for field in type_.fields)
    return value
