"""The end of a schedule: alone and without faults everything works, and nothing is left over."""

from __future__ import annotations

from redis_state import keys
from redis_state.errors import RedisStateError
from redis_state.ids import Pin
from redis_state.maintain.orphans import sweep_orphans
from redis_state.store.partition_store import PartitionReadStore
from tests.faults.oracle.by_uid import asking
from tests.faults.oracle.schedule import Schedule
from tests.faults.oracle.timed_task import judge_snapshots
from tests.faults.oracle.timeline import RETAINED

_BATCHES = 3


class Ending:
    """Final checks of every schedule.

    Args:
        schedule: One that has run.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._timeline = schedule.timeline
        self._keyspace = schedule.keyspace

    def run(self) -> None:
        """Problems are those of the timeline."""
        self._schedule.network.faults = False
        self._schedule.network.flush()
        if self._timeline.problems:
            return
        self._read_back()
        if self._schedule.keeps is not None:
            self._schedule.keeps.end()
        for _ in range(_BATCHES):
            self._batch_alone()
            self._maintain_alone()
        if self._timeline.problems:
            return
        timed, partition = self._schedule.timed, self._schedule.partition
        if timed is not None and not self._timeline.destroyed:
            judge_snapshots(self._timeline, timed, self._keyspace.fields(keys.meta(partition)))
        if self._timeline.destroyed:
            sweep_orphans(self._schedule.client())
        self._keyspace.remove(self._keyspace.mortal())
        self._look_for_orphans()
        self._read_back()

    def _maintain_alone(self) -> None:
        if not self._timeline.problems:
            self._schedule.start_maintainer()
            while self._schedule.network.actors:
                self._schedule.step()

    def _batch_alone(self) -> None:
        self._schedule.restart_by_driver()
        before = self._timeline.logged
        for _ in range(_BATCHES):
            self._schedule.start_attempt()
            while self._schedule.network.actors:
                self._schedule.step()
            if self._timeline.problems:
                return
            if self._timeline.logged == before + 1:
                return
        if self._timeline.destroyed:
            self._schedule.restart_by_driver(self._timeline.logged)

    def _read_back(self) -> None:
        """Reads back every kept version in a process that has nothing cached.

        In format 2 this holds for each attempt that the driver may log next, too.
        """
        timeline = self._timeline
        oldest = max(0, timeline.started_max - RETAINED)
        if timeline.run.run_id in timeline.acquired:
            for version in range(oldest, timeline.logged + 1):
                self._read_back_one(version, timeline.log.pin(version))
            if timeline.run.format == 2:
                for uid in timeline.next_attempts:
                    self._read_back_one(timeline.logged + 1, Pin(timeline.logged + 1, uid))

    def _read_back_one(self, version: int, asked: Pin | None) -> None:
        try:
            with asking(self._timeline.run.format, asked):
                store = self._schedule.providers.stranger().get_read_store(version)
        except RedisStateError as error:
            if not self._timeline.destroyed:
                self._schedule.counters["false lost"] += 1
                self._timeline.problem(f"in the end, version {asked or version}: {error}")
            return
        assert isinstance(store, PartitionReadStore)
        self._timeline.loaded(
            "in the end",
            store._local.pin,
            dict(store.iterator()),
            asked=asked,
            logged_in=self._timeline.log.owners.get(version),
        )

    def _look_for_orphans(self) -> None:
        there, named = self._keyspace.segments(self._schedule.partition)
        for name in sorted(there - named):
            self._schedule.counters["orphans"] += 1
            self._timeline.problem(f"{name} is of no manifest and never expires")
        for name in sorted(named - there):
            if not self._timeline.destroyed:
                self._timeline.problem(f"the manifest names {name}, which is gone")
