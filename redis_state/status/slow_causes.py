"""Causes of slow batches that executors' reports, manifests and the servers show, with advice.

Each check is a function from the recent figures of a store to the causes that it finds;
`docs/commands.md` describes the evidence and the threshold of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from redis_state.protocol.instances import Totals
from redis_state.status.query_status import PartitionStatus, QueryStatus
from redis_state.status.slow_calls import (
    BUSY,
    COMMITS_MIN,
    SHARE,
    Servers,
    call_causes,
    cause_of,
    ms_text,
)
from redis_state.status.slow_figures import PARTS, PartitionFigures, StoreFigures, figures_of
from redis_state.status.slow_files import reads_of_files, waits_for_room
from redis_state.status.slowness import SlowCause, SlowCauseKind, Slowness, TimeSpent

_LOADS_SHARE = 0.2
_LOADS_MIN = 2
_DELTAS_A_LOAD = 10
_ELSEWHERE = 1.5
_MEMORY_SHARE = 0.75
_RELOADED_SHARE = 0.2
_BUCKETS_MIN = 10
_PARTITIONS_MANY = 32
_ROWS_FEW = 10
_ROW_FAT_BYTES = 16 << 10
_COMMIT_FAT_BYTES = 256 << 10
_COMMIT_SLOW_US = 200_000
_COMMIT_LARGE_ROWS = 5_000
_FAT_SHARE = 0.3
_UNEVEN = 3
_UNEVEN_US = 100_000
_BACKGROUND = 0.5
_BEHIND = 250
_STARVED = 3
_ENCODE_MIN_US = 10_000
_TASK_SHARE = 0.8
_TASK_US = 1_000_000
_INTERVAL = 5


_Check = Callable[[StoreFigures, Servers], Iterator[SlowCause]]


def slowness_of(
    query: QueryStatus, totals: Mapping[tuple[int, int, str], Totals], servers: Servers
) -> Slowness:
    """Returns where the time of recent batches went, and all visible causes."""
    unknown = [line for one in servers for line in one.unknown]
    stores: list[StoreFigures] = []
    for status in query.stores:
        found = figures_of(status, totals)
        where = f"operator {status.operator}, store {status.store}"
        if found is None:
            unknown.append(
                f"times of {where}: no process has reported a commit within the last hour"
            )
            continue
        stores.append(found)
        if not found.is_full:
            unknown.append(
                f"parts of the time of {where}: stores of Python and older releases report only "
                "how long opening and committing take, since they were loaded"
            )
        if found.commits < COMMITS_MIN:
            unknown.append(
                f"causes in {where}: {found.commits} commits are too few, {COMMITS_MIN} are needed"
            )
    judged = [one for one in stores if one.commits >= COMMITS_MIN]
    unknown += [line for one in judged for line in _between_batches(one)]
    causes = [cause for one in judged for check in _CHECKS for cause in check(one, servers)]
    causes = [cause for cause in causes if not _is_explained(cause, causes, servers)]
    causes += _maintenance_behind(query)
    order = list(SlowCauseKind)
    causes.sort(key=lambda cause: order.index(cause.kind))
    return Slowness(
        tuple(time for one in stores for time in _times(one)),
        tuple(_once_a_query(causes)),
        tuple(dict.fromkeys(unknown)),
    )


def _is_explained(cause: SlowCause, causes: Sequence[SlowCause], servers: Servers) -> bool:
    """Returns whether another cause explains one: starved executors, retries, large commits."""
    if cause.kind is SlowCauseKind.UNEVEN_PARTITIONS:
        # A call that is sent again delays one partition.
        return any(one.kind is SlowCauseKind.RETRIES for one in causes)
    if cause.kind is SlowCauseKind.SLOW_ROUND_TRIPS:
        return any(one.kind is SlowCauseKind.EXECUTORS_BUSY for one in causes)
    return (
        cause.kind is SlowCauseKind.SERVER_BUSY
        and any(one.kind in _LARGE for one in causes)
        and not any((one.busy or 0.0) >= BUSY for one in servers)
        and all(slow.name in _OF_COMMITS for one in servers for slow in one.slow or ())
    )


def _times(of: StoreFigures) -> Iterator[TimeSpent]:
    at = of.status.operator, of.status.store
    commits = max(1, of.commits)
    shown = PARTS if of.is_full else ("open", "load", "encode", "publish")
    for part in shown:
        if of.parts[part] or of.is_full:
            yield TimeSpent(*at, part, of.parts[part] / commits / 1000, of.share(part))
    behind = of.number("foldUs") + of.number("maintenanceUs")
    if of.is_full:
        yield TimeSpent(*at, "background", behind / commits / 1000, 0.0)


def _between_batches(of: StoreFigures) -> Iterator[str]:
    """Reports intervals between batches that are much longer than what tasks report."""
    if not of.is_full:
        return
    busiest = max(of.partitions, key=lambda one: one.numbers["commits"]).numbers
    interval_us = 1000 * busiest.get("ms", 0) / busiest["commits"]
    longest_us = max(one.us_per_commit() for one in of.partitions)
    if interval_us >= _TASK_US and interval_us >= _INTERVAL * longest_us:
        yield (
            f"time outside of operator {of.status.operator}: a batch comes every "
            f"{ms_text(interval_us)}, and its slowest partition has the store for "
            f"{ms_text(longest_us)}; query.lastProgress and Spark's UI tell whether the rest is "
            "waiting for data or triggers, or work of other stages, functions behind the operator, "
            "the sink or the driver"
        )


def _once_a_query(causes: Sequence[SlowCause]) -> Iterator[SlowCause]:
    """Drops repetitions over stores of causes that a query or an operator has as a whole."""
    seen: set[tuple[object, ...]] = set()
    for one in causes:
        whole = one.operator is None
        key = (one.kind, one.operator, one.partitions) if not whole else (one.kind,)
        if one.kind in _OF_AN_OPERATOR or whole:
            if key in seen:
                continue
            seen.add(key)
        yield one


_LARGE = {SlowCauseKind.LARGE_VALUES, SlowCauseKind.LARGE_COMMITS}
_OF_COMMITS = {"evalsha", "exec", "hset", "hmget", "hgetall", "hlen"}
"""Names of slow commands that a store itself sends."""
_OF_AN_OPERATOR = {SlowCauseKind.OUTSIDE_THE_STORE, SlowCauseKind.UNEVEN_PARTITIONS}


def _loads(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    """Checks for versions that had to be loaded, beyond the first of each provider's partition."""
    loads = of.number("loads")
    again = loads - len(of.partitions)
    if again < _LOADS_MIN or again < _LOADS_SHARE * of.commits or not of.is_full:
        return
    # A load lists what there is; its rows are read when look-ups ask for them.
    each = ms_text((of.number("loadUs") + of.number("missUs")) / loads)
    seen = (
        f"{loads:,} of {of.commits:,} batches of a partition began with a load from Redis, which "
        f"takes {each} on average"
    )
    yield from _why_loads(of, seen)
    deltas = of.number("deltas") / loads
    if deltas >= _DELTAS_A_LOAD:
        yield cause_of(
            of,
            SlowCauseKind.LONG_LOADS,
            f"A load reads {deltas:,.0f} deltas on average: there is no newer snapshot to begin "
            "from.",
            "Snapshots are added by maintenance: see "
            "spark.sql.streaming.stateStore.maintenanceInterval, look for 'snapshot' in the "
            "executors' log, or run `redis-state maintain --once`.",
        )


