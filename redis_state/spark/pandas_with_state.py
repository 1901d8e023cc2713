"""`apply_in_pandas_with_state`: Spark's operator with any Python object as a group's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redis_state.codec.state_object import StateObject, state_object
from redis_state.errors import ConfigError
from redis_state.spark.conf import PROVIDER_CLASS, PROVIDER_CONF

if TYPE_CHECKING:
    from datetime import datetime

    import pandas as pd
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.streaming.state import GroupState as SparkGroupState
    from pyspark.sql.types import StructType

STATE_COLUMN = "object"
STATE_SCHEMA = f"{STATE_COLUMN} binary"

S = TypeVar("S")
StatefulFunction = Callable[
    [Any, "Iterator[pd.DataFrame]", "GroupState[S]"], "Iterator[pd.DataFrame]"
]


class GroupState(Generic[S]):
    """State of one group, with the members of Spark's `GroupState` and an object as its value.

    Changing an object that `get` returned, or that `update` was given, changes no state: call
    `update` again.
    """

    NO_TIMESTAMP: int = -1

    def __init__(self, state: SparkGroupState, codec: StateObject[S]) -> None:
        self._state = state
        self._codec = codec

    @property
    def exists(self) -> bool:
        """Returns whether the group has a state."""
        return self._state.exists

    @property
    def get(self) -> S:
        """Returns the state.

        Raises:
            PySparkValueError: The group has no state.
            FormatError: The stored state does not fit the type.
        """
        return self._codec.decode(self._state.get[0])

    @property
    def getOption(self) -> S | None:  # noqa: N802 - Spark's name
        """Returns the state; ``None`` if the group has no state.

        Raises:
            FormatError: The stored state does not fit the type.
        """
        found = self._state.getOption
        return None if found is None else self._codec.decode(found[0])

    @property
    def hasTimedOut(self) -> bool:  # noqa: N802 - Spark's name
        """Returns whether this is the call for a group that has timed out."""
        return self._state.hasTimedOut

    @property
    def oldTimeoutTimestamp(self) -> int:  # noqa: N802 - Spark's name
        """Returns the group's time-out before this call, in ms since 1970; -1 without one."""
        return self._state.oldTimeoutTimestamp

    def update(self, newValue: S) -> None:  # noqa: N803 - Spark's name
        """Sets the state.

        Raises:
            ConfigError: The value is of another type, or a part cannot be stored; nothing changed.
        """
        self._state.update((self._codec.encode(newValue),))

    def remove(self) -> None:
        """Removes the state."""
        self._state.remove()

    def setTimeoutDuration(self, durationMs: int) -> None:  # noqa: N802, N803 - Spark's names
        """Sets a time-out after so many ms of processing time without data.

        Raises:
            PySparkException: See Spark's method.
        """
        self._state.setTimeoutDuration(durationMs)

    def setTimeoutTimestamp(  # noqa: N802 - Spark's name
        self,
        timestampMs: int | datetime,  # noqa: N803 - Spark's name
    ) -> None:
        """Sets a time-out for when the watermark passes a time, in ms since 1970.

        Raises:
            PySparkException: See Spark's method.
        """
        # Spark also takes a datetime, although its annotation does not say so.
        self._state.setTimeoutTimestamp(timestampMs)  # type: ignore[arg-type]  # see above

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802 - Spark's name
        """Returns the watermark in ms since 1970; 0 before the first watermark.

        Raises:
            PySparkException: The query has no watermark.
        """
        return self._state.getCurrentWatermarkMs()

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802 - Spark's name
        """Returns the time at which the batch began, in ms since 1970."""
        return self._state.getCurrentProcessingTimeMs()

    def __str__(self) -> str:
        return f"GroupState({self.get})" if self.exists else "GroupState(<undefined>)"


def apply_in_pandas_with_state(
    grouped: GroupedData,
    func: StatefulFunction[S],
    output_schema: StructType | str,
    *,
    state: type[S] | StateObject[S],
    output_mode: str,
    timeout: str = "NoTimeout",
) -> DataFrame:
    """Calls Spark's `applyInPandasWithState` with a dataclass or other Python object as the state.

    Args:
        grouped: Result of ``df.groupBy(…)``.
        func: Called for each group with its key, its rows as an iterator of pandas frames, and the
            `GroupState`; returns an iterator of pandas frames.
        output_schema: Schema of the returned frames; Spark's `outputStructType`.
        state: Class of the state, or a `StateObject` with more details.
        output_mode: ``append`` or ``update``; the mode of the query must be the same.
        timeout: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``, the members of
            Spark's `GroupStateTimeout`.

    Raises:
        ConfigError: The session does not keep its state in Redis, or the type cannot be stored.
    """
    codec = state_object(state)
    _check_provider(grouped)

    def with_object(
        key: Any, frames: Iterator[pd.DataFrame], spark_state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        yield from func(key, frames, GroupState(spark_state, codec))

    return grouped.applyInPandasWithState(
        with_object, output_schema, STATE_SCHEMA, output_mode, timeout
    )


def _check_provider(grouped: GroupedData) -> None:
    # Both kinds of GroupedData, including Spark Connect's, keep their frame here, but do not
    # publish it.
    session = grouped._df.sparkSession
    provider = session.conf.get(PROVIDER_CONF, None)
    if provider != PROVIDER_CLASS:
        raise ConfigError(
            "calling apply_in_pandas_with_state",
            found=f"the session keeps its state with {provider or 'the default provider of Spark'}",
            advice=(
                "Call redis_state.configure(builder, url=…) before the session is made. A "
                "checkpoint that began with another provider keeps it: use a new checkpoint."
            ),
        )
