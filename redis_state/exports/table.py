"""Rows of a family for Parquet: their bytes, and their decoded columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.errors import ConfigError, FormatError, UnreadableError
from redis_state.format.expiry import split
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, split_elements
from redis_state.reader.family import FamilyChoice, is_ours
from redis_state.reader.table_columns import RowCodec, columns_of, only_columns, readable_columns
from redis_state.rows.arrow_types import arrow_type, named_array
from redis_state.rows.codec import FamilyCodec
from redis_state.rows.json_values import json_text
from redis_state.rows.python_codec import PythonCodec
from redis_state.types.decoding import Decoding
from redis_state.types.schema import Array, Atomic, Map, Struct, Type, is_opaque

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION, KEY, VALUE = "_partition", "_key", "_value"
"""The columns from which an import reads."""

_VALUES = "values"
_RAW_CODEC = "raw"
_EXPORTED = Decoding(text="replace")
"""Replaces invalid bytes in texts, since the exact bytes are exported as well."""

FamilyRows = Sequence[tuple[bytes, bytes]]


class FamilyTable:
    """Makes batches of the stored rows of one family.

    Args:
        families: The table that has the family.
        decoded: Whether to add decoded columns of keys and values, where they are known.

    Attributes:
        schema: Schema of all batches.
    """

    def __init__(
        self,
        client: Client,
        operator: int,
        family: Family,
        families: Sequence[Family],
        decoded: bool,
    ) -> None:
        import pyarrow as pa

        self._family = family
        self._codec = _codec_of(client, operator, family, families) if decoded else None
        fields = [pa.field(PARTITION, pa.int32()), pa.field(KEY, pa.binary())]
        fields.append(pa.field(VALUE, pa.binary()))
        self._columns: list[tuple[str, Type | None]] = []
        self._keys = 0
        if self._codec is not None:
            # Columns without a form outside of Spark are exported as bytes only.
            self._codec = only_columns(self._codec, readable_columns(self._codec))
            found = columns_of(self._codec)
            self._keys = found.keys
            self._columns = list(zip(found.names, found.types, strict=True))
            fields += self._described(self._columns[: self._keys])
            values = self._described(self._columns[self._keys :])
            if family.multi_value and values:
                element = values[0].type if len(values) == 1 else pa.struct(values)
                values = [pa.field(_VALUES, pa.list_(element))]
            fields += values
        self.schema: pa.Schema = pa.schema(_with_own_names(fields))

    def batch(self, partition: int, rows: FamilyRows) -> pa.RecordBatch:
        """Returns a batch of rows: stored keys, which begin with the family id, and stored values.

        The column `VALUE` has the expiries of a family with a time to live, decoded columns do not.

        Raises:
            FormatError: The bytes are not such rows.
        """
        import pyarrow as pa

        keys = [key for key, _ in rows]
        values = [value for _, value in rows]
        arrays = [
            pa.array([partition] * len(rows), pa.int32()),
            pa.array([key[FAMILY_BYTES:] for key in keys], pa.binary()),
            pa.array(values, pa.binary()),
        ]
        if self._codec is not None:
            try:
                arrays += self._of_keys(self._codec, keys)
                plain = values
                if self._family.ttl:
                    plain = [split(value)[0] for value in values]
                arrays += self._of_values(self._codec, plain)
            except UnreadableError as error:
                advice = "Nothing is damaged. Export the bytes alone, with --format raw."
                raise UnreadableError.of(
                    error.type, error.found, advice=advice, column=error.column
                ) from error
            except FormatError as error:
                raise FormatError(
                    error.attempted,
                    found=error.found,
                    advice="Nothing was changed. Export the bytes alone, with --format raw.",
                    where=error.where,
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _described(self, columns: Sequence[tuple[str, Type | None]]) -> list[pa.Field]:
        import pyarrow as pa

        return [
            pa.field(
                name, pa.string() if type_ is None or not _is_storable(type_) else arrow_type(type_)
            )
            for name, type_ in columns
            if type_ is None or not is_opaque(type_)
        ]

    def _of_keys(self, codec: RowCodec, keys: Sequence[bytes]) -> list[pa.Array]:
        from redis_state.rows import columnar

        columns = self._columns[: self._keys]
        if isinstance(codec, FamilyCodec) and self._all_storable(values=False):
            try:
                return _readable(columns, columnar.key_arrays(codec, keys))
            except columnar.NotColumnarError:
                pass
        return self._arrays(columns, codec.key_row, keys)

    def _of_values(self, codec: RowCodec, values: Sequence[bytes]) -> list[pa.Array]:
        import pyarrow as pa

        if not self._family.multi_value:
            return self._value_columns(codec, values)
        described = self._described(self._columns[self._keys :])
        if not described:
            return []
        lists = [split_elements(value) for value in values]
        flat = [element for elements in lists for element in elements]
        arrays = self._value_columns(codec, flat)
        offsets = [0]
        for elements in lists:
            offsets.append(offsets[-1] + len(elements))
        items = (
            arrays[0] if len(arrays) == 1 else pa.StructArray.from_arrays(arrays, fields=described)
        )
        return [pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)]

    def _value_columns(self, codec: RowCodec, values: Sequence[bytes]) -> list[pa.Array]:
        from redis_state.rows import columnar

        columns = self._columns[self._keys :]
        if isinstance(codec, FamilyCodec) and self._all_storable(values=True):
            try:
                return _readable(columns, columnar.value_arrays(codec, values))
            except columnar.NotColumnarError:
                pass
        return self._arrays(columns, codec.value_row, values)

    def _all_storable(self, *, values: bool) -> bool:
        columns = self._columns[self._keys :] if values else self._columns[: self._keys]
        return all(_is_storable(type_) for _, type_ in columns)

    def _arrays(
        self,
        columns: Sequence[tuple[str, Type | None]],
        decode: Callable[[bytes], Sequence[Any]],
        stored: Sequence[bytes],
    ) -> list[pa.Array]:
        rows = [decode(one) for one in stored]
        return [
            _array(name, type_, [row[at] for row in rows])
            for at, (name, type_) in enumerate(columns)
            if type_ is None or not is_opaque(type_)
        ]


def _readable(
    columns: Sequence[tuple[str, Type | None]], arrays: Sequence[pa.Array]
) -> list[pa.Array]:
    """Returns the arrays of the columns that have a form outside of Spark."""
    pairs = zip(columns, arrays, strict=True)
    return [array for (_, type_), array in pairs if type_ is None or not is_opaque(type_)]


def _array(name: str, type_: Type | None, values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    if type_ is not None and _is_storable(type_):
        return named_array(name, type_, values)
    return pa.array([json_text(one) for one in values], pa.string())


def _codec_of(
    client: Client, operator: int, family: Family, families: Sequence[Family]
) -> RowCodec | None:
    """Returns the codec of the rows; ``None`` where only their bytes are known."""
    if is_ours(family):
        return None
    try:
        codec = FamilyChoice(client, operator, family.name, None, _EXPORTED).codec(families)
    except (ConfigError, FormatError):
        # A codec of the program's own, or schemas that this release does not know.
        return None
    if isinstance(codec, PythonCodec) and codec.codec.name == _RAW_CODEC:
        return None
    return codec


def _is_storable(type_: Type | None) -> bool:
    """Returns whether Parquet has the type; values of other types become JSON text."""
    if isinstance(type_, Struct):
        return bool(type_.fields) and all(_is_storable(field.type) for field in type_.fields)
    if isinstance(type_, Array):
        return _is_storable(type_.element)
    if isinstance(type_, Map):
        return _is_storable(type_.key) and _is_storable(type_.value)
    return isinstance(type_, Atomic) and type_.name != "calendar"


def _with_own_names(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Makes names unique, ignoring case: DuckDB treats upper and lower case as the same."""
    taken: set[str] = set()
    found = []
    for field in fields:
        name = field.name
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        found.append(field.with_name(name))
    return found
