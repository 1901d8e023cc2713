"""Counters of stores, summed from the counters of their partitions' instances.

Each instance counts from its start (docs/format.md, section 9), so the counter of a store is the
sum of the observed increases.
"""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.clock import SYSTEM, Clock
from redis_state.protocol.instances import TOTALS_TTL_MS, Instance, Totals

CounterKey = tuple[int, int, str]
"""Operator, partition and store."""

CheckpointStore = tuple[str, int, str]
"""Checkpoint, operator and store."""

_INSTANCES_MAX = 32


class Increases:
    """Sums of increases between polls, starting from the counts of the first. Not thread-safe."""

    def __init__(self) -> None:
        # Latest counts of each partition's instances, the newest instance last: Python workers take
        # turns, and each continues its own counts.
        self._last: dict[tuple[str, CounterKey], dict[Instance, Mapping[str, int]]] = {}
        self._sums: dict[CheckpointStore, dict[str, int]] = {}

    def add(
        self, seen: Mapping[str, Mapping[CounterKey, Totals]]
    ) -> Mapping[CheckpointStore, Mapping[str, int]]:
        """Adds the increases since the last poll; returns the sums by store.

        Args:
            seen: Result of `Reader.totals`; checkpoints that are not in it are forgotten.
        """
        # The hash of a checkpoint may be missing for one poll, for example after an eviction.
        last = {place: found for place, found in self._last.items() if place[0] in seen}
        for gen, places in seen.items():
            for place, now in places.items():
                sums = self._sums.setdefault((gen, place[0], place[2]), {})
                instances = last.setdefault((gen, place), {})
                known = instances.pop(now.instance, {})
                kept = instances[now.instance] = dict(now.counts)
                if len(instances) > _INSTANCES_MAX:
                    del instances[next(iter(instances))]
                for name, count in now.counts.items():
                    counted = known.get(name, 0)
                    more = count - counted
                    if more < 0 and count * 2 < counted:
                        more = count  # the instance was loaded anew
                    elif more < 0:
                        # The server was restored from an older file, or is a lagging replica.
                        more, kept[name] = 0, counted
                    sums[name] = sums.get(name, 0) + more
        self._last = last
        self._sums = {store: sums for store, sums in self._sums.items() if store[0] in seen}
        return self._sums


class ErrorIncreases:
    """Sums of errors between polls. Not thread-safe.

    The first poll only sets the baseline. Later polls also count errors of new places.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._looked_s = 0.0
        self._last: Mapping[str, Mapping[tuple[str, int, str], int]] | None = None
        self._sums: dict[tuple[str, str, int, str], int] = {}

    def add(
        self, seen: Mapping[str, Mapping[tuple[str, int, str], int]]
    ) -> Mapping[tuple[str, str, int, str], int]:
        """Adds the errors since the last poll; returns sums by checkpoint, error, operator, store.

        Args:
            seen: Result of `Reader.errors`; checkpoints that are not in it are forgotten.
        """
        now_s = self._clock.monotonic_s()
        may_be_new = (now_s - self._looked_s) * 1000 >= TOTALS_TTL_MS
        if self._last is not None:
            for gen, counts in seen.items():
                known = self._last.get(gen, {})
                for of, count in counts.items():
                    before = known.get(of, 0)
                    # A smaller number: earlier counts have expired, if enough time has passed. Else
                    # the server was restored from an older file, or is a lagging replica.
                    more = count if count < before and may_be_new else max(0, count - before)
                    place = (gen, of[0], of[1], of[2])
                    self._sums[place] = self._sums.get(place, 0) + more
        self._last, self._looked_s = seen, now_s
        self._sums = {of: count for of, count in self._sums.items() if of[0] in seen}
        return self._sums
