"""Changes that an attempt makes to its store, and copies of a process that has it open."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from typing import cast

from redis_state.errors import RedisStateError
from redis_state.store.bulk import KeyEncoder
from redis_state.store.partition_state import PartitionState
from redis_state.store.partition_store import PartitionListStore, PartitionStore
from tests.faults.oracle.previewing import PreviewWriter
from tests.faults.oracle.runs import Run
from tests.faults.oracle.timeline import Task, Timeline


def change(store: PartitionStore, rows: dict[str, list[int]], what: str, key: str, n: int) -> None:
    """Do one change to the store, and to the rows that it has to have then."""
    if what == "p" or what == "u":
        store.put(key, [n])
        rows[key] = [n]
    elif what == "a":
        rows[key] = [*rows.get(key, []), n]
        if isinstance(store, PartitionListStore):
            store.append(key, n)
        else:
            store.put(key, [*(store.get(key) or []), n])
    else:
        store.remove(key)
        rows.pop(key, None)


def commit(
    timeline: Timeline,
    run: Run,
    store: PartitionStore,
    rows: dict[str, list[int]],
    *,
    aborts: bool,
    preview: PreviewWriter | None = None,
) -> None:
    """Commit, and tell the driver.

    Args:
        aborts: Whether what could not be committed is given up.
        preview: The previews of the attempt.
    """
    begun, parent = timeline.commits, store._local.pin
    try:
        store.commit()
    except RedisStateError:
        if aborts:
            store.abort()
            if preview is not None:
                preview.end()
        raise
    timeline.was_committed(run, parent, begun=begun)
    timeline.acknowledged(store._local.pin, rows)
    timeline.heard_of(run, store._local.pin)


def forked(
    timeline: Timeline,
    task: Task,
    run: Run,
    store: PartitionStore,
    rows: dict[str, list[int]],
    n: int,
) -> tuple[Task, Callable[[], None]]:
    """The process was copied amid its attempt: each copy goes on in its own way, as the same uid.

    `redis_state` refuses such a copy. That of a virtual machine it cannot tell from the first one.

    Args:
        n: What the copy puts.
    """
    timeline.counters["forks"] += 1
    child, own = copy(store), dict(rows)
    partition = cast(PartitionState, copy(store._partition))
    partition.cache = copy(partition.cache)
    partition.cache._versions = dict(partition.cache._versions)
    child._partition, child._stored = partition, KeyEncoder(store._codec)
    child._changes = deepcopy(store._changes)
    child._changed = child._changes.rows
    change(child, own, "p", "k0", n)
    timeline.forked_rows[store._uid] = [rows, own]
    twin = Task(f"copy of {task.name}", task.version, run, run, False, task.asked)
    return twin, lambda: commit(timeline, run, child, own, aborts=True)
