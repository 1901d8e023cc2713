"""Polls all queries on one thread, and keeps the newest result for the pages."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from redis_state.clock import SYSTEM, Clock, wall_ms
from redis_state.dashboard.samples import Sample, Series, lag_of, sample_of, version_of
from redis_state.errors import InternalError, RedisStateError
from redis_state.live import Reader
from redis_state.process import BackgroundThread
from redis_state.reader import QueryStatus
from redis_state.status.totals import CheckpointStore, Increases

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

SERIES_MAX = 1000
"""Most queries with a history: 25 MiB. Running queries come first."""
GONE_MAX = 1000
_BUSY_SHARE = 0.1
_STOP_S = 2.0
_LOG = logging.getLogger("redis_state.dashboard")


@dataclass(frozen=True, slots=True)
class Line:
    """A query in the list of all queries, with sums over its partitions.

    Attributes:
        progress: The batch; the newest confirmed version where versions are not batches.
    """

    status: QueryStatus
    title: str
    state: str
    batch: int | None
    progress: int
    rows: int
    bytes: int
    lag: int
    partitions: int
    served: int
    written_ms: int
    problems: int


@dataclass(frozen=True, slots=True)
class View:
    """Result of the last poll.

    Attributes:
        lines: The queries by gen; ``None`` before the first successful poll.
        at_ms: Time of the last successful poll, in ms since 1970.
        error: Error of the polls since then; ``None`` while they succeed.
        failing_ms: Time of the first failure.
    """

    lines: Mapping[str, Line] | None = None
    at_ms: int = 0
    error: RedisStateError | None = None
    failing_ms: int = 0


@dataclass(slots=True)
class _Memory:
    series: dict[str, Series] = field(default_factory=dict)
    gone: OrderedDict[str, tuple[str, int]] = field(default_factory=OrderedDict)


class Watch:
    """The polling thread, which runs inside the `with` block."""

    def __init__(
        self,
        reader: Reader,
        *,
        interval_s: float,
        clock: Clock = SYSTEM,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._view = View()
        self._memory = _Memory()
        self._counted = Increases()
        self._looked = threading.Event()
        self._pause_s = 0.0
        self._background = BackgroundThread(
            "look", self._step, lambda: self._pause_s, what="looking at the queries"
        )

    def __enter__(self) -> Self:
        self._background.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._background.stop(_STOP_S)

    def view(self, *, wait_s: float = 0.0) -> View:
        """Returns the result of the last poll.

        Args:
            wait_s: Seconds to wait for the very first result.
        """
        self._looked.wait(wait_s)
        with self._lock:
            return self._view

    def samples(self, gen: str) -> list[Sample]:
        """Returns the samples of a query, the oldest first; empty for an unknown query."""
        with self._lock:
            series = self._memory.series.get(gen)
            return [] if series is None else list(series.samples())

    def gone(self, gen: str) -> tuple[str, int] | None:
        """Returns title and time of disappearance of a former query; else ``None``."""
        with self._lock:
            return self._memory.gone.get(gen)

    def look(self) -> None:
        """Polls once; the view has any error."""
        try:
            found = self._reader.status()
            counted = self._counted.add(self._reader.totals([status.gen for status in found]))
            self._saw(found, counted)
        except RedisStateError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001  # the thread has to continue
            if not self._background.stopping.is_set():
                _LOG.error("reading the queries failed: %s", type(error).__name__)
            self._failed(
                InternalError("reading the queries", found=f"a {type(error).__name__} was raised")
            )
        self._looked.set()

    def _step(self) -> None:
        began_s = self._clock.monotonic_s()
        self.look()
        took_s = self._clock.monotonic_s() - began_s
        # Polling takes at most a tenth of the time, however many queries there are. A server that
        # did not answer is polled again sooner, so that pages show its recovery.
        pause_s = took_s * (1 / _BUSY_SHARE - 1) if self.view().error is None else took_s
        self._pause_s = max(self._interval_s, pause_s)

    def _failed(self, error: RedisStateError) -> None:
        with self._lock:
            since = self._view.failing_ms if self._view.error else self._wall()
            self._view = replace(self._view, error=error, failing_ms=since)

    def _saw(
        self, found: list[QueryStatus], counted: Mapping[CheckpointStore, Mapping[str, int]]
    ) -> None:
        at_ms = self._wall()
        lines = {status.gen: _line(status) for status in found}
        with self._lock:
            for gen, line in (self._view.lines or {}).items():
                if gen not in lines:
                    self._memory.gone[gen] = (line.title, at_ms)
            while len(self._memory.gone) > GONE_MAX:
                self._memory.gone.popitem(last=False)
            self._remember(found, counted, at_ms)
            self._view = View(lines, at_ms)

    def _remember(
        self,
        found: list[QueryStatus],
        counted: Mapping[CheckpointStore, Mapping[str, int]],
        at_ms: int,
    ) -> None:
        running_first = sorted(found, key=lambda status: not status.alive)
        kept: dict[str, Series] = {}
        for status in running_first[:SERIES_MAX]:
            series = self._memory.series.get(status.gen) or Series()
            series.add(sample_of(status, counted, at_ms=at_ms))
            kept[status.gen] = series
        self._memory.series = kept


def _line(status: QueryStatus) -> Line:
    batch = status.confirmed_batch
    return Line(
        status=status,
        title=status.title,
        state="replaced" if status.replaced_by else "alive" if status.alive else "quiet",
        batch=batch,
        progress=version_of(status) if batch is None else batch,
        rows=status.rows,
        bytes=status.bytes,
        lag=lag_of(status),
        partitions=sum(len(store.partitions) for store in status.stores),
        served=status.served,
        written_ms=status.written_ms,
        problems=len(status.problems),
    )
