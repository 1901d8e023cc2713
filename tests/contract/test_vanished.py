"""Checkpoints that `maintain --vanished-after` purges, and those that it must keep."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
import redis

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import ConfigError, StateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain import MaintenanceReport, Policy, purge_vanished, vanished_checkpoints
from redis_state.maintain.recall import recall
from redis_state.maintain.service import VANISHED_EVERY_S, Job
from redis_state.protocol import checkpoint_gen, register_run
from redis_state.protocol.instances import Instance
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted, family
from tests.contract.test_maintain import ONE, client, grown, quiet_service, raw, row, rows
from tests.contract.vanishing import (
    DAY_MS,
    MINUTE_MS,
    looked_earlier,
    now_ms,
    written,
    written_long_ago,
)
from tests.support.redis_server import RedisServer, bytes_of

__all__ = ["client", "raw"]

GEN_2 = "fedcba9876543210fedcba9876543210"


@pytest.fixture
def listed(raw: redis.Redis) -> Planted:
    """One query that was last used long ago, and one whose run began now."""
    planted = grown(raw, versions=2)
    written_long_ago(raw, planted)
    other = Planted(raw, family=family(ONE, ONE), partitions=1, gen=GEN_2, name="fresh")
    other.register()
    other.delta(0, 1, {row(1): b"x"})
    entry = {"path": "", "id": "i", "name": "fresh", "created": 1, "seen": now_ms(raw)}
    raw.hset("{rs}:c", GEN_2, json.dumps(entry))
    return planted


def purged(client: Client, raw: redis.Redis, *, age_ms: int = DAY_MS, looks: int = 2) -> int:
    """Polls several times, far enough apart; returns how many checkpoints were set to expire."""
    count = 0
    for _ in range(looks):
        count += purge_vanished(client, age_ms=age_ms).purged
        looked_earlier(raw, minutes=31)
    return count


@pytest.mark.usefixtures("listed")
def test_unused_checkpoint_expires_completely(client: Client, raw: redis.Redis) -> None:
    found = vanished_checkpoints(client, age_ms=DAY_MS)
    assert [one.info.gen for one in found] == [GEN]
    assert "1000.0 days" in found[0].why
    assert purged(client, raw) == 1
    of_it = [name for name in raw.keys("*") if GEN.encode() in name]
    assert len(of_it) == 4
    assert all(0 < raw.pttl(name) <= DAY_MS for name in of_it)
    assert {bytes_of(name)[:32].decode() for name in raw.hkeys("{rs}:c")} == {GEN_2}
    assert purged(client, raw) == 0


@pytest.mark.usefixtures("listed")
def test_recalled_checkpoint_is_not_purged_again(client: Client, raw: redis.Redis) -> None:
    assert purged(client, raw) == 1
    recall(client, GEN)
    assert purged(client, raw, looks=3) == 0
    raw.hset(keys.query(GEN), "recalled", "1")
    assert purged(client, raw) == 1


@pytest.mark.usefixtures("listed")
def test_purge_needs_two_polls_half_an_hour_apart(client: Client, raw: redis.Redis) -> None:
    assert purge_vanished(client, age_ms=DAY_MS).purged == 0
    looked_earlier(raw, minutes=29)
    assert purge_vanished(client, age_ms=DAY_MS).purged == 0
    looked_earlier(raw, minutes=2)
    assert purge_vanished(client, age_ms=DAY_MS).purged == 1


@pytest.mark.parametrize("seen", ["version", "run"])
def test_checkpoint_used_between_two_polls_is_kept(
    client: Client, raw: redis.Redis, listed: Planted, seen: str
) -> None:
    """A release that does not record the time of use counts, too."""
    assert purged(client, raw, looks=1) == 0
    if seen == "version":
        listed.delta(0, 3, {row(3): b"x"})
    else:
        raw.hset(keys.query(GEN), "run:new", "2 d")
    assert purged(client, raw, looks=1) == 0
    assert purged(client, raw, looks=1) == 1


def writes(client: Client, raw: redis.Redis, listed: Planted) -> None:
    """A run that began long ago, of which no instance is told: it unloads on commit, say."""
    del client
    written(raw, listed, now_ms(raw) - DAY_MS + MINUTE_MS)


def drives(client: Client, raw: redis.Redis, listed: Planted) -> None:
    """A run without new data: its driver lives."""
    del client, listed
    raw.hset(keys.query(GEN), "seen", str(now_ms(raw) - DAY_MS + MINUTE_MS))


def begins(client: Client, raw: redis.Redis, listed: Planted) -> None:
    """A run that is registered, and has not written yet."""
    del raw, listed
    register_run(client, GEN, uuid.uuid4().hex, by_driver=True)


def serves(client: Client, raw: redis.Redis, listed: Planted) -> None:
    del client
    raw.set(keys.instance(listed.id(0)), Instance("h", "1", "run").encode(), px=60_000)


@pytest.mark.parametrize("use", [writes, drives, begins, serves])
def test_checkpoint_in_use_is_kept(
    client: Client,
    raw: redis.Redis,
    listed: Planted,
    use: Callable[[Client, redis.Redis, Planted], None],
) -> None:
    use(client, raw, listed)
    assert purged(client, raw, looks=3) == 0
    assert len(rows(client, listed.id(0), 2)) > 0
    assert raw.pttl(keys.meta(listed.id(0))) == -1
    assert not raw.hexists("{rs}:v", GEN)


def test_served_checkpoint_without_listed_partitions_is_kept(
    client: Client, raw: redis.Redis, listed: Planted
) -> None:
    Planted(raw, family=family(ONE, ONE), partitions=0).register()
    raw.set(keys.instance(listed.id(0)), Instance("h", "1", "run").encode(), px=60_000)
    assert purged(client, raw, looks=3) == 0
    raw.delete(keys.instance(listed.id(0)))
    assert purged(client, raw) == 1


def test_age_without_a_date_counts_from_the_first_poll(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=2)
    assert vanished_checkpoints(client, age_ms=DAY_MS) == []
    assert purged(client, raw, looks=3) == 0
    looked_earlier(raw, minutes=22 * 60)
    assert purged(client, raw, looks=1) == 0
    # A commit of an older release: the age begins anew.
    planted.delta(0, 3, {row(3): b"x"})
    looked_earlier(raw, minutes=60)
    assert purged(client, raw, looks=1) == 0
    looked_earlier(raw, minutes=24 * 60)
    assert "it is unchanged for 1.0 days" in vanished_checkpoints(client, age_ms=DAY_MS)[0].why
    assert purged(client, raw, looks=1) == 1


def test_note_with_a_future_time_is_ignored(
    client: Client, raw: redis.Redis, listed: Planted
) -> None:
    del listed
    assert purged(client, raw, looks=1) == 0
    looked_earlier(raw, minutes=-600)
    assert purged(client, raw, looks=1) == 0
    raw.hset("{rs}:v", GEN, "junk")
    assert purged(client, raw, looks=1) == 0
    assert purged(client, raw, looks=1) == 1


def test_checkpoint_with_a_damaged_instance_is_kept(
    client: Client, raw: redis.Redis, listed: Planted
) -> None:
    raw.set(keys.instance(listed.id(0)), "junk", px=60_000)
    report = purge_vanished(client, age_ms=DAY_MS)
    assert (report.purged, len(report.problems)) == (0, 1)


@pytest.mark.usefixtures("listed")
def test_too_short_age_is_refused(client: Client) -> None:
    with pytest.raises(ConfigError, match="below one hour"):
        purge_vanished(client, age_ms=3_599_999)


@pytest.mark.usefixtures("listed")
def test_service_polls_once_an_hour(client: Client, raw: redis.Redis) -> None:
    class Clock:
        now_s = 0.0

        def monotonic_s(self) -> float:
            return self.now_s

        def sleep_s(self, seconds: float) -> None:
            raise AssertionError(seconds)

    clock = Clock()
    service = quiet_service(client, Job(Policy("w"), vanished_ms=DAY_MS), clock=clock)
    assert service.run_pass().purged == 0
    looked_earlier(raw, minutes=31)
    clock.now_s = VANISHED_EVERY_S - 1
    assert service.run_pass().purged == 0
    clock.now_s = VANISHED_EVERY_S
    assert service.run_pass().purged == 1


def test_checkpoint_written_by_an_unreported_process_is_kept(
    redis_server: RedisServer, client: Client, raw: redis.Redis
) -> None:
    """The process reports no instance and its run began long ago; only its writes show life."""
    id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), uuid.uuid4().hex)
    provider = StateStoreProvider(id_, config=redis_server.url, client=client)
    for version in range(2):
        store = provider.get_store(version)
        store.put("k", version)
        store.commit()
    gen = checkpoint_gen(client, "orders")
    assert gen is not None
    began_long_ago(raw, gen)
    assert purged(client, raw, looks=3) == 0
    meta = keys.meta(StateStoreId("orders", 0, 0).partition(gen))
    assert now_ms(raw) - 10 * MINUTE_MS < int(bytes_of(raw.hget(meta, "t"))) <= now_ms(raw)
    raw.hset(meta, "t", "1")
    store = provider.get_store(2)
    store.put("k", 2)
    store.commit()
    assert purged(client, raw, looks=3) == 0
    raw.hset(meta, "t", "1")
    assert purged(client, raw) == 1
    with pytest.raises(StateError, match=f"redis-state purge --gen {gen} --recall"):
        provider.get_store(3)
    with pytest.raises(StateError, match="was purged"):
        StateStoreProvider(id_, config=redis_server.url, client=client).get_store(0)
    assert checkpoint_gen(client, "orders") == gen


def began_long_ago(raw: redis.Redis, gen: str) -> None:
    entry = json.loads(bytes_of(raw.hget("{rs}:c", gen)))
    raw.hset("{rs}:c", gen, json.dumps(entry | {"seen": 1, "created": 1}))
    run_id, epoch = next(
        (name, bytes_of(value))
        for name, value in raw.hgetall(keys.query(gen)).items()
        if bytes_of(name).startswith(b"run:")
    )
    raw.hset(keys.query(gen), mapping={run_id: b"5 " + epoch.split()[1], b"epoch": b"5"})


def test_most_commits_write_no_date(
    redis_server: RedisServer, client: Client, raw: redis.Redis
) -> None:
    id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), uuid.uuid4().hex)
    provider = StateStoreProvider(id_, config=redis_server.url, client=client)
    gen = checkpoint_gen(client, "orders", create=True)
    assert gen is not None
    meta = keys.meta(StateStoreId("orders", 0, 0).partition(gen))
    for version, wait_ms in enumerate((0, 59_000, -59_000, 61_000, -61_000)):
        planted = now_ms(raw) + wait_ms
        if version:
            raw.hset(meta, "t", planted)
        store = provider.get_store(version)
        store.put("k", version)
        store.commit()
        kept = int(bytes_of(raw.hget(meta, "t"))) == planted
        assert kept == (wait_ms == 59_000) or wait_ms == -59_000


@pytest.mark.usefixtures("listed")
def test_purge_frees_a_full_server_before_writing_notes(client: Client, raw: redis.Redis) -> None:
    busy = Planted(raw, family=family(ONE, ONE), partitions=1, gen=GEN_2, name="fresh")
    for version in range(2, 20):
        busy.delta(0, version, {row(n): b"%d" % version for n in range(90)}, complete=True)
    raw.config_set("maxmemory", 1)
    reports: list[MaintenanceReport] = []
    service = quiet_service(client, Job(Policy("w"), vanished_ms=DAY_MS))
    service.run(1.0, reports.append)
    (report,) = reports
    assert report.dropped > 0
    assert any("unused checkpoints: [REDIS_FULL]" in problem for problem in report.problems)
