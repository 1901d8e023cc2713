"""What maintenance finds wrong: lost blocks, expiries, orphans, checkpoints nobody uses."""

from __future__ import annotations

import json

import pytest
import redis

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.coordinator_instances import Instance
from redis_state.errors import ConfigError
from redis_state.ids import StateStoreId
from redis_state.maintain import (
    Policy,
    purge_vanished,
    sweep_orphans,
    vanished_checkpoints,
)
from redis_state.protocol import checkpoint_gen
from tests.contract.planting import GEN, Planted, family, uid
from tests.contract.test_maintain import ONE, client, grown, maintain, raw, row, rows
from tests.support.redis_server import RedisServer

__all__ = ["client", "raw"]

DAY_MS = 86_400_000
GEN_2 = "fedcba9876543210fedcba9876543210"


def test_lost_blocks_are_named(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=3)
    raw.delete(keys.segment(planted.id(0), f"d:2:{uid(2)}"))
    raw.hdel(keys.segment(planted.id(0), f"d:3:{uid(3)}"), "0")
    report = maintain(client)
    assert report.verified == 1
    assert [problem.split(": look")[0] for problem in report.problems] == [
        f"flights: operator 0 partition 0 store default: d:2:{uid(2)} has 0 of 1 blocks",
        f"flights: operator 0 partition 0 store default: d:3:{uid(3)} has 0 of 1 blocks",
    ]


def test_a_lost_segment_does_not_stop_retention(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw)
    maintain(client)
    for version in range(11, 16):
        planted.delta(0, version, {row(n): b"%d" % version for n in range(90)})
    raw.delete(keys.segment(planted.id(0), f"d:12:{uid(12)}"))
    report = maintain(client)
    assert report.dropped > 0
    assert any("12" in problem for problem in report.problems)


def test_damaged_blocks_are_found_by_reading(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=2)
    key = keys.segment(planted.id(0), f"d:1:{uid(1)}")
    block = raw.hget(key, "0")
    raw.hset(key, "0", block[:-1] + bytes([block[-1] ^ 1]))
    assert maintain(client).problems == []
    (problem,) = maintain(client, Policy("w", deep=True)).problems
    assert f"d:1:{uid(1)} is damaged" in problem


def test_damaged_entries_are_named(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=2)
    raw.hset(keys.meta(planted.id(0)), "d:3:x", "junk")
    raw.hset(keys.meta(planted.id(0)), b"s:\xff", "junk")
    problems = maintain(client).problems
    assert len([one for one in problems if "an entry of the manifest is damaged" in one]) == 2


def test_a_damaged_registry_or_format_is_named(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=2)
    raw.set(keys.instance(planted.id(0)), "junk", px=60_000)
    assert any("instance" in problem for problem in maintain(client).problems)
    raw.hset(keys.meta(planted.id(0)), "f", "9")
    assert any("format 9" in problem for problem in maintain(client).problems)
    raw.hset(keys.query(GEN), "f", "9")
    assert any("format" in problem for problem in maintain(client).problems)


def test_a_published_segment_that_would_expire_is_mended(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=3)
    key = keys.segment(planted.id(0), f"d:2:{uid(2)}")
    raw.pexpire(key, 60_000)
    assert maintain(client).mended == 1
    assert raw.pttl(key) == -1
    assert maintain(client).mended == 0


def test_orphans_expire_and_nothing_else(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw)
    maintain(client)
    published = {name for name in raw.keys("*") if raw.pttl(name) == -1}
    id_ = planted.id(0)
    # A staged segment, one of a destroyed manifest, one of a partition that is not listed.
    staged = keys.segment(id_, "d:11:staged")
    raw.hset(staged, "0", "x")
    raw.pexpire(staged, 5_000)
    lost = [keys.segment(id_, "d:3:lost"), keys.segment(id_, "s:10:other")]
    lost.append(lost[0].replace(GEN, GEN_2))
    foreign = [lost[0].replace("{rs", "{team:rs"), "{rs:mine}:d:1:x", lost[0] + ":more:"]
    for key in (*lost, *foreign):
        raw.hset(key, "0", "x")
    assert sweep_orphans(client).orphans == 3
    assert all(0 < raw.pttl(key) <= DAY_MS for key in lost)
    assert 0 < raw.pttl(staged) <= 5_000
    assert all(raw.pttl(name) == -1 for name in [*published, *foreign])
    assert sweep_orphans(client).orphans == 0
    assert sweep_orphans(client, tenant="team:").orphans == 1
    assert len(rows(client, id_, 10)) > 0


