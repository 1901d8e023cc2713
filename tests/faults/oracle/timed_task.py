"""Judges what a task of a schedule with a time to live sees and writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from redis_state.format.entry import parse_segment
from redis_state.ids import PartitionId
from redis_state.store.local.timed import TimedVersion
from redis_state.store.partition_store import PartitionReadStore, PartitionStore
from tests.faults.oracle.keyspace import Keyspace
from tests.faults.oracle.timed import SERVER_CLOCK, TimedModel
from tests.faults.oracle.timeline import RETAINED, Task, Timeline


class Timed:
    """One writing task.

    Args:
        model: Shared by all tasks of the schedule.
        ttl_s: The task's option; ``None`` if what it writes has no time to live.
        keyspace: Reads the newest opened version of the partition.
    """

    def __init__(
        self,
        model: TimedModel,
        timeline: Timeline,
        ttl_s: int | None,
        keyspace: Keyspace,
        partition: PartitionId,
    ) -> None:
        self._model = model
        self._ttl_s = ttl_s
        self._timeline = timeline
        self._keyspace, self._partition = keyspace, partition
        self._known = self._from = self._opened_before = 0

    @property
    def _opened(self) -> tuple[int, str]:
        return self._keyspace.opened(self._partition)

    def begin(self) -> None:
        """The task opens its version."""
        self._known = len(self._model.acknowledged)
        self._from = len(SERVER_CLOCK.times) - 1
        self._opened_before, _ = self._opened

    def seen(self, task: Task, store: PartitionReadStore) -> dict[str, list[int]] | None:
        """The rows that the task has to see; ``None`` if nobody made the attempt below."""
        pin = store._local.pin
        below = self._model.content(pin.uid)
        if below is None:
            return None
        now_s = _now_s(store)
        if now_s < below.time_s:
            self._wrong(f"{task.name}: time goes back from {below.time_s} to {now_s}")
        if task.version < max(self._opened_before, self._opened[0]):
            # A run that goes back begins the batch anew, with a new time.
            self._model.rewind(pin.uid, task.run.number if task.run is not None else 0)
        since = self._model.rewound.get(pin.uid, 0)
        # One without a time lends none.
        told = pin.uid in self._model.acknowledged[since : self._known]
        made = self._model.made.get(pin.uid, set())
        if not made and self._ttl_s is not None and not since:
            shown = {below.time_s, *SERVER_CLOCK.times[self._from :]}
            if now_s not in shown:
                self._wrong(f"{task.name}: its time is {now_s}, the server's was {sorted(shown)}")
        is_kept = task.version >= self._timeline.started_max - RETAINED
        counts = is_kept and self._timeline.current(task)
        if told and self._ttl_s is not None and 0 not in made and counts:
            self._timeline.counters["batches run again at their time"] += 1
            if now_s not in made:
                self._wrong(f"{task.name}: it is run again at {now_s}, before at {sorted(made)}")
        return below.at(now_s)

    def writes(
        self, store: PartitionStore, rows: Mapping[str, list[int]], put: Collection[str]
    ) -> None:
        """The task is about to commit these rows."""
        model, parent = self._model, store._local.pin.uid
        below = model.content(parent)
        if below is None:
            return
        self._written = below.next(_now_s(store), self._ttl_s, rows, put)
        model.contents[store._uid] = self._written
        model.made.setdefault(parent, set()).add(self._written.time_s)
        self._parent = parent

    def committed(self, store: PartitionStore) -> None:
        """The task was told that its version is there."""
        if self._written.time_s:
            self._model.acknowledged.append(self._parent)
        if store._local.time_s != self._written.time_s:
            found = store._local.time_s
            self._wrong(f"{store} has time {found}, not {self._written.time_s}")

    def _wrong(self, text: str) -> None:
        if not self._timeline.destroyed:
            self._timeline.counters["wrong"] += 1
            self._timeline.problem(text)


def look_at_each(
    timeline: Timeline, task: Task, store: PartitionReadStore, rows: Mapping[str, list[int]]
) -> None:
    """Compares look-ups and the count of keys with a scan."""
    keys = [*rows, *(f"k{n}" for n in range(6))]
    if [store.get(key) for key in keys] != [rows.get(key) for key in keys]:
        timeline.problem(f"{task.name}: get and iterator differ")
    if store.get_many(keys) != [rows.get(key) for key in keys]:
        timeline.problem(f"{task.name}: get_many and iterator differ")
    if store._local.live < len(rows):
        timeline.problem(f"{task.name}: {store._local.live} keys are live, not {len(rows)}")
    timeline.counters["timed loads"] += 1
    timeline.counters["expired rows hidden"] += store._local.live > len(rows)


def _now_s(store: PartitionReadStore) -> int:
    local = store._local
    return local.now_s if isinstance(local, TimedVersion) else 0


def judge_snapshots(timeline: Timeline, model: TimedModel, manifest: Mapping[str, str]) -> None:
    """Compares the count of keys of each snapshot with the rows that its attempt wrote."""
    for name, text in manifest.items():
        if not name.startswith("s:"):
            continue
        snapshot = parse_segment(name, text)
        written = model.content(snapshot.uid)
        if written is None:
            continue
        live, entry = len(written.at(written.time_s)), snapshot.entry
        timeline.counters["timed snapshots counted"] += 1
        if (entry.live, entry.time) != (live, written.time_s):
            timeline.problem(f"{name} counts {entry.live} keys at {entry.time}, not {live}")
