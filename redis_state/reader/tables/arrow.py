"""Rows as Arrow batches and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.errors import ConfigError
from redis_state.format.rows import split_elements
from redis_state.reader.family_scan import ArrayPiece, StoredRows
from redis_state.reader.scan import ScanRows
from redis_state.reader.table_columns import RowCodec, TableColumns
from redis_state.reader.tables.column_arrays import key_columns, value_columns
from redis_state.reader.tables.columns import Filter, Prefix, RowSelection
from redis_state.reader.version_request import VersionRequest
from redis_state.rows.arrow_objects import objects
from redis_state.rows.arrow_types import (
    arrow_type,
    inferred,
    library,
    missing_extra,
    mixed,
    named_array,
)
from redis_state.rows.codec import FamilyCodec

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from redis_state.protocol.opening import Opened
    from redis_state.rows.row_matrix import Pieces, RowMatrix

ROWS = 65_536
"""Default rows of a batch."""

_BYTES_MAX = 64 << 20
_ARRAY_ROWS_MIN = 4_096
"""Fewer rows are put together with others, since a batch has a fixed cost."""
_WHAT = "making an Arrow table"


def batches(
    stored: StoredRows,
    wanted: VersionRequest,
    rows: int,
    prefix: Prefix,
    where: Filter,
    columns: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    """Returns Arrow batches; see `OperatorState.to_batches`."""
    library(_WHAT)
    if rows < 1:
        raise ConfigError(
            _WHAT,
            found="batches of less than one row were requested",
            advice="Give rows=1 or more.",
        )
    codec, partitions = stored.opened(wanted)
    first = _Maker(codec, prefix, where, columns)
    return _batches(first, first.pieces(stored, partitions), rows)


def table(
    stored: StoredRows,
    wanted: VersionRequest,
    prefix: Prefix,
    where: Filter,
    columns: Sequence[str] | None,
) -> pa.Table:
    """Returns an Arrow table; see `OperatorState.to_arrow`."""
    pa = library(_WHAT)
    codec, partitions = stored.opened(wanted)
    first = _Maker(codec, prefix, where, columns)
    found = list(_batches(first, first.pieces(stored, partitions), ROWS, widen=True))
    if first.schema is not None:
        return pa.Table.from_batches(found, first.schema)
    tables = [pa.Table.from_batches([one]) for one in found]
    if not tables:
        return pa.table({name: pa.nulls(0) for name in first.names})
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise mixed("key or value") from error


def pandas_frame(made: pa.Table) -> pd.DataFrame:
    """Converts a table to pandas; see `OperatorState.to_pandas`."""
    try:
        import pandas as pd
    except ImportError:
        raise missing_extra("making a pandas DataFrame", "pandas", "pandas") from None
    try:
        frame: pd.DataFrame = made.to_pandas()
    except (ValueError, OverflowError):
        # A date outside of Python's range: this column holds objects, the others are as always.
        columns = [_pandas_column(column) for column in made.columns]
        frame = pd.concat(columns, axis=1, keys=range(len(columns)))
        frame.columns = pd.Index(made.column_names)
    return frame


def _pandas_column(column: pa.ChunkedArray) -> pd.Series[Any]:
    import pandas as pd

    try:
        found: pd.Series[Any] = column.to_pandas()
    except (ValueError, OverflowError):
        return pd.Series([one for chunk in column.chunks for one in objects(chunk)], dtype=object)
    return found


def polars_frame(made: pa.Table) -> pl.DataFrame:
    """Converts a table to Polars; see `OperatorState.to_polars`."""
    try:
        import polars as pl
    except ImportError:
        raise missing_extra("making a Polars DataFrame", "polars", "polars") from None
    frame = pl.from_arrow(made)
    assert isinstance(frame, pl.DataFrame)
    return frame


class _Maker:
    """Makes batches of stored rows.

    Attributes:
        codec: Codec of the rows.
        names: Names of the wanted columns.
        schema: ``None`` for a store of Python, whose values tell their types.
    """

    def __init__(
        self, codec: RowCodec, prefix: Prefix, where: Filter, columns: Sequence[str] | None
    ) -> None:
        import pyarrow as pa

        self.codec = codec
        self._asked = (prefix, where, columns)
        self._chosen = RowSelection(codec, prefix=prefix, where=where, columns=columns)
        of: TableColumns = self._chosen.columns
        self._places = self._chosen.places
        self.names = [of.names[at] for at in self._places]
        self._types = [of.types[at] for at in self._places]
        fields = [
            pa.field(name, arrow_type(type_))
            for name, type_ in zip(self.names, self._types, strict=True)
            if type_ is not None
        ]
        self.schema: pa.Schema | None = None
        if len(fields) == len(self._places):
            self.schema = pa.schema(fields)

    def like(self, codec: RowCodec) -> _Maker:
        """Returns a maker for a partition that describes its rows in another way.

        Raises:
            ConfigError: The partition has other columns.
        """
        if codec.columns != self.codec.columns:
            raise ConfigError(
                _WHAT,
                found="partitions have different columns",
                advice="Read them by items or scan.",
            )
        return _Maker(codec, *self._asked)

    def batch(self, stored: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        """Returns the selected rows as a batch; lists may give more rows than were passed.

        Raises:
            FormatError: The rows are not of this family.
            ConfigError: Values of a store of Python have no type in common.
        """
        import pyarrow as pa

        arrays = self._by_column(stored) if self._chosen.every else None
        if arrays is None:
            rows = list(self._chosen.rows(stored))
            arrays = [self._array(at, [row[at] for row in rows]) for at in self._places]
        if self.schema is not None:
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return pa.RecordBatch.from_arrays(arrays, names=self.names)

    def _array(self, at: int, values: Sequence[Any]) -> pa.Array:
        columns = self._chosen.columns
        type_ = columns.types[at]
        name = columns.names[at]
        return inferred(values, name) if type_ is None else named_array(name, type_, values)

    @property
    def takes_arrays(self) -> bool:
        """True if the columns can be made from arrays of rows."""
        codec = self.codec
        return (
            isinstance(codec, FamilyCodec) and self._chosen.every and not codec.family.multi_value
        )

    def pieces(self, stored: StoredRows, partitions: Sequence[Opened]) -> Iterator[ArrayPiece]:
        """Yields the rows of partitions, as arrays where that helps."""
        return stored.arrays(partitions) if self.takes_arrays else stored.rows(partitions)

    def batch_of_array(self, stored: RowMatrix) -> pa.RecordBatch:
        """Returns rows as a batch; only for a maker that takes arrays.

        Raises:
            FormatError: The rows are not of this family.
        """
        import pyarrow as pa

        arrays = self._of_columns(stored.keys, stored.values)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _by_column(self, stored: ScanRows) -> list[pa.Array] | None:
        """Returns the columns of all rows at once; ``None`` for a codec without columns."""
        codec = self._chosen.codec
        if not isinstance(codec, FamilyCodec):
            return None
        keys, values = [key for key, _ in stored], [value for _, value in stored]
        if not codec.family.multi_value:
            return self._of_columns(keys, values)
        lists = [split_elements(value) for value in values]
        elements = [element for of_one in lists for element in of_one]
        return self._of_columns(keys, elements, [len(of_one) for of_one in lists])

    def _of_columns(
        self, keys: Pieces, values: Pieces, counts: Sequence[int] | None = None
    ) -> list[pa.Array]:
        """Returns the wanted columns.

        Args:
            counts: Number of values of each key; ``None`` means one.
        """
        codec, count = self._chosen.codec, self._chosen.columns.keys
        found: dict[int, pa.Array] = {}
        if any(at < count for at in self._places):
            arrays = key_columns(codec, keys)
            if counts is not None:
                from redis_state.rows import columnar

                arrays = columnar.repeated(arrays, counts)
            found |= enumerate(arrays)
        if any(at >= count for at in self._places):
            found |= enumerate(value_columns(codec, values), count)
        return [found[at] for at in self._places]


def _batches(
    maker: _Maker, pieces: Iterable[ArrayPiece], rows: int, *, widen: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yields batches of at most `rows` rows.

    Args:
        widen: Where only values tell the types, a batch may have other types than earlier ones.
    """
    schema = maker.schema
    for made in _made(maker, pieces, rows):
        batch = made
        if schema is None and not widen and made.num_rows:
            schema = made.schema
        elif schema is not None and made.schema != schema:
            batch = _cast(made, schema)
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _made(maker: _Maker, pieces: Iterable[ArrayPiece], rows: int) -> Iterator[pa.RecordBatch]:
    pending: list[tuple[bytes, bytes]] = []
    size = 0
    for codec, piece in pieces:
        if codec.family != maker.codec.family:
            if pending:
                yield maker.batch(pending)
            maker, pending, size = maker.like(codec), [], 0
        if not isinstance(piece, Sequence):
            if maker.takes_arrays and len(piece) >= _ARRAY_ROWS_MIN:
                for start in range(0, len(piece), rows):
                    yield maker.batch_of_array(piece[start : start + rows])
                continue
            piece = piece.pairs()
        pending += piece
        # Rows of one piece lie together, so they are of about one size.
        size += len(piece) * sum(map(len, piece[0]))
        while len(pending) >= rows or (pending and size >= _BYTES_MAX):
            yield maker.batch(pending[:rows])
            del pending[:rows]
            size = 0
    if pending:
        yield maker.batch(pending)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Casts a batch to the schema that the first batch set.

    Raises:
        ConfigError: The values do not fit the schema.
    """
    import pyarrow as pa

    try:
        arrays = [
            column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)
        ]
    except pa.ArrowException as error:
        raise mixed(", ".join(schema.names)) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
