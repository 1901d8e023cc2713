"""Tables for DuckDB, which requests a stream of Arrow batches for each scan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.reader.state_table import StateTable

if TYPE_CHECKING:
    import pyarrow as pa


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
                yield batch
        except Exception as error:
            self.error = error
            raise