@pytest.fixture
def listed(raw: redis.Redis) -> Planted:
    """One query that was seen in 1970, and one that was seen now."""
    planted = grown(raw, versions=2)
    other = Planted(raw, family=family(ONE, ONE), partitions=1, gen=GEN_2, name="fresh")
    other.register()
    other.delta(0, 1, {row(1): b"x"})
    seconds, _ = raw.time()
    entry = {"path": "", "id": "i", "name": "fresh", "created": 1, "seen": seconds * 1000}
    raw.hset("{rs}:c", GEN_2, json.dumps(entry))
    return planted


@pytest.mark.usefixtures("listed")
def test_a_checkpoint_that_nobody_uses_is_removed_whole(client: Client, raw: redis.Redis) -> None:
    assert [info.gen for info in vanished_checkpoints(client, age_ms=DAY_MS)] == [GEN]
    assert purge_vanished(client, age_ms=DAY_MS).purged == 1
    assert [name for name in raw.keys("*") if GEN.encode() in name] == []
    assert {name[:32].decode() for name in raw.hkeys("{rs}:c")} == {GEN_2}
    assert purge_vanished(client, age_ms=DAY_MS).purged == 0


def test_a_checkpoint_that_is_served_is_left(
    client: Client, raw: redis.Redis, listed: Planted
) -> None:
    raw.set(keys.instance(listed.id(0)), Instance("h", "1", "run").encode(), px=60_000)
    report = purge_vanished(client, age_ms=DAY_MS)
    assert (report.purged, report.problems) == (0, [])
    assert len(rows(client, listed.id(0), 2)) > 0


def test_a_checkpoint_that_is_served_is_left_though_its_partitions_are_not_listed(
    client: Client, raw: redis.Redis, listed: Planted
) -> None:
    Planted(raw, family=family(ONE, ONE), partitions=0).register()
    raw.set(keys.instance(listed.id(0)), Instance("h", "1", "run").encode(), px=60_000)
    assert purge_vanished(client, age_ms=DAY_MS).purged == 0
    raw.delete(keys.instance(listed.id(0)))
    assert purge_vanished(client, age_ms=DAY_MS).purged == 1


def test_a_damaged_instance_keeps_its_checkpoint(
    client: Client, raw: redis.Redis, listed: Planted
) -> None:
    raw.set(keys.instance(listed.id(0)), "junk", px=60_000)
    report = purge_vanished(client, age_ms=DAY_MS)
    assert (report.purged, len(report.problems)) == (0, 1)


@pytest.mark.usefixtures("listed")
def test_an_age_that_a_living_query_reaches_is_refused(client: Client) -> None:
    with pytest.raises(ConfigError, match="below one hour"):
        purge_vanished(client, age_ms=3_599_999)


@pytest.mark.parametrize("by_command", [False, True])
def test_the_name_of_a_python_checkpoint_is_free_again(
    redis_server: RedisServer, client: Client, raw: redis.Redis, by_command: bool
) -> None:
    gen = checkpoint_gen(client, "orders", create=True)
    assert gen is not None
    entry = {"path": keys.name_field("orders"), "id": gen, "name": "orders"}
    raw.hset("{rs}:c", gen, json.dumps(entry | {"created": 1, "seen": 1}))
    raw.hset("{rs}:c", f"{gen}:0:default", "1")
    raw.hset(keys.query(gen), "f", "1")
    raw.hset(keys.meta(StateStoreId("orders", 0, 0).partition(gen)), "f", "1")
    other = checkpoint_gen(client, "others", create=True)
    if by_command:
        command = ["purge", "--url", redis_server.url, "--gen", gen]
        assert main([*command, "--dry-run"]) == 0
        assert checkpoint_gen(client, "orders") == gen
        assert main([*command, "--yes"]) == 0
    else:
        assert purge_vanished(client, age_ms=DAY_MS).purged == 1
    assert checkpoint_gen(client, "orders") is None
    assert checkpoint_gen(client, "others") == other
    assert raw.keys("*") == [keys.names().encode()]
