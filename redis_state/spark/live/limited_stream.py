"""Change stream for Spark 4.2 and newer: with limits, and an end for `Trigger.AvailableNow`."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from redis_state.spark.live.change_stream import ChangeStream


class LimitedStream(ChangeStream, SupportsTriggerAvailableNow):
    """Limits each micro-batch to the number of batches in the options."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Returns the limit of the options in files, as Spark has no limit in batches."""
        most = self._options.batches_max
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Fixes the end of this run; changes confirmed later are left to the next run.

        Raises:
            RedisStateError: See `ChangeSpans.newest`.
        """
        self._top = self._changes().newest().version

    def _is_bounded(self, limit: object) -> bool:
        return not isinstance(limit, ReadAllAvailable)
