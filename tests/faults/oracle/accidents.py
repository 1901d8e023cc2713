"""Accidents of a schedule's server: fail-overs, lost keys, older data."""

from __future__ import annotations

from collections import Counter

from redis_state import keys
from redis_state.ids import PartitionId
from tests.faults.oracle.keyspace import Copy, Keyspace
from tests.faults.oracle.network import Network
from tests.faults.oracle.timeline import Timeline


class Accidents:
    """Those of one partition."""

    def __init__(
        self,
        keyspace: Keyspace,
        network: Network,
        timeline: Timeline,
        partition: PartitionId,
        counters: Counter[str],
    ) -> None:
        self._keyspace = keyspace
        self._network = network
        self._timeline = timeline
        self._partition = partition
        self._counters = counters
        self._copied: Copy | None = None

    def expire_one(self) -> None:
        """A key reaches its expiry."""
        if self._keyspace.remove_one(self._keyspace.mortal()):
            self._counters["expired"] += 1
            self._network.disturb()

    def destroy(self) -> None:
        """A key of the partition is gone."""
        names = [
            name
            for name in self._keyspace.names()
            if b"}:" in name and name[-2:] not in (b":q", b":n")
        ]
        manifest = keys.meta(self._partition)
        there = self._keyspace.holds(manifest)
        if self._keyspace.remove_one(names):
            self._counters["destroyed"] += 1
            self._timeline.destroyed = True
            # Without a manifest any attempt at version 0 makes it anew, which format 1 cannot tell
            # from the lost one (docs/reliability.md, "What is not promised").
            self._timeline.forked |= there and not self._keyspace.holds(manifest)

    def copy(self) -> None:
        """A replica has received what there is."""
        self._copied = self._keyspace.copy()

    def fail_over(self) -> None:
        """A replica takes over that has what was copied last."""
        if self._copied is None:
            return
        self._counters["fail-overs"] += 1
        self._timeline.destroyed = self._timeline.forked = True
        self._keyspace.restore(self._copied)
