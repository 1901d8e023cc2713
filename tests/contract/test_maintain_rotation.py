"""Passes of a service over partitions that do not change: a tenth of them is verified in each."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.maintain import Policy, rotation
from redis_state.maintain.rotation import TURNS
from redis_state.maintain.service import Job, Service
from redis_state.protocol.instances import Instance
from redis_state.protocol.partition import PartitionClient
from tests.contract.planting import GEN, Planted, family, uid
from tests.contract.test_maintain import ONE, OTHER_RUN, client, quiet_service, raw, row
from tests.support.redis_server import bytes_of

__all__ = ["client", "raw"]

PARTITIONS = 40
VERSIONS = 3
SEGMENTS = PARTITIONS * VERSIONS


@pytest.fixture
def planted(raw: redis.Redis) -> Planted:
    planted = Planted(raw, family=family(ONE, ONE), partitions=PARTITIONS)
    planted.register()
    for version in range(1, VERSIONS + 1):
        for number in range(PARTITIONS):
            planted.delta(number, version, {row(version): b"%d" % version})
    return planted


@pytest.fixture
def service(client: Client, planted: Planted) -> Service:
    """A worker that has maintained everything once."""
    assert planted.partitions == PARTITIONS
    service = quiet_service(client, Job(Policy("w")))
    first = service.run_pass()
    assert (first.partitions, first.unchanged, first.problems) == (PARTITIONS, 0, [])
    assert (first.verified, first.named) == (SEGMENTS, SEGMENTS)
    return service


def calls(raw: redis.Redis) -> Counter[str]:
    stats = raw.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): int(stats[name]["calls"]) for name in stats})


def test_every_segment_is_verified_once_within_ten_passes(
    raw: redis.Redis, service: Service
) -> None:
    before = calls(raw)
    reports = [service.run_pass() for _ in range(TURNS)]
    asked = calls(raw) - before
    assert sum(report.verified for report in reports) == SEGMENTS
    assert max(report.verified for report in reports) < SEGMENTS // 3
    for report in reports:
        assert (report.partitions, report.named) == (PARTITIONS, SEGMENTS)
        assert report.verified == (PARTITIONS - report.unchanged) * VERSIONS
        assert report.lag_versions == VERSIONS
        assert report.lag_bytes == reports[0].lag_bytes > 0
        assert f"{report.verified} of {SEGMENTS} segments verified" in str(report)
    # Looks at the manifest, and one at each segment; blocks are counted of a few of them.
    assert asked["hlen"] - TURNS * PARTITIONS <= SEGMENTS // VERSIONS
    assert asked["pttl"] == 2 * PARTITIONS + SEGMENTS
    assert asked["set"] == PARTITIONS, "an unchanged partition is not claimed"
    assert asked["hgetall"] < TURNS * PARTITIONS


def test_damaged_segment_is_found_within_ten_passes_and_reported_until_it_is_whole(
    raw: redis.Redis, planted: Planted, service: Service
) -> None:
    key = keys.segment(planted.id(17), f"d:2:{uid(2)}")
    whole = bytes_of(raw.dump(key))
    raw.delete(key)
    problems = [service.run_pass().problems for _ in range(TURNS)]
    first = next(number for number, found in enumerate(problems) if found)
    assert all(len(found) == 1 for found in problems[first:]), "each pass reports it"
    assert len(service.run_pass().problems) == 1
    raw.restore(key, 0, whole)
    mended = service.run_pass()
    assert (mended.problems, mended.unchanged >= PARTITIONS // 2) == ([], True)


def test_lost_block_is_found_within_ten_rounds(
    raw: redis.Redis, planted: Planted, service: Service
) -> None:
    raw.hset(keys.segment(planted.id(17), f"d:2:{uid(2)}"), "ffff", b"of nobody")
    problems = [service.run_pass().problems for _ in range(10 * TURNS)]
    assert problems[-1] == problems[-2]
    assert len(problems[-1]) == 1


def test_unchanged_partition_is_not_opened_again(raw: redis.Redis, service: Service) -> None:
    before = calls(raw)
    for _ in range(TURNS):
        assert service.run_pass().lag_versions == VERSIONS
    # Releases of claims.
    assert (calls(raw) - before)["evalsha"] == PARTITIONS


def test_expiry_of_a_published_segment_is_removed_within_ten_passes(
    raw: redis.Redis, planted: Planted, service: Service
) -> None:
    key = keys.segment(planted.id(5), f"d:1:{uid(1)}")
    raw.pexpire(key, 600_000)
    assert sum(service.run_pass().mended for _ in range(TURNS)) == 1
    assert raw.pttl(key) == -1


def test_changed_partitions_are_verified_at_once(
    raw: redis.Redis, planted: Planted, service: Service
) -> None:
    service.run_pass()
    changed = range(0, PARTITIONS, 4)
    for number in changed:
        raw.delete(keys.segment(planted.id(number), f"d:2:{uid(2)}"))
        # Another run has acquired every second one; the others have a new version.
        if number % 8:
            raw.hset(keys.meta(planted.id(number)), mapping={"e": "2", "r": "another"})
        else:
            planted.delta(number, VERSIONS + 1, {row(9): b"x"})
    report = service.run_pass()
    assert len(report.problems) == len(changed)
    assert report.unchanged < PARTITIONS - len(changed)
    assert report.named > SEGMENTS


def test_instance_of_an_overtaken_run_is_deactivated_at_once(
    raw: redis.Redis, planted: Planted, service: Service
) -> None:
    raw.hset(keys.query(GEN), mapping={f"run:{OTHER_RUN}": "0 d", "run:run": "1 d", "epoch": "1"})
    older = Instance("h", "1", OTHER_RUN).encode()
    for number in range(PARTITIONS):
        raw.set(keys.instance(planted.id(number)), older, px=60_000)
    assert service.run_pass().deactivated == PARTITIONS


def test_new_snapshot_and_its_retention_are_not_delayed(planted: Planted, service: Service) -> None:
    for version in (4, 5, 6):
        for number in range(PARTITIONS):
            planted.delta(number, version, {row(version): b"x"})
    assert service.run_pass().snapshots == PARTITIONS
    # The snapshots have changed the manifests, so that retention looks at them again.
    assert service.run_pass().unchanged == 0
    assert service.run_pass().unchanged > 0


@pytest.mark.usefixtures("planted")
def test_explicit_commands_verify_everything(client: Client) -> None:
    for policy in (Policy("once"), Policy("once"), Policy("deep", deep=True)):
        report = quiet_service(client, Job(policy)).run_pass()
        assert (report.verified, report.named, report.unchanged) == (SEGMENTS, SEGMENTS, 0)
    deep = quiet_service(client, Job(Policy("deep", deep=True)))
    assert [deep.run_pass().verified for _ in range(3)] == [SEGMENTS] * 3


def test_partition_left_to_another_worker_is_tried_again(
    raw: redis.Redis, client: Client, planted: Planted
) -> None:
    service = quiet_service(client, Job(Policy("me", done_ms=40_000, again=False)))
    claim = keys.claim(planted.id(0))
    raw.set(claim, "another", px=600_000)
    for _ in range(3):
        report = service.run_pass()
        assert report.left_to_others >= 1
        for number in range(1, PARTITIONS):
            raw.delete(keys.claim(planted.id(number)))
    raw.delete(claim)
    report = service.run_pass()
    assert (report.left_to_others, report.named) == (0, SEGMENTS)


def test_snapshot_that_a_concurrent_change_prevented_is_tried_in_the_next_pass(
    planted: Planted, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (4, 5, 6):
        for number in range(PARTITIONS):
            planted.delta(number, version, {row(version): b"x"})
    with monkeypatch.context() as patch:
        # What Redis answers when another snapshot was faster, which is gone by the next pass.
        patch.setattr(PartitionClient, "add_snapshot", lambda *_: False)
        report = service.run_pass()
    assert (report.snapshots, report.snapshots_missed) == (0, PARTITIONS)
    report = service.run_pass()
    assert (report.snapshots, report.unchanged) == (PARTITIONS, 0)


def test_manifest_of_another_type_is_reported_in_each_pass(
    raw: redis.Redis, planted: Planted, service: Service
) -> None:
    raw.set(keys.meta(planted.id(3)), "text")
    for _ in range(3):
        report = service.run_pass()
        assert len(report.problems) == 1
        assert report.named == SEGMENTS - VERSIONS


@pytest.mark.usefixtures("planted")
def test_many_partitions_are_remembered_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr(rotation, "PARTITIONS_MAX", 10)
    service = quiet_service(client, Job(Policy("w")))
    service.run_pass()
    report = service.run_pass()
    assert 0 < report.unchanged <= 10
    assert report.verified == SEGMENTS - report.unchanged * VERSIONS


def test_partitions_of_a_removed_checkpoint_are_forgotten(
    raw: redis.Redis, service: Service
) -> None:
    raw.flushdb()
    for _ in range(3 * TURNS):
        service.run_pass()
    memory = service._rotation
    assert memory is not None
    assert memory._maintained == {}
