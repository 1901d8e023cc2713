"""A change stream for Spark 4.2 and newer: with limits, and an end for `Trigger.AvailableNow`."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from redis_state.spark.live.change_stream import ChangeStream


class LimitedStream(ChangeStream, SupportsTriggerAvailableNow):
    """Gives out so many batches at a time as the option says."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """The limit of the options; Spark has none of batches, and files are what comes nearest."""
        most = self._options.batches_max
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """What is confirmed from now on is left for the next run.

        Raises:
            RedisStateError: As `ChangeSpans.newest`.
        """
        self._top = self._changes().newest().version

    def _is_bounded(self, limit: object) -> bool:
        return not isinstance(limit, ReadAllAvailable)