def _why_loads(of: StoreFigures, seen: str) -> Iterator[SlowCause]:
    executors = {one.instance.executor_id for one in of.partitions}
    numbers = [int(one) for one in executors if one.isascii() and one.isdigit()]
    if numbers and max(numbers) + 1 > 2 * len(executors) + 2:
        yield cause_of(
            of,
            SlowCauseKind.LOST_EXECUTORS,
            f"{seen}. Partitions are served by {len(executors)} now, but numbers of executors "
            f"reach {max(numbers)}: others were lost or given back.",
            "A new executor has no state in memory. Look why executors end (memory, spot "
            "instances), and switch dynamic allocation off for this query.",
        )
        return
    elsewhere = [one.partition for one in of.partitions if _is_elsewhere(one)]
    if len(elsewhere) >= _LOADS_SHARE * len(of.partitions):
        yield cause_of(
            of,
            SlowCauseKind.MOVING_PARTITIONS,
            f"{seen}. Partitions moved between executors: those that have them now committed only "
            "some of the versions in between.",
            "Spark prefers the executor that has a partition, but waits for it only "
            "spark.locality.wait (3s): raise it, and leave no cores busy with other work. Dynamic "
            "allocation and speculation move partitions, too.",
            *elsewhere,
        )
        return
    made = of.number("providers")
    why = (
        f"Stores were closed and made anew {made:,} times on the same executors."
        if made > 2 * len(of.partitions)
        else "The same executors have the partitions; why versions were not in memory is unknown."
    )
    yield cause_of(
        of,
        SlowCauseKind.COLD_LOADS,
        f"{seen}. {why}",
        "Spark unloads a store when its coordinator knows another executor for the partition, or "
        "when maintenance fails: look for 'Unloaded' in the executors' log. Batches that are run "
        "again load, too: look for failed tasks in Spark's UI.",
    )


