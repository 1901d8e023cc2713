"""State of streaming queries as DataFrames: ``spark.read.format("redis_state")``, and its changes.

PySpark 4 looks for packages whose names begin with ``pyspark_``, and registers their
`DefaultSource`, so nothing has to be registered (docs/dataframes.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source ``redis_state``. Spark makes it, by the options of a DataFrame."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "redis_state"

    def schema(self) -> StructType:
        """The columns of the state, or with the option `since` of its changes, as it is now.

        Raises:
            RedisStateError: An option is wrong, or the state cannot be read.
        """
        from redis_state.spark.live.data_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What plans a read, and reads partitions."""
        # Spark imports this package in every session that reads anything by a name of its own.
        from redis_state.spark.live.data_source import state_reader

        return state_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """What plans and reads a stream of changes."""
        from redis_state.spark.live.data_source import stream_reader

        return stream_reader(self.options, schema)
