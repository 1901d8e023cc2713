"""Tables for DuckDB, which requests a stream of Arrow batches for each scan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.errors import UnreadableError
from redis_state.reader.state_table import StateTable

if TYPE_CHECKING:
    import pyarrow as pa

_MICROS_MAX = ((1 << 63) - 1) // 1000


class LiveTable:
    """A table of a statement, by Arrow's interface of C streams.

    Attributes:
        error: The error that ended a scan; DuckDB keeps only its text.
        rows: Number of rows that the scans read from Redis.
    """

    def __init__(
        self,
        table: StateTable,
        columns: Sequence[str] | None,
        keys: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        self._table = table
        self._columns = columns
        self._keys = keys
        self._schema = table.chosen(columns)
        self._spans = [field.name for field in self._schema if _has_durations(field.type)]
        self.error: Exception | None = None
        self.rows = 0

    def __arrow_c_schema__(self) -> object:
        """Returns the schema of the columns that the statement needs."""
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a new stream of all rows that the statement needs."""
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._table.batches(self._columns, self._keys):
                self.rows += batch.num_rows
                for name in self._spans:
                    _check_durations(batch.column(name), name)
                yield batch
        except Exception as error:
            self.error = error
            raise


def _has_durations(kind: pa.DataType) -> bool:
    import pyarrow as pa

    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return pa.types.is_duration(kind) or any(map(_has_durations, inner))


def _check_durations(array: pa.Array, name: str) -> None:
    """Refuse intervals that DuckDB would give as others: its answers count nanoseconds.

    Raises:
        UnreadableError: There is one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_duration(kind):
        ends = pc.min_max(array.view(pa.int64())).as_py()
        if ends["min"] is None or (ends["min"] >= -_MICROS_MAX and ends["max"] <= _MICROS_MAX):
            return
        raise UnreadableError.of(
            "day-time",
            "SQL has no place for an interval of more than 292 years",
            advice="Nothing is damaged. Leave the column out of the statement, or read it by scan "
            "or to_arrow.",
            column=name,
        )
    for part in _parts(array):
        if _has_durations(part.type):
            _check_durations(part, name)


def _parts(array: pa.Array) -> list[pa.Array]:
    """The arrays inside of one, without what no row of it has."""
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        return list(array.flatten())
    if pa.types.is_map(array.type):
        start, end = (array.offsets[at].as_py() for at in (0, -1))
        return [part.slice(start, end - start) for part in (array.keys, array.items)]
    return [array.flatten()] if array.type.num_fields else []