def _is_elsewhere(one: PartitionFigures) -> bool:
    commits = one.numbers.get("commits", 0)
    return commits >= 2 and one.numbers.get("versions", 0) > _ELSEWHERE * commits


def _memory(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    fullest = max(
        of.partitions,
        key=lambda one: one.numbers.get("localBytes", 0) / max(1, one.numbers.get("localMax", 0)),
    ).numbers
    used, limit = fullest.get("localBytes", 0), fullest.get("localMax", 0)
    buckets, reloaded = of.number("buckets"), of.number("reloaded")
    again = reloaded >= max(_BUCKETS_MIN, _RELOADED_SHARE * buckets)
    making_room = of.number("roomUs") > SHARE * of.total_us
    full = limit > 0 and used >= _MEMORY_SHARE * limit and of.per_commit("misses") >= 1
    if again or full or making_room:
        yield cause_of(
            of,
            SlowCauseKind.SMALL_MEMORY,
            f"{reloaded:,} of {buckets:,} buckets were read again because memory had no room for "
            f"them; {of.per_commit('misses'):,.0f} look-ups a batch and partition waited, "
            f"{ms_text(of.per_commit('missUs'))} in all, and making room took "
            f"{ms_text(of.per_commit('roomUs'))}. The stores of an executor hold "
            f"{used:,} of {limit:,} bytes (`localMemory`).",
            "Raise localMemory and the executors' heap, or spread the state over more executors.",
        )


def _background(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    spent = of.number("foldUs") + of.number("maintenanceUs")
    window = sum(one.numbers.get("ms", 0) for one in of.processes().values()) * 1000
    if window and spent >= _BACKGROUND * window:
        yield cause_of(
            of,
            SlowCauseKind.BACKGROUND_BUSY,
            f"Folds, snapshots and retention took {spent / window:.1f} threads of each executor, "
            "and compete with tasks for its cores.",
            "Batches change much of the state: fewer, larger batches fold less often. More cores "
            "help, or a longer spark.sql.streaming.stateStore.maintenanceInterval.",
        )


def _maintenance_behind(query: QueryStatus) -> Iterator[SlowCause]:
    for store in query.stores:
        behind = [one for one in store.partitions if _since_snapshot(one) > _BEHIND]
        if behind:
            worst = max(behind, key=_since_snapshot)
            yield SlowCause(
                SlowCauseKind.MAINTENANCE_BEHIND,
                f"Partition {worst.partition} has {_since_snapshot(worst):,} versions "
                "since its last snapshot; one is due after 200.",
                "Whoever opens the state reads all of them. Snapshots fail, or nobody makes them: "
                "look for 'snapshot' in the executors' log, or run `redis-state maintain --once`.",
                store.operator,
                store.store,
                tuple(one.partition for one in behind),
            )


def _since_snapshot(one: PartitionStatus) -> int:
    """Returns the number of versions since a snapshot, or since deltas that need none."""
    return one.confirmed - max(one.snapshot, one.oldest + one.wanted)


def _starved(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    """Compares the time of work that only computes with the time that it had a processor."""
    took, had = of.number("encodeUs"), of.number("encodeCpuUs")
    if had and took >= _ENCODE_MIN_US and took >= _STARVED * had:
        yield SlowCause(
            SlowCauseKind.EXECUTORS_BUSY,
            f"Encoding took {ms_text(took)} in {of.commits:,} commits, of which it had a processor "
            f"for {ms_text(had)}: tasks wait for the executors' cores, or for garbage collection.",
            "Look at the load and the CPU limits of the executors' machines, and at GC time in "
            "Spark's UI: all parts of a batch take longer by that.",
        )


def _commits(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    sent, rows = of.number("bytesSent"), max(1, of.number("rows"))
    share = of.share("encode", "publish")
    us = (of.parts["encode"] + of.parts["publish"]) / of.commits
    if share < _FAT_SHARE:
        return
    if sent / rows >= _ROW_FAT_BYTES and sent / of.commits >= _COMMIT_FAT_BYTES:
        yield cause_of(
            of,
            SlowCauseKind.LARGE_VALUES,
            f"A changed row has {sent / rows:,.0f} bytes after compression, a commit "
            f"{sent / of.commits:,.0f}: {share:.0%} of the time goes into encoding and sending.",
            "Large values and long lists are written whole with each change. Keep less in a value, "
            "or give the parts keys of their own: a map or list state writes only what changes.",
        )
    elif (
        us >= _COMMIT_SLOW_US
        and (rows / of.commits >= _COMMIT_LARGE_ROWS or sent / of.commits >= _COMMIT_FAT_BYTES)
        and of.per_commit("durable") < 1
    ):
        yield cause_of(
            of,
            SlowCauseKind.LARGE_COMMITS,
            f"A commit changes {rows / of.commits:,.0f} rows with {sent / of.commits:,.0f} bytes "
            f"and takes {ms_text(us)}, of which encoding takes "
            f"{ms_text(of.parts['encode'] / of.commits)}.",
            "More partitions and cores share the encoding; smaller batches "
            "(maxOffsetsPerTrigger and the like) take less each.",
        )


def _many(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    count, rows = len(of.status.partitions), of.per_commit("rows")
    if count < _PARTITIONS_MANY or rows >= _ROWS_FEW:
        return
    if of.share("open", "load", "encode", "publish") >= SHARE or not of.is_full:
        yield cause_of(
            of,
            SlowCauseKind.MANY_PARTITIONS,
            f"A batch changes {rows:,.1f} rows in each of {count:,} partitions. Each needs a task "
            f"and two round trips, {ms_text(of.total_us / of.commits)} on average, however few "
            "rows there are.",
            "Give the query fewer partitions: `redis-state rescale` or the option rescaleTo, with "
            "spark.sql.shuffle.partitions for a new query.",
        )


def _uneven(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    if len(of.partitions) < 2:
        return
    slowest = max(of.partitions, key=PartitionFigures.us_per_commit)
    rest = [one.us_per_commit() for one in of.partitions if one is not slowest]
    mean, most = sum(rest) / len(rest), slowest.us_per_commit()
    if most >= _UNEVEN * mean and most - mean >= _UNEVEN_US:
        yield cause_of(
            of,
            SlowCauseKind.UNEVEN_PARTITIONS,
            f"A batch of partition {slowest.partition} takes {ms_text(most)}, of the others "
            f"{ms_text(mean)} on average, and the query waits for the slowest.",
            "Few values of the grouping columns have most rows, or its executor is slow: see "
            "`redis-state skew`, and compare with Spark's UI.",
            slowest.partition,
        )


def _outside(of: StoreFigures, _servers: Servers) -> Iterator[SlowCause]:
    mean = of.parts["task"] / of.commits
    if of.share("task") >= _TASK_SHARE and mean >= _TASK_US:
        yield cause_of(
            of,
            SlowCauseKind.OUTSIDE_THE_STORE,
            f"{of.share('task'):.0%} of a task's {ms_text(of.total_us / of.commits)} pass between "
            "opening and committing, without waiting for Redis: input, shuffle, the operator, "
            "functions of the job, the sink, and look-ups in memory.",
            "This is not the store's own time. Look at the stages in Spark's UI and profile the "
            "job's functions; Python functions and the sink are the usual ones.",
        )


_CHECKS: tuple[_Check, ...] = (
    call_causes,
    _loads,
    waits_for_room,
    reads_of_files,
    _memory,
    _background,
    _starved,
    _commits,
    _many,
    _uneven,
    _outside,
)
