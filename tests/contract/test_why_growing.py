"""Sick queries, made by real stores wherever a store of Python can: each has its cause named."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

import pytest

from redis_state import config, connect, keys
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.codec.ordered_key import encode_key
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.reader import Cause, CauseKind
from redis_state.store.provider import StateStoreProvider
from redis_state.testing import ProcessorTest
from tests.contract.planting import Planted, family, schema
from tests.contract.processors import INPUT, OUTPUT, Variables
from tests.contract.test_family_store import SCHEMA
from tests.support.redis_server import RedisServer

NAME = "sick"
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000

Change = Mapping[Any, Any]
"""Keys with their new values; ``None`` removes one."""


class Sick:
    """A store of Python that a job wrote, batch by batch."""

    def __init__(self, server: RedisServer, stack: ExitStack) -> None:
        self.server = server
        self._stack = stack

    def provider(self, partition: int = 0, **options: Any) -> StateStoreProvider:
        id_ = StateStoreProviderId(StateStoreId(NAME, 0, partition), f"run-{partition}")
        made = StateStoreProvider(id_, config=self.server.url, **options)
        self._stack.callback(made.close)
        return made

    def run(self, batches: Iterable[Change], partition: int = 0, **options: Any) -> None:
        provider = self.provider(partition, **options)
        version = 0
        for changes in batches:
            store = provider.get_store(version)
            for key, value in changes.items():
                if value is None:
                    store.remove(key)
                else:
                    store.put(key, value)
            version = store.commit()
        # The next batch begins, and so confirms the last one.
        provider.get_store(version).abort()

    def causes(self, name: str = NAME) -> list[Cause]:
        with connect(self.server.url) as reader:
            return reader.query(name).why_growing()

    def kinds(self) -> list[CauseKind]:
        return [one.kind for one in self.causes()]


@pytest.fixture
def sick(redis_server: RedisServer) -> Iterator[Sick]:
    with ExitStack() as stack:
        yield Sick(redis_server, stack)


def new(batch: int, rows: int = 50, value: Any = 1) -> dict[Any, Any]:
    return {f"{batch} {row}": value for row in range(rows)}


def gone(batch: int, rows: int = 50) -> dict[Any, Any]:
    return new(batch, rows, None)


def test_a_healthy_state_has_no_cause(sick: Sick) -> None:
    """Each batch has keys of its own, which go three batches later."""
    for partition in range(3):
        sick.run(
            ({**new(batch), **(gone(batch - 3) if batch >= 3 else {})} for batch in range(12)),
            partition,
        )
    assert sick.causes() == []


def test_a_state_of_few_batches_has_no_cause(sick: Sick) -> None:
    sick.run(new(batch) for batch in range(3))
    assert sick.causes() == []


def test_keys_that_are_never_removed_are_the_cause(sick: Sick) -> None:
    sick.run(new(batch) for batch in range(9))
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.NOTHING_REMOVED
    assert "in the last 8 batches the keys rose from 50 to 450" in cause.found
    assert "does not have Spark's watermark" in cause.advice
    assert "eventTime.watermark" in cause.advice


def test_stuck_watermark_is_the_cause(sick: Sick) -> None:
    """Keys went every third batch; then only new ones come."""

    def batches() -> Iterator[Change]:
        for batch in range(30):
            old = [gone(one) for one in range(batch - 3, batch)] if batch % 3 == 0 else []
            dropped = {key: None for one in old for key in one} if 0 < batch <= 12 else {}
            yield {**new(batch), **dropped}

    sick.run(batches())
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.REMOVALS_STOPPED
    assert "up to version 13" in cause.found


def rows_at(start_ms: int, batch: int) -> list[tuple[Any, ...]]:
    at = datetime.fromtimestamp(start_ms / 1000 + batch, timezone.utc)
    return [(f"{batch} {row}", at, 1) for row in range(20)]


@pytest.mark.parametrize(
    ("mode", "kind", "said"),
    [
        ({"time_mode": "ProcessingTime"}, CauseKind.NO_WATERMARK, "No batch has a watermark"),
        (
            {"time_mode": "EventTime", "event_time": "ts"},
            CauseKind.WATERMARK_BEHIND,
            "hours behind the clock",
        ),
    ],
)
def test_watermark_of_a_processor_is_reported(
    redis_server: RedisServer, sick: Sick, mode: dict[str, Any], kind: CauseKind, said: str
) -> None:
    with ProcessorTest(
        Variables(), key="user", input=INPUT, schema=OUTPUT, url=redis_server.url, **mode
    ) as test:
        for batch in range(8):
            test.run(rows_at(NOW_MS, batch))
        found = {cause.kind: cause for cause in sick.causes(test.store)}
    assert said in found[kind].found
    assert "does not have Spark's watermark" not in found[kind].advice


def timers(provider: StateStoreProvider, times: Iterable[int], *, internal: bool) -> None:
    store = provider.get_family_store(0)
    more: dict[str, Any] = {"key_schema": SCHEMA, "value_schema": SCHEMA}
    prefix = store.declare("$timers", internal=internal, **more)
    plain = store.declare("count", **more)
    for number, at_ms in enumerate(times):
        store.put(prefix + encode_key(at_ms) + encode_key((f"user {number}",)), b"")
    for number in range(200):
        store.put(plain + encode_key((f"user {number}",)), b"1")
    store.commit()
    provider.get_family_store(1).abort()


def test_timers_far_behind_the_others_are_the_cause(sick: Sick) -> None:
    old = [NOW_MS - 30 * 24 * HOUR_MS + number for number in range(400)]
    timers(
        sick.provider(families=True),
        [*old, *(NOW_MS + number for number in range(3000))],
        internal=False,
    )
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.OLD_KEYS
    assert "'$timers' are 720 hours behind its newest" in cause.found


def test_timers_of_today_and_tomorrow_are_healthy(sick: Sick, redis_server: RedisServer) -> None:
    now_ms = redis_server.client().time()[0] * 1000
    due = [now_ms + number for number in range(400)]
    later = [now_ms + 24 * HOUR_MS + number for number in range(3000)]
    timers(sick.provider(families=True), [*due, *later], internal=False)
    assert sick.causes() == []


def test_timers_that_are_never_deleted_are_the_cause(sick: Sick) -> None:
    timers(sick.provider(families=True), (NOW_MS + number for number in range(1000)), internal=True)
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.INTERNAL_KEYS
    assert "1,000 internal keys" in cause.found


@pytest.mark.parametrize("seed", [1])
def test_too_many_kept_versions_are_the_cause(sick: Sick, seed: int) -> None:
    chance = random.Random(seed)
    sick.run(
        ({f"user {row}": chance.randbytes(200) for row in range(60)} for _ in range(30)),
        versions_to_retain=40,
    )
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.KEPT_VERSIONS
    assert "40 versions" in cause.found
    assert "versionsToRetain" in cause.advice


def test_missing_snapshots_are_the_cause(sick: Sick) -> None:
    sick.run(({"a": batch, batch: 1} for batch in range(20)), versions_to_retain=2)
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.NO_SNAPSHOT
    assert cause.partitions == (0,)
    assert "keeps 20 versions instead of 2" in cause.found


def test_late_maintenance_is_the_cause(sick: Sick) -> None:
    """Each batch writes all keys, so that nothing needs the versions before; nobody drops them."""
    sick.run(({"a": batch, "b": batch} for batch in range(20)), versions_to_retain=2)
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.LATE_MAINTENANCE
    assert "keeps 20 versions instead of 2, and nothing needs the others" in cause.found


def test_fat_key_is_the_cause(sick: Sick) -> None:
    sick.run([new(0, 1000), *({"fat": os.urandom(1 << 20), "thin": 1} for _ in range(3))])
    (cause,) = (one for one in sick.causes() if one.kind is CauseKind.FAT_KEY)
    assert "changed 2 rows" in cause.found


def test_fat_bucket_of_spark_is_the_cause(redis_server: RedisServer, sick: Sick) -> None:
    planted = Planted(redis_server.client(), partitions=1, buckets=64, name=NAME)
    planted.family = family(
        schema(user="string", n="long"), schema(x="string"), kind="prefix", params=[1]
    )
    planted.register()
    chance = random.Random(1)

    def row(user: str, n: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return {"user": user, "n": n}, {"x": chance.randbytes(1000).hex()}

    thin = [row(f"user {n}", n) for n in range(200)]
    planted.commit(1, [*thin, *(row("null", n) for n in range(1000))])
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.FAT_KEY
    assert "one join key many rows" in cause.found


@pytest.mark.parametrize(
    ("operator", "store", "is_advised"),
    [
        ("stateStoreSave", "default", True),
        ("symmetricHashJoin", "left-keyWithIndexToValue", True),
        ("symmetricHashJoin", "default", False),  # state formats 3 and 4
        ("transformWithStateExec", "default", False),
    ],
)
def test_a_time_to_live_is_advised_where_the_operator_takes_one(
    redis_server: RedisServer, sick: Sick, operator: str, store: str, *, is_advised: bool
) -> None:
    planted = Planted(redis_server.client(), partitions=1, name=NAME, store=store)
    planted.register(of=operator)
    for version in range(1, 10):
        rows = [({"carrier": f"{version} {n}"}, {"count": 1, "total": 0.5}) for n in range(50)]
        planted.commit(version, rows)
    (cause,) = (one for one in sick.causes() if one.kind is CauseKind.NOTHING_REMOVED)
    assert ("The option stateTtl" in cause.advice) == is_advised


def test_uneven_partition_is_the_cause(sick: Sick) -> None:
    for partition in range(4):
        sick.run([new(0, 2000 if partition == 2 else 30)], partition)
    (cause,) = sick.causes()
    assert (cause.kind, cause.partitions) == (CauseKind.UNEVEN_PARTITIONS, (2,))
    assert "Partition 2 has 2,000 keys, the others 30 on average" in cause.found


def test_untouched_rows_are_the_cause(sick: Sick) -> None:
    sick.run([new(0, 1000), *({"0 0": batch} for batch in range(8))])
    (cause,) = (one for one in sick.causes() if one.kind is CauseKind.UNTOUCHED_ROWS)
    assert "of 1,000 keys were not touched in the last" in cause.found


def test_older_checkpoint_of_the_same_folder_is_reported(
    redis_server: RedisServer, sick: Sick
) -> None:
    client = redis_server.client()
    gens = ("a" * 32, "b" * 32)
    for seen, gen in enumerate(gens):
        planted = Planted(client, gen=gen, name=NAME)
        planted.register()
        planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
        entry = {"path": "ab", "id": gen, "name": NAME, "created": seen, "seen": seen}
        client.hset(keys.checkpoints(), gen, json.dumps(entry))
    (cause,) = sick.causes()
    assert (cause.kind, cause.operator) == (CauseKind.OLDER_CHECKPOINT, None)
    assert f"purge --gen {gens[0]}" in cause.advice
    (older,) = sick.causes(gens[0])
    assert "deleted and created again" in older.found


def test_timers_of_spark_are_decoded(redis_server: RedisServer, sick: Sick) -> None:
    layout = family(
        schema(expiryTimestampMs="long", key="string"), schema(x="long"), kind="range", params=[0]
    )
    planted = Planted(redis_server.client(), family=layout, partitions=1, name=NAME)
    planted.register()
    times = [NOW_MS - 24 * HOUR_MS, *(NOW_MS + n for n in range(3000))]
    old = [NOW_MS - 24 * HOUR_MS + n for n in range(300)]
    planted.commit(
        1, [({"expiryTimestampMs": at, "key": f"{at}"}, {"x": 1}) for at in (*old, *times[1:])]
    )
    (cause,) = sick.causes()
    assert cause.kind is CauseKind.OLD_KEYS
    assert "24 hours behind" in cause.found


def test_diagnosis_sends_few_commands_and_changes_nothing(
    sick: Sick, redis_server: RedisServer
) -> None:
    for partition in range(4):
        sick.run([new(batch) for batch in range(6)], partition)
    client = redis_server.client()
    before = {key: client.dump(key) for key in client.keys("*")}
    with Reader(config.parse({"url": redis_server.url})) as reader:
        query = reader.query(NAME)
        client.config_resetstat()
        assert query.why_growing()
        # The list; the query and sizes; manifests beside owners; manifests with entries; headers.
        assert reader.client.round_trips == 1 + 5
    stats = client.info("commandstats")
    ran = {name[8:]: found["calls"] for name, found in stats.items()}
    assert (ran["hgetall"], ran["hmget"]) == (3 + 4 + 4, 4)
    assert not {"eval", "evalsha", "hset"} & set(ran)
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_a_damaged_partition_hides_no_cause(sick: Sick, redis_server: RedisServer) -> None:
    for partition in range(2):
        sick.run([new(batch) for batch in range(9)], partition)
    client = redis_server.client()
    (meta,) = (key for key in client.keys("*:1:*:m"))
    client.hset(meta, "o", "x")
    assert sick.kinds() == [CauseKind.NOTHING_REMOVED]


def test_command_prints_causes_and_sets_its_status(
    sick: Sick, capsys: pytest.CaptureFixture[str]
) -> None:
    sick.run(new(batch) for batch in range(9))
    arguments = ["why-growing", NAME, "--url", sick.server.url]
    assert main(arguments) == PROBLEMS_STATUS
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["kind"] == "nothing-removed"
    assert main([*arguments, "--format", "table"]) == PROBLEMS_STATUS
    assert capsys.readouterr().out.startswith(
        "nothing-removed, operator 0\n  The number of keys never"
    )
