"""`readStream` of the data source: the change feed of a state (docs/dataframes.md).

An offset of Spark is `{"since": <token>, "token": <token>}`: the beginning of the stream, and its
present position. Spark asks for the first offset again when it repeats the first batch. By then the
state may have changed, so the end offset of that batch also holds the beginning. `start` in place
of a token means the position before the whole state.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from redis_state.errors import ConfigError
from redis_state.ids import text_number
from redis_state.reader.feed.change_spans import ChangeSpans, Span, span_rows
from redis_state.reader.feed.change_table import change_batches
from redis_state.reader.feed.changes import START
from redis_state.reader.feed.feed_positions import Advice
from redis_state.reader.feed.tokens import Position
from redis_state.spark.frames import as_arrow
from redis_state.spark.live.live_state import LiveState
from redis_state.spark.worker import WORKER

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NOW = "latest"
_BATCHES_MAX = "maxBatchesPerTrigger"
_SINCE, _TOKEN = "since", "token"
STREAM_OPTIONS = (_SINCE, _BATCHES_MAX)
_WHAT = "reading changes as a stream"
_AFRESH = (
    "Start the stream again with a new checkpointLocation and since=start, into an empty target"
)
_ADVICE = Advice(
    expired=f"{_AFRESH}; or, to skip the lost changes, with since={{0}}; the state of that "
    "batch is .option('at', {0}) of spark.read. To keep more from now on, raise versionsToRetain "
    "in the query that writes the state.",
    rewound=f"{_AFRESH}: some rows that it returned are of abandoned batches.",
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of a stream.

    Attributes:
        since: `START`, `NOW`, a token, or the number of a batch.
        batches_max: Maximum of batches in one micro-batch; ``None`` for all available ones.
    """

    since: str
    batches_max: int | None


@dataclass
class _ChangePartition(InputPartition):
    """Input of one task."""

    span: Span


class ChangeStream(DataSourceStreamReader):
    """Plans micro-batches on the driver, and reads them in tasks, to which Spark pickles it."""

    def __init__(self, state: LiveState, options: StreamOptions, schema: StructType) -> None:
        self._state = state
        self._options = options
        self._schema = schema
        self._first: dict[str, str] | None = None
        self._feed: ChangeSpans | None = None
        self._top: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get their own connections.
        return {**self.__dict__, "_first": None, "_feed": None}

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        """Returns the beginning of the stream, which stays the same while the stream runs.

        Raises:
            ConfigError: `since` is neither a token of this state nor the number of a batch.
            RedisStateError: See `OperatorState.changes`.
        """
        if self._first is None:
            token = self._begin(self._options.since)
            self._first = {_SINCE: token, _TOKEN: token}
        return self._first

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, str] | None = None, limit: object = None
    ) -> dict[str, str]:
        """Returns the end of the next micro-batch.

        Args:
            start: Beginning of the micro-batch; given by Spark from 4.2 on.
            limit: Value of `getDefaultReadLimit`, or ``None``; given from 4.2 on.

        Raises:
            StateError: The feed cannot continue from there.
        """
        feed = self._changes()
        if start is None:
            # The beginning of the stream may be unknown here: `_before` takes the older of two
            # beginnings.
            token = feed.token(feed.newest())
            return {_SINCE: self._first[_SINCE] if self._first else token, _TOKEN: token}
        if start[_TOKEN] == START:
            return {_SINCE: START, _TOKEN: feed.token(feed.newest())}
        most = self._options.batches_max if self._is_bounded(limit) else None
        before = self._position(start[_TOKEN])
        found = feed.next(before, batches=most, top=self._top)
        return start if found == before else {_SINCE: start[_SINCE], _TOKEN: feed.token(found)}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Plans the changes between two offsets: a task for each partition with changes.

        Raises:
            StateError: Retention has dropped some of the changes, or the query went back.
        """
        if start == end:
            # Spark 4.0 and 4.1 announce the position of a restarted stream by two equal offsets.
            self._first = {_SINCE: end[_SINCE], _TOKEN: end[_SINCE]}
            return []
        before = self._before(start, end)
        return [
            _ChangePartition(one)
            for one in self._changes().spans(before, self._position(end[_TOKEN]))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads the changes of a partition of the state.

        Raises:
            RedisStateError: See `span_rows`.
        """
        assert isinstance(partition, _ChangePartition)
        span, state = partition.span, self._state.with_password()
        client = WORKER.client(state.config)
        place = state.place(client, span.timeline.id.store.gen)
        return change_batches(span_rows(place, span, _ADVICE), place.made, as_arrow(self._schema))

    def _begin(self, since: str) -> str:
        if since == START:
            return START
        feed = self._changes()
        if since == NOW:
            return feed.token(feed.newest())
        number = text_number(since)
        return feed.token(feed.behind(feed.position(since) if number is None else number))

    def _before(self, start: Mapping[str, str], end: Mapping[str, str]) -> Position | None:
        """Returns the beginning of a micro-batch; ``None`` is before the whole state."""
        tokens = {start[_TOKEN]}
        if start[_TOKEN] == start[_SINCE]:
            # The first micro-batch, whose beginning was asked for anew: the older answer is the
            # right one.
            tokens.add(end[_SINCE])
        if START in tokens:
            return None
        return min(map(self._position, tokens), key=lambda one: one.version)

    def _position(self, token: str) -> Position:
        try:
            return self._changes().position(token)
        except ConfigError as error:
            raise ConfigError(
                _WHAT,
                found="the checkpoint of the stream is of another checkpoint, operator or store "
                "than the state that is read",
                advice="A query that was started on a new checkpoint has another state. "
                f"{_AFRESH}.",
            ) from error

    def _changes(self) -> ChangeSpans:
        if self._feed is None:
            self._feed = self._state.with_password().changes(WORKER.client, _ADVICE)
        return self._feed

    def _is_bounded(self, limit: object) -> bool:  # noqa: ARG002  # for Spark minors with limits
        return False


def stream_options(options: Mapping[str, str]) -> StreamOptions | None:
    """Parses the options of a stream, by their lower-case names; ``None`` without `since`.

    Raises:
        ConfigError: An option is wrong, or needs a newer Spark.
    """
    since, most = options.get(_SINCE), options.get(_BATCHES_MAX.lower())
    number = None if most is None else text_number(most)
    if most is not None and not number:
        raise ConfigError(
            f"option '{_BATCHES_MAX}'",
            found="it is not a whole number above 0",
            advice=(
                "Give the number of batches of the state that a micro-batch may have, such as 10."
            ),
        )
    if most is not None and not has_limits():
        raise ConfigError(
            f"option '{_BATCHES_MAX}'",
            found="this version of Spark has no limits for sources in Python",
            advice="Omit it, or use Spark 4.2 or newer.",
        )
    return None if since is None else StreamOptions(since, number)


def has_limits() -> bool:
    """Returns whether Spark passes limits to Python sources, as it does from 4.2 on."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
