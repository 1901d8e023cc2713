"""A processor that fails in the middle of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class CutError(Exception):
    """The batch was cut."""


class Cut(StatefulProcessor):
    """A processor that stops after a number of output rows.

    Args:
        after: Number of rows.
    """

    def __init__(self, processor: StatefulProcessor, after: int) -> None:
        self._processor = processor
        self._left = after

    def init(self, handle: Any) -> None:
        """Initializes the wrapped processor."""
        self._processor.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803  # PySpark's names
        """Forwards to the wrapped processor, up to the cut."""
        return self._up_to_the_cut(self._processor.handleInputRows(key, rows, timerValues))

    def handleExpiredTimer(  # noqa: N802  # PySpark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803  # PySpark's names
        expiredTimerInfo: Any,  # noqa: N803  # PySpark's names
    ) -> Iterator[Any]:
        """Forwards to the wrapped processor, up to the cut."""
        given = self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo)
        return self._up_to_the_cut(given)

    def close(self) -> None:
        """Closes the wrapped processor."""
        self._processor.close()

    def _up_to_the_cut(self, given: Iterable[Any] | None) -> Iterator[Any]:
        self._check()
        for one in given or ():
            yield one
            # A `Row` is one row; a frame and a table have some.
            self._left -= 1 if isinstance(one, tuple) else len(one)
            self._check()

    def _check(self) -> None:
        if self._left <= 0:
            raise CutError
