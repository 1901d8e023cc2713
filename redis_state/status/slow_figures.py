"""Recent figures of a query's stores, summed from the reports of their instances.

Instances of the JVM report a window of some minutes; stores of Python report only totals since they
were loaded (docs/format.md, section 9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from redis_state.protocol.instances import Instance, Totals
from redis_state.status.query_status import StoreStatus

SHORTEST_US = 125
_US = 1000


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """Recent figures of one partition.

    Attributes:
        numbers: By the names of the member `recent`; a missing one is 0.
        open_times: See `Totals`.
        is_full: False if only totals are known, as of a Python store.
    """

    partition: int
    instance: Instance
    numbers: Mapping[str, int]
    open_times: tuple[int, ...]
    is_full: bool

    def us_per_commit(self) -> float:
        """Returns the mean time of a batch of this partition, in microseconds."""
        return sum(_parts_of(self.numbers).values()) / max(1, self.numbers.get("commits", 0))


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """Recent figures of all partitions of a store that reported.

    Attributes:
        parts: Time of each part of the batches, in microseconds; see `PARTS`.
        open_times: Sums of the partitions' `open_times`.
        is_full: False if only totals are known of some partition.
    """

    status: StoreStatus
    partitions: tuple[PartitionFigures, ...]
    numbers: Mapping[str, int]
    parts: Mapping[str, int]
    open_times: tuple[int, ...]
    is_full: bool

    def number(self, name: str) -> int:
        """Returns a sum over the partitions."""
        return self.numbers.get(name, 0)

    @property
    def commits(self) -> int:
        """Number of committed partition versions."""
        return self.number("commits")

    @property
    def total_us(self) -> int:
        """Time of all parts."""
        return sum(self.parts.values())

    def share(self, *parts: str) -> float:
        """Returns the fraction of the time that some parts take."""
        return sum(self.parts[one] for one in parts) / max(1, self.total_us)

    def per_commit(self, name: str) -> float:
        """Returns the mean of a number over commits."""
        return self.number(name) / max(1, self.commits)

    def processes(self) -> dict[tuple[str, str], PartitionFigures]:
        """Returns one partition for each process, for numbers that a process has in common."""
        return {(one.instance.host, one.instance.executor_id): one for one in self.partitions}

    def open_us(self, quantile: float) -> int | None:
        """Returns the lower bound of a quantile of opening calls; ``None`` without any call."""
        wanted = quantile * sum(self.open_times)
        if not wanted:
            return None
        ends = enumerate(accumulate(self.open_times))
        place = next(at for at, counted in ends if counted >= wanted)
        return SHORTEST_US << (place - 1) if place else 0


PARTS: Mapping[str, str] = {
    "open": "asking Redis for the version",
    "load": "loading what was not in memory",
    "miss": "look-ups that waited for rows from Redis",
    "task": "the task itself: input, operator, functions, look-ups in memory",
    "encode": "encoding and compressing changes",
    "publish": "sending and publishing them",
}
"""Parts of a batch's time in one partition, in their order, with their meaning."""


def _parts_of(numbers: Mapping[str, int]) -> dict[str, int]:
    def of(name: str) -> int:
        return numbers.get(name, 0)

    return {
        "open": max(0, of("openUs") - of("loadUs")),
        "load": of("loadUs"),
        "miss": of("missUs"),
        "task": max(0, of("workUs") - of("missUs")),
        "encode": of("encodeUs"),
        "publish": max(0, of("commitUs") - of("encodeUs")),
    }


def figures_of(
    store: StoreStatus, totals: Mapping[tuple[int, int, str], Totals]
) -> StoreFigures | None:
    """Returns the figures of a store; ``None`` if none of its partitions has committed lately."""
    found = [
        _partition(place[1], one)
        for place, one in sorted(totals.items())
        if (place[0], place[2]) == (store.operator, store.store)
        and place[1] < len(store.partitions)
    ]
    partitions = tuple(one for one in found if one.numbers.get("commits"))
    if not partitions:
        return None
    numbers: Counter[str] = Counter()
    for one in partitions:
        numbers.update(one.numbers)
    return StoreFigures(
        store,
        partitions,
        numbers,
        _parts_of(numbers),
        _summed([one.open_times for one in partitions]),
        all(one.is_full for one in partitions),
    )


def _partition(number: int, totals: Totals) -> PartitionFigures:
    if totals.recent is not None:
        return PartitionFigures(
            number, totals.instance, totals.recent, totals.open_times, is_full=True
        )
    counts = totals.counts
    numbers = {
        "opens": counts.get("opens", 0),
        "openUs": counts.get("openMs", 0) * _US,
        "loads": counts.get("loads", 0),
        "loadUs": counts.get("loadMs", 0) * _US,
        "commits": counts.get("commits", 0),
        "commitUs": counts.get("commitMs", 0) * _US,
        "rows": counts.get("rowsWritten", 0) + counts.get("rowsRemoved", 0),
        "bytesSent": counts.get("bytesSent", 0),
        "roomWaits": counts.get("roomWaits", 0),
        "roomWaitUs": counts.get("roomWaitMs", 0) * _US,
    }
    return PartitionFigures(number, totals.instance, numbers, (), is_full=False)


def _summed(all_: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    length = max(map(len, all_), default=0)
    return tuple(sum(one[at] for one in all_ if at < len(one)) for at in range(length))
