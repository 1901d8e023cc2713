"""State of streaming queries as DataFrames: ``spark.read.format("redis_state")``, and its changes.

PySpark 4 imports packages whose names begin with ``pyspark_``, and registers their
`DefaultSource`, so users need not register anything (docs/dataframes.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source ``redis_state``, which Spark creates with the options of a DataFrame."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format`."""
        return "redis_state"

    def schema(self) -> StructType:
        """Returns the columns of the current state; with the option `since`, those of its changes.

        Raises:
            RedisStateError: An option is wrong, or the state cannot be read.
        """
        from redis_state.spark.live.data_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader, which plans a read and reads partitions."""
        # Imported here, since Spark imports this package in every session that names a data source.
        from redis_state.spark.live.data_source import state_reader

        return state_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """Returns the stream reader, which plans and reads a stream of changes."""
        from redis_state.spark.live.data_source import stream_reader

        return stream_reader(self.options, schema)
