"""Maintenance of a schedule's partition from a separate process, whose conf must not count."""

from __future__ import annotations

from collections.abc import Callable

from redis_state.backend.client import Client
from redis_state.ids import PartitionId, Pin
from redis_state.maintain.compaction import add_snapshot
from redis_state.protocol import PartitionClient
from tests.faults.oracle.by_uid import UidClient, asking
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.timeline import Timeline


class Maintainer:
    """Adds snapshots and drops old versions."""

    def __init__(
        self,
        client: Callable[[], Client],
        partition: PartitionId,
        timeline: Timeline,
        dice: Dice,
    ) -> None:
        self._client = client
        self._partition = partition
        self._timeline = timeline
        self._dice = dice

    def run(self, format_: int) -> None:
        """One pass.

        Args:
            format_: Checkpoint format of the query.
        """
        counters = self._timeline.counters
        partition = UidClient(self._client(), self._partition, versions_to_retain=1)
        opened = partition.open("", None)
        if opened.pin.version > 0 and not opened.segments[0].snapshot:
            added = add_snapshot(partition, opened)
            counters["snapshots"] += added is not None
        heard_of = self._timeline.next_attempts
        if format_ == 2 and heard_of and self._dice.one_in(2):
            # As the JVM adapter does when Spark forces a snapshot with a commit.
            pin = Pin(self._timeline.logged + 1, heard_of[-1])
            counters["snapshots of attempts"] += _has_snapshot_of(partition, pin)
        partition.retain()


def _has_snapshot_of(partition: PartitionClient, pin: Pin) -> bool:
    """Adds a snapshot of an attempt; returns whether it was wanted."""
    with asking(2, pin):
        return add_snapshot(partition, partition.open("", pin.version)) is not None
