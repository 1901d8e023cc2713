"""Accidents of a schedule's server: fail-overs, lost keys, older data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from redis_state import keys
from redis_state.ids import PartitionId
from tests.faults.oracle.keyspace import Copy, Keyspace
from tests.faults.oracle.network import Network


class Judge(Protocol):
    """Interface to the judge of loads, as far as lost data concerns it.

    Attributes:
        destroyed: Whether a server lost data; then a loss may be told, but nothing wrong served.
        forked: Whether a server went back in time or lost a manifest: format 1 cannot tell one
            timeline from another then.
    """

    destroyed: bool
    forked: bool


class Accidents:
    """Accidents of the partitions of one query."""

    def __init__(
        self,
        keyspace: Keyspace,
        network: Network,
        timeline: Judge,
        partitions: Sequence[PartitionId],
        counters: Counter[str],
    ) -> None:
        self._keyspace = keyspace
        self._network = network
        self._timeline = timeline
        self._manifests = [keys.meta(id_) for id_ in partitions]
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
        there = [name for name in self._manifests if self._keyspace.holds(name)]
        if self._keyspace.remove_one(names):
            self._counters["destroyed"] += 1
            self._timeline.destroyed = True
            # Without a manifest any attempt at version 0 makes it anew, which format 1 cannot tell
            # from the lost one (docs/reliability.md, "What is not promised").
            self._timeline.forked |= not all(map(self._keyspace.holds, there))

    def copy(self) -> None:
        """A replica has received what there is."""
        self._copied = self._keyspace.copy()

    def fail_over(self, tag: str = "") -> bool:
        """A replica takes over that has what was copied last; false if nothing was.

        Args:
            tag: Of the keys that lie there, as in a cluster; empty for all.
        """
        if self._copied is None:
            return False
        self._counters["fail-overs"] += 1
        self._timeline.destroyed = self._timeline.forked = True
        self._keyspace.restore(self._copied, tag)
        return True
