"""Faults that maintenance reports: lost blocks, expiries, orphans."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.maintain import Policy, sweep_orphans
from redis_state.maintain.service import Job
from redis_state.protocol.instances import Instance
from tests.contract.planting import GEN, Planted, family, uid
from tests.contract.test_maintain import ONE, client, grown, maintain, quiet_service, raw, row, rows
from tests.support.redis_server import bytes_of

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
    block = bytes_of(raw.hget(key, "0"))
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


def test_expiry_of_a_published_segment_is_removed(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=3)
    key = keys.segment(planted.id(0), f"d:2:{uid(2)}")
    raw.pexpire(key, 60_000)
    assert maintain(client).mended == 1
    assert raw.pttl(key) == -1
    assert maintain(client).mended == 0


def test_only_orphans_are_set_to_expire(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw)
    maintain(client)
    published = {name for name in raw.keys("*") if raw.pttl(name) == -1}
    id_ = planted.id(0)
    # A staged segment, one of a destroyed manifest, one of a partition that is not listed.
    staged = keys.segment(id_, "d:11:staged")
    raw.hset(staged, "0", "x")
    raw.pexpire(staged, 5_000)
    lost = [keys.segment(id_, "d:3:lost"), keys.segment(id_, "s:10:other")]
    lost += [keys.staged(id_, "d:3:apart"), keys.staged(id_, "s:10:apart")]
    lost.append(lost[0].replace(GEN, GEN_2))
    foreign = [lost[0].replace("{rs", "{team:rs"), "{rs:mine}:d:1:x", lost[0] + ":more:"]
    for key in (*lost, *foreign):
        raw.hset(key, "0", "x")
    assert sweep_orphans(client).orphans == 5
    assert all(0 < raw.pttl(key) <= DAY_MS for key in lost)
    assert 0 < raw.pttl(staged) <= 5_000
    assert all(raw.pttl(name) == -1 for name in [*published, *foreign])
    assert sweep_orphans(client).orphans == 0
    assert sweep_orphans(client, tenant="team:").orphans == 1
    assert len(rows(client, id_, 10)) > 0


def overtaken(raw: redis.Redis, planted: Planted) -> None:
    """Makes a run acquire a partition that the instance of another run serves."""
    id_, run = planted.id(0), "6d2bd1e5-0c7c-4c3e-9d77-222222222222"
    raw.set(keys.instance(id_), Instance("h", "1", run).encode(), px=60_000)
    raw.hset(keys.meta(id_), "r", "another")
    raw.hset(keys.query(GEN), f"run:{run}", "?")


def mistyped(raw: redis.Redis, planted: Planted) -> None:
    raw.set(keys.meta(planted.id(0)), "text")


def misfiled(raw: redis.Redis, _planted: Planted) -> None:
    raw.set(keys.query(GEN), "text")


@pytest.mark.parametrize("damaged", [overtaken, mistyped, misfiled])
def test_unreadable_checkpoint_does_not_block_the_others(
    client: Client, raw: redis.Redis, damaged: Callable[[redis.Redis, Planted], None]
) -> None:
    other = Planted(raw, family=family(ONE, ONE), partitions=1, gen=GEN_2, name="other")
    other.register()
    for version in range(1, 12):
        other.delta(0, version, {row(n): b"%d" % version for n in range(40)})
    damaged(raw, grown(raw))
    service = quiet_service(client, Job(Policy("w")))
    report = service.run_pass()
    assert len(report.problems) == 1
    assert raw.keys(keys.segment(other.id(0), "s:11:*"))
