"""Samples of a query that the dashboard remembers, in a ring of fixed size."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from redis_state.reader import QueryStatus
from redis_state.status.totals import CheckpointStore

SAMPLES_MAX = 360
"""An hour at the default interval of ten seconds; 25 KiB a query."""
_RATE_MS = 60_000
_MEAN_MS = 120_000
_A_MINUTE_MS = 60_000


class Sample(NamedTuple):
    """A query at one moment.

    Attributes:
        at_ms: Milliseconds since 1970.
        version: The newest confirmed version of any partition.
        lag: Versions that loading applies on top of a snapshot, in the worst partition.
        opens: Versions opened so far, in all partitions; `open_ms` is the time for it.
        commits: Versions committed so far; `commit_ms` is the time for it.
    """

    at_ms: float
    rows: float
    bytes: float
    version: float
    lag: float
    opens: float = 0
    open_ms: float = 0
    commits: float = 0
    commit_ms: float = 0


_WIDTH = len(Sample._fields)


def sample_of(
    status: QueryStatus, counted: Mapping[CheckpointStore, Mapping[str, int]], *, at_ms: int
) -> Sample:
    """Returns the sample of a query's status.

    Args:
        counted: Result of `Increases`.
    """
    of_stores = [
        counted.get((status.gen, store.operator, store.store), {}) for store in status.stores
    ]
    sums = [
        sum(one.get(name, 0) for one in of_stores)
        for name in ("opens", "openMs", "commits", "commitMs")
    ]
    return Sample(at_ms, status.rows, status.bytes, version_of(status), lag_of(status), *sums)


def version_of(status: QueryStatus) -> int:
    """Returns the newest confirmed version of any partition; 0 without any."""
    return max((one.confirmed for one in status.partitions), default=0)


def lag_of(status: QueryStatus) -> int:
    """Returns the versions that loading applies on top of a snapshot, in the worst partition."""
    return max((one.newest - one.snapshot for one in status.partitions), default=0)


class Series:
    """The newest samples of one query."""

    def __init__(self) -> None:
        self._ring = array("d", bytes(8 * _WIDTH * SAMPLES_MAX))
        self._count = 0

    def add(self, sample: Sample) -> None:
        """Adds a sample; it replaces the oldest one once the ring is full."""
        at = self._count % SAMPLES_MAX * _WIDTH
        self._ring[at : at + _WIDTH] = array("d", sample)
        self._count += 1

    def samples(self) -> Iterator[Sample]:
        """Yields the samples from the oldest to the newest."""
        for number in range(max(0, self._count - SAMPLES_MAX), self._count):
            at = number % SAMPLES_MAX * _WIDTH
            yield Sample(*self._ring[at : at + _WIDTH])


def mean_ms(samples: list[Sample], count: str, time: str) -> list[float | None]:
    """Returns the mean time of an operation in the two minutes before each sample.

    ``None`` where nothing was counted. Instances publish their counts three times a minute.

    Args:
        count: The member of a sample that counts the operation; `time` is that of its time.
    """
    means: list[float | None] = []
    first = 0
    for number, sample in enumerate(samples):
        # Polls may be more than two minutes apart; then the mean is since the previous poll.
        while first + 1 < number and sample.at_ms - samples[first].at_ms > _MEAN_MS:
            first += 1
        done = getattr(sample, count) - getattr(samples[first], count)
        took = getattr(sample, time) - getattr(samples[first], time)
        means.append(took / done if done > 0 else None)
    return means


def versions_a_minute(samples: list[Sample]) -> list[float | None]:
    """Returns the versions a minute before each sample; ``None`` where the rate is not known."""
    rates: list[float | None] = []
    first = 0
    for number, sample in enumerate(samples):
        while first + 1 < number and sample.at_ms - samples[first + 1].at_ms >= _RATE_MS:
            first += 1
        before = samples[first]
        passed_ms = sample.at_ms - before.at_ms
        # A query that went back to an older version has no rate for a moment.
        known = passed_ms > 0 and sample.version >= before.version
        made = sample.version - before.version
        rates.append(made * _A_MINUTE_MS / passed_ms if known else None)
    return rates
