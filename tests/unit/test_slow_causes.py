"""Causes of slow batches, from reports of executors as they would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from redis_state.protocol.instances import Instance, Totals
from redis_state.reader import PartitionStatus, QueryStatus, SlowCauseKind, Slowness, StoreStatus
from redis_state.status.server_load import ServerLoad, SlowCommands
from redis_state.status.slow_causes import slowness_of

FAST = (4, 30, 6)
SLOW = (0, 0, 0, 0, 0, 0, 0, 20)
STALLED = (10, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0, 20)
LATELY: Mapping[str, int] = {
    "ms": 10_000, "opens": 20, "openUs": 8_000, "loads": 1, "loadUs": 1_000, "deltas": 1,
    "commits": 20, "commitUs": 40_000, "encodeUs": 10_000, "workUs": 400_000, "rows": 2_000,
    "bytesSent": 60_000, "roundTrips": 41, "redisUs": 30_000, "foldUs": 5_000,
    "maintenanceUs": 20_000, "providers": 1, "versions": 20, "localBytes": 1 << 20,
    "localMax": 1 << 30,
}  # fmt: skip
"""A healthy partition: 20 batches, each with 100 rows, in 22 ms."""

IDLE = ServerLoad(300, 0.02, (("evalsha", 1.0),), (), ())
BUSY = ServerLoad(30_000, 0.95, (("keys", 0.9), ("evalsha", 0.1)), (), ())
BLOCKED = ServerLoad(300, 0.02, (), (SlowCommands("keys", 9, 900_000, 200_000),), ())
BLIND = ServerLoad(None, None, (), None, ("load of the server: the user has no right to INFO",))

Change = Mapping[str, Any]


def diagnosed(
    *changes: Change,
    partitions: int = 4,
    times: Sequence[int] = FAST,
    servers: Sequence[ServerLoad] = (IDLE,),
    **status: int,
) -> Slowness:
    """Diagnoses a query whose partitions report `LATELY` with changes, the last one repeated.

    Args:
        changes: Numbers; also `executor`.
        status: Members of each partition's status.
    """
    members: dict[str, Any] = {"confirmed": 20, "snapshot": 12, "wanted": 10, **status}
    store = StoreStatus(
        0,
        "default",
        "agg",
        (),
        tuple(PartitionStatus(0, "default", number, **members) for number in range(partitions)),
    )
    query = QueryStatus("0" * 32, "id", "q", 1, 1, 1, "run", 1, 1, (store,))
    totals = {}
    for number in range(partitions):
        change = dict(changes[min(number, len(changes) - 1)]) if changes else {}
        instance = Instance("host", str(change.pop("executor", number % 2)), "run")
        recent = {**LATELY, **change}
        recent.setdefault("encodeCpuUs", recent["encodeUs"])
        totals[0, number, "default"] = Totals(instance, {}, recent, tuple(times))
    return slowness_of(query, totals, servers)


def kinds(found: Slowness) -> list[SlowCauseKind]:
    return [one.kind for one in found.causes]


def test_healthy_query_has_no_cause() -> None:
    found = diagnosed()
    assert (found.causes, found.unknown) == ((), ())
    ms = {one.part: one.ms for one in found.times}
    assert ms["open"] == pytest.approx(0.35)
    assert ms["task"] == pytest.approx(20)
    assert ms["encode"] == pytest.approx(0.5)
    assert ms["publish"] == pytest.approx(1.5)
    assert ms["background"] == pytest.approx(1.25)
    assert sum(one.share for one in found.times) == pytest.approx(1)


LONG_TRIPS = {"openUs": 400_000, "commitUs": 400_000, "redisUs": 700_000}


@pytest.mark.parametrize(
    ("change", "more", "kind", "said"),
    [
        ({"retries": 5}, {}, SlowCauseKind.RETRIES, "sent 5 calls to Redis again within 10 s"),
        (LONG_TRIPS, {"times": SLOW}, SlowCauseKind.SLOW_NETWORK, "8.0 ms to 16 ms at best"),
        (LONG_TRIPS, {"times": SLOW, "servers": [BLIND]}, SlowCauseKind.SLOW_NETWORK, "unknown"),
        (LONG_TRIPS, {"times": SLOW, "servers": [BUSY]}, SlowCauseKind.SERVER_BUSY, "keys 90%"),
        (
            LONG_TRIPS,
            {"times": STALLED, "servers": [BLOCKED]},
            SlowCauseKind.SERVER_BUSY,
            "900 ms of the last ten minutes: keys 9 times, at most 200 ms",
        ),
        (
            LONG_TRIPS,
            {"times": (3, 3, 3, 0, 0, 0, 0, 0, 20)},
            SlowCauseKind.SLOW_ROUND_TRIPS,
            "is unknown",
        ),
        (
            {**LONG_TRIPS, "encodeCpuUs": 2_000},
            {"times": (3, 3, 3, 0, 0, 0, 0, 0, 20)},
            SlowCauseKind.EXECUTORS_BUSY,
            "took 40 ms in 80 commits, of which it had a processor for 8.0 ms",
        ),
        (
            {"durable": 20, "durableUs": 600_000, "commitUs": 620_000},
            {},
            SlowCauseKind.WAITING_FOR_DURABILITY,
            "takes 30 ms, an opening call 0.1 ms to 0.2 ms",
        ),
        (
            {"loads": 18, "loadUs": 180_000, "openUs": 190_000, "providers": 18},
            {},
            SlowCauseKind.COLD_LOADS,
            "72 of 80 batches of a partition began with a load",
        ),
        (
            {"loads": 10, "versions": 40},
            {},
            SlowCauseKind.MOVING_PARTITIONS,
            "committed only some of the versions",
        ),
        (
            {"loads": 10, "executor": 57},
            {},
            SlowCauseKind.LOST_EXECUTORS,
            "served by 1 now, but numbers of executors reach 57",
        ),
        (
            {"fileReads": 50, "fileUs": 200_000},
            {},
            SlowCauseKind.READING_FILES,
            "200 reads from files took 4.0 ms each",
        ),
        (
            {"fileReads": 50, "fileUs": 200_000},
            {"share": 1 << 20},
            SlowCauseKind.READING_FILES,
            "rows that no executor has in memory are read from there",
        ),
        (
            {"fileReads": 4, "fileUs": 400_000},
            {},
            SlowCauseKind.SLOW_FOLDER,
            "16 reads from files took 100 ms each",
        ),
        (
            {"roomWaits": 2, "roomWaitUs": 100_000},
            {"share": 1 << 20},
            SlowCauseKind.WAITING_FOR_ROOM,
            "8 times in 80 commits a partition's share of redisMemory was full",
        ),
        (
            {"reloaded": 300, "buckets": 900, "misses": 400, "missUs": 300_000},
            {},
            SlowCauseKind.SMALL_MEMORY,
            "1,200 of 3,600 buckets were read again",
        ),
        (
            {"misses": 40, "missUs": 300_000, "localBytes": 9 << 20, "localMax": 10 << 20},
            {},
            SlowCauseKind.SMALL_MEMORY,
            "hold 9,437,184 of 10,485,760 bytes",
        ),
        (
            {"missUs": 300_000, "roomUs": 200_000},
            {},
            SlowCauseKind.SMALL_MEMORY,
            "making room took 10 ms",
        ),
        (
            {},
            {"confirmed": 900, "snapshot": 100, "oldest": 90},
            SlowCauseKind.MAINTENANCE_BEHIND,
            "has 800 versions since its last snapshot",
        ),
        (
            {"foldUs": 10_000_000, "maintenanceUs": 2_000_000},
            {},
            SlowCauseKind.BACKGROUND_BUSY,
            "took 2.4 threads of each executor",
        ),
        (
            {"rows": 40, "bytesSent": 20_000_000, "encodeUs": 500_000, "commitUs": 900_000},
            {},
            SlowCauseKind.LARGE_VALUES,
            "has 500,000 bytes after compression, a commit 1,000,000",
        ),
        (
            {"rows": 4_000_000, "bytesSent": 90_000_000, "encodeUs": 6_000_000,
             "commitUs": 9_000_000},
            {},
            SlowCauseKind.LARGE_COMMITS,
            "changes 200,000 rows",
        ),
        (
            {"rows": 60, "workUs": 60_000},
            {"partitions": 200},
            SlowCauseKind.MANY_PARTITIONS,
            "3.0 rows in each of 200 partitions",
        ),
        (
            {"workUs": 40_000_000},
            {},
            SlowCauseKind.OUTSIDE_THE_STORE,
            "of a task's 2,002 ms pass between",
        ),
    ],
)  # fmt: skip
def test_change_of_a_healthy_query_is_the_cause(
    change: Change, more: dict[str, Any], kind: SlowCauseKind, said: str
) -> None:
    (cause,) = diagnosed(change, **more).causes
    assert cause.kind is kind
    assert said in cause.found
    assert cause.advice


def test_server_that_large_values_keep_busy_is_no_cause_of_its_own() -> None:
    own = ServerLoad(300, 0.1, (), (SlowCommands("evalsha", 9, 900_000, 200_000),), ())
    change = {**LONG_TRIPS, "rows": 40, "bytesSent": 20_000_000, "encodeUs": 200_000}
    assert kinds(diagnosed(change, servers=[own])) == [SlowCauseKind.LARGE_VALUES]
    others = [SlowCauseKind.SERVER_BUSY, SlowCauseKind.LARGE_VALUES]
    assert kinds(diagnosed(change, servers=[BLOCKED])) == others


def test_long_loads_are_reported_beside_their_reason() -> None:
    found = diagnosed({"loads": 18, "deltas": 360, "providers": 18})
    assert kinds(found) == [SlowCauseKind.COLD_LOADS, SlowCauseKind.LONG_LOADS]
    assert "20 deltas on average" in found.causes[1].found


def test_slowest_partition_is_named() -> None:
    found = diagnosed({}, {}, {"workUs": 9_000_000}, {})
    (cause,) = found.causes
    assert (cause.kind, cause.partitions) == (SlowCauseKind.UNEVEN_PARTITIONS, (2,))
    assert "takes 452 ms, of the others 22 ms on average" in cause.found


def test_partition_that_waits_for_retries_is_no_cause_of_its_own() -> None:
    found = diagnosed({}, {}, {"workUs": 9_000_000, "retries": 5}, {})
    assert kinds(found) == [SlowCauseKind.RETRIES]


@pytest.mark.parametrize(
    ("change", "more"),
    [
        # One load for each partition is a start, or a fail-over.
        ({"loads": 1, "deltas": 150}, {}),
        # Long calls that are a small part of the time.
        ({**LONG_TRIPS, "workUs": 15_000_000}, {"times": SLOW}),
        # A busy server that answers in time.
        ({}, {"servers": [BUSY, BLOCKED]}),
        # Each delta has all rows: no snapshot is due.
        ({}, {"confirmed": 900, "snapshot": 0, "oldest": 880}),
        # Small commits are slow by what they wait for.
        ({"rows": 40, "encodeUs": 6_000_000, "commitUs": 9_000_000}, {}),
        # More versions than usual are wanted.
        ({}, {"confirmed": 900, "snapshot": 100, "oldest": 100, "wanted": 600}),
        ({"rows": 60, "workUs": 60_000}, {"partitions": 8}),
        # Clocks too coarse for what was measured.
        ({"openUs": 0, "loadUs": 0, "commitUs": 0, "encodeUs": 0, "workUs": 0}, {"times": ()}),
    ],
)
def test_what_is_ordinary_is_no_cause(change: Change, more: dict[str, Any]) -> None:
    assert kinds(diagnosed(change, **more)) == []


def test_long_intervals_between_batches_are_said_to_be_unknown() -> None:
    found = diagnosed({"ms": 100_000})
    assert found.causes == ()
    (line,) = found.unknown
    assert "a batch comes every 5,000 ms, and its slowest partition has the store for 22 ms" in line
    assert diagnosed({"ms": 100_000, "workUs": 30_000_000}).unknown == ()


def test_few_commits_are_said_to_be_too_few() -> None:
    found = diagnosed({"commits": 1, "workUs": 40_000_000})
    assert found.causes == ()
    assert found.unknown == (
        "causes in operator 0, store default: 4 commits are too few, 5 are needed",
    )


def test_silent_executors_are_said_to_be_unknown() -> None:
    found = diagnosed({"commits": 0}, servers=[BLIND])
    assert (found.times, found.causes) == ((), ())
    assert found.unknown == (
        *BLIND.unknown,
        "times of operator 0, store default: no process has reported a commit within the last hour",
    )


def test_totals_alone_give_openings_and_commits() -> None:
    counts = {
        "opens": 20, "openMs": 100, "commits": 20, "commitMs": 300,
        "rowsWritten": 100, "rowsRemoved": 0, "bytesSent": 1_000,
    }  # fmt: skip
    status = PartitionStatus(0, "default", 0, confirmed=20, newest=20)
    store = StoreStatus(0, "default", "pythonStateStore", (), (status,))
    query = QueryStatus("0" * 32, "id", "q", 1, 1, 1, "run", 1, 1, (store,))
    totals = {(0, 0, "default"): Totals(Instance("host", "1", "run"), counts)}
    found = slowness_of(query, totals, [IDLE])
    assert [(one.part, one.ms) for one in found.times] == [("open", 5.0), ("publish", 15.0)]
    assert found.causes == ()
    assert "report only how long opening and committing take" in found.unknown[0]
