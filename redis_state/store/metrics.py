"""Metrics of a store, under stable names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from redis_state.clock import Clock


class MetricKind(Enum):
    """Aggregation and unit of a metric over several partitions."""

    SUM = "sum"
    SIZE = "size"
    TIMING = "timing"


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A metric of a store.

    Attributes:
        kind: A size is in bytes, a timing in milliseconds.
    """

    name: str
    kind: MetricKind
    meaning: str


CUSTOM_METRICS = (
    CustomMetric("load_ms", MetricKind.TIMING, "time to open versions and load what they need"),
    CustomMetric("commit_ms", MetricKind.TIMING, "time to encode, send and publish changes"),
    CustomMetric("maintenance_ms", MetricKind.TIMING, "time for snapshots and retention"),
    CustomMetric("rows_put", MetricKind.SUM, "rows that commits set"),
    CustomMetric("rows_removed", MetricKind.SUM, "rows that commits took out"),
    CustomMetric("commit_bytes", MetricKind.SIZE, "bytes that commits sent"),
    CustomMetric("snapshot_bytes", MetricKind.SIZE, "bytes of snapshots that were added"),
    CustomMetric("dropped_bytes", MetricKind.SIZE, "bytes that retention dropped"),
    CustomMetric("moved_bytes", MetricKind.SIZE, "bytes of history moved into files"),
    CustomMetric("failed_moves", MetricKind.SUM, "moves of history that failed"),
    CustomMetric("room_waits", MetricKind.SUM, "calls that waited until segments had left Redis"),
    CustomMetric("room_wait_ms", MetricKind.TIMING, "time until segments had left Redis"),
    CustomMetric("round_trips", MetricKind.SUM, "pipelines sent to the server by this process"),
    CustomMetric("file_reads", MetricKind.SUM, "reads of files by this process"),
    CustomMetric("disk_hits", MetricKind.SUM, "reads from the local disk by this process"),
    CustomMetric("opens", MetricKind.SUM, "versions that were opened"),
    CustomMetric("commits", MetricKind.SUM, "versions that were committed"),
)
"""All metrics, counted since the provider was made."""

BATCH_METRICS = (
    CustomMetric("num_keys", MetricKind.SUM, "keys after the batch"),
    CustomMetric("memory_bytes", MetricKind.SIZE, "local memory"),
    *CUSTOM_METRICS,
)
"""Metrics of one batch of a Spark job."""


_TOTALS = {
    "opens": "opens",
    "openMs": "load_ms",
    "commits": "commits",
    "commitMs": "commit_ms",
    "rowsWritten": "rows_put",
    "rowsRemoved": "rows_removed",
    "bytesSent": "commit_bytes",
    "movedBytes": "moved_bytes",
    "failedMoves": "failed_moves",
    "roomWaits": "room_waits",
    "roomWaitMs": "room_wait_ms",
}


class Counters:
    """Counters of one partition; each is increased by one thread at a time."""

    __slots__ = ("_before", "_clock", "values")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.values = {metric.name: 0 for metric in CUSTOM_METRICS}
        self._before: dict[str, int] = {}

    def add(self, name: str, amount: int) -> None:
        """Increases a counter."""
        self.values[name] += amount

    def set(self, name: str, value: int) -> None:
        """Sets a counter to what another object has counted."""
        self.values[name] = value

    def go_on_from(self, other: Counters) -> None:
        """Continues the totals of an earlier store of the partition."""
        self._before = other.totals()

    def totals(self) -> dict[str, int]:
        """Returns the totals of the heartbeat (docs/format.md, section 9)."""
        return {
            name: self._before.get(name, 0) + self.values[metric]
            for name, metric in _TOTALS.items()
        }

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Adds the milliseconds of the body."""
        start = self._clock.monotonic_s()
        try:
            yield
        finally:
            self.values[name] += round(1000 * (self._clock.monotonic_s() - start))
