"""Maintenance from Redis alone, on planted state; other workers are played by raw commands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.clock import SYSTEM, Clock
from redis_state.format.header import Tombstone
from redis_state.format.rows import Appended, Value
from redis_state.ids import PartitionId
from redis_state.maintain import MaintenanceReport, PassControl, Policy, maintain_checkpoint
from redis_state.maintain.service import Job, Service
from redis_state.protocol.instances import Instance
from redis_state.protocol.opening import open_commands, read_replies
from redis_state.reader.scan import rows_of
from tests.contract.planting import GEN, Planted, family, schema, uid
from tests.support.redis_server import RedisServer, bytes_of

ONE = schema(k="string")
WORKER = Policy("worker-1")
OTHER_RUN = "6d2bd1e5-0c7c-4c3e-9d77-222222222222"


def row(number: int) -> bytes:
    return b"\0\0key-%05d" % number


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Client]:
    client = Client(config.parse({"url": redis_server.url, "deadline": "2s"}))
    yield client
    client.close()


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


def rows(client: Client, id_: PartitionId, version: int) -> dict[bytes, bytes]:
    (reply,) = client.call("reading", open_commands([id_], version))
    (opened,) = read_replies([id_], [reply], version=version)
    return {key: value for key, value, _ in rows_of(client, opened)}


def grown(raw: redis.Redis, *, versions: int = 10, each: int = 40) -> Planted:
    """One partition whose every version changes and adds rows."""
    planted = Planted(raw, family=family(ONE, ONE), partitions=1)
    planted.register()
    for version in range(1, versions + 1):
        some: dict[bytes, Value] = {
            row(number): b"%d" % version for number in range(version, version + each)
        }
        some[row(version - 1)] = None
        planted.delta(0, version, some)
    return planted


def maintain(client: Client, policy: Policy = WORKER) -> MaintenanceReport:
    return maintain_checkpoint(client, GEN, policy=policy, name="flights")


def quiet_service(client: Client, job: Job, *, clock: Clock = SYSTEM) -> Service:
    """Ends after one pass, and tells nobody how far it is."""
    return Service(
        client,
        job,
        control=PassControl(),
        wait=lambda _: True,
        clock=clock,
    )


def segments(raw: redis.Redis, planted: Planted) -> list[str]:
    found = map(bytes_of, raw.hkeys(keys.meta(planted.id(0))))
    return sorted(name.decode() for name in found if name[:2] in (b"d:", b"s:"))


def test_snapshot_is_added_and_old_versions_are_dropped(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw)
    kept = {version: rows(client, planted.id(0), version) for version in (8, 9, 10)}
    report = maintain(client)
    assert (report.checkpoints, report.partitions, report.snapshots) == (1, 1, 1)
    assert (report.lag_versions, report.lag_bytes, report.problems) == (0, 0, [])
    assert segments(raw, planted)[-1] == f"s:10:{uid(10)}"
    assert {version: rows(client, planted.id(0), version) for version in kept} == kept
    # The floor finds its base when the query has gone on.
    for version in range(11, 15):
        planted.delta(0, version, {row(version): b"x"})
    wanted = rows(client, planted.id(0), 14)
    report = maintain(client)
    assert report.dropped > 0
    assert report.dropped_bytes > 0
    assert segments(raw, planted)[0].startswith("d:11:")
    assert rows(client, planted.id(0), 14) == wanted
    assert 0 < raw.pttl(keys.segment(planted.id(0), f"d:3:{uid(3)}")) <= 600_000
    assert maintain(client).dropped == 0


def test_a_snapshot_is_added_only_where_it_is_due(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=3)
    assert maintain(client).snapshots == 0
    planted.delta(0, 4, {row(4): b"x"})
    assert maintain(client).snapshots == 1
    for version in range(5, 9):
        assert maintain(client).snapshots == 0
        planted.delta(0, version, {row(version): b"x"})
    small = maintain(client)
    assert small.snapshots == 0, "four small deltas weigh less than half of the snapshot"
    assert small.lag_versions == 4
    assert small.lag_bytes > 0


def test_serving_process_gets_more_time_to_maintain(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=7)
    served = Instance("h", "1", "run")
    raw.set(keys.instance(planted.id(0)), served.encode(), px=60_000)
    assert maintain(client).snapshots == 0
    planted.delta(0, 8, {row(8): b"x"})
    assert maintain(client).snapshots == 1


def test_version_with_too_many_changes_is_left_to_its_process(
    client: Client, raw: redis.Redis
) -> None:
    grown(raw)
    report = maintain(client, Policy("worker-1", changes_max=100))
    assert (report.snapshots, report.lag_versions) == (0, 10)


@pytest.mark.parametrize("kind", ["none", "prefix", "range", "ts-prefix", "ts-postfix"])
def test_every_kind_of_family_keeps_its_rows(client: Client, raw: redis.Redis, kind: str) -> None:
    params = (1,) if kind == "prefix" else ()
    planted = Planted(raw, family=family(ONE, ONE, kind=kind, params=params), partitions=1)
    planted.register()

    def key(number: int) -> bytes:
        encoded = b"%08d" % (number % 7) + b"%08d" % number
        return b"\0\0" + (b"\x08\0\0\0" if kind == "prefix" else b"") + encoded

    planted.delta(0, 1, {key(n): b"a" * 50 for n in range(1000)})
    cut = Tombstone(0, key(3)[2:], key(4)[2:])
    planted.delta(0, 2, {key(n): b"b" for n in range(500, 1500)}, tombstones=[cut])
    planted.delta(0, 3, {key(n): None for n in range(100)})
    planted.delta(0, 4, {})
    planted.delta(0, 5, {key(5000): b"c"})
    wanted = rows(client, planted.id(0), 5)
    assert len(wanted) > 1000
    report = maintain(client, Policy("w", deep=True))
    assert (report.snapshots, report.problems) == (1, [])
    assert rows(client, planted.id(0), 5) == wanted


def test_appended_lists_are_resolved(client: Client, raw: redis.Redis) -> None:
    planted = Planted(raw, family=family(ONE, ONE), partitions=1)
    planted.register()
    planted.delta(0, 1, {row(1): b"\xc4\x01a"})
    planted.delta(0, 2, {row(1): Appended(b"\xc4\x01b"), row(2): Appended(b"\xc4\x01c")})
    planted.delta(0, 3, {row(2): None})
    planted.delta(0, 4, {row(2): Appended(b"\xc4\x01d")})
    assert maintain(client).snapshots == 1
    assert rows(client, planted.id(0), 4) == {row(1): b"\xc4\x01a\xc4\x01b", row(2): b"\xc4\x01d"}


def test_a_version_without_rows_gets_an_empty_snapshot(client: Client, raw: redis.Redis) -> None:
    planted = Planted(raw, family=family(ONE, ONE), partitions=1)
    planted.register()
    for version in range(1, 5):
        planted.delta(0, version, {row(1): b"x"} if version % 2 else {row(1): None})
    assert maintain(client, Policy("w", deep=True)).snapshots == 1
    assert rows(client, planted.id(0), 4) == {}
    planted.delta(0, 5, {row(2): b"y"})
    assert rows(client, planted.id(0), 5) == {row(2): b"y"}


def test_maintained_ephemeral_keys_still_expire(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw)
    for name in raw.keys("{rs:*:m") + raw.keys("{rs:*:d:*"):
        raw.pexpire(name, 300_000)
    report = maintain(client)
    assert (report.snapshots, report.mended, report.problems) == (1, 0, [])
    assert 0 < raw.pttl(keys.meta(planted.id(0))) <= 300_000
    (snapshot,) = raw.keys("{rs:*:s:*")
    assert 0 < raw.pttl(snapshot) <= 300_000


def test_old_versions_are_dropped_on_a_full_server(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw)
    assert maintain(client).snapshots == 1
    for version in range(11, 18):
        planted.delta(0, version, {row(n): b"%d" % version for n in range(90)})
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", raw.info("memory")["used_memory"] // 2)
    report = maintain(client)
    raw.config_set("maxmemory", 0)
    assert report.snapshots == 0
    assert any("FULL" in problem for problem in report.problems)
    assert report.dropped > 0


class KilledError(Exception):
    """The worker dies here."""


@pytest.mark.parametrize("applied", [False, True], ids=["before it is sent", "after it is applied"])
def test_worker_killed_at_any_step_does_no_harm(
    client: Client, raw: redis.Redis, applied: bool
) -> None:
    planted = grown(raw)
    dump = {name: bytes_of(raw.dump(name)) for name in raw.keys("*")}
    wanted = {version: rows(client, planted.id(0), version) for version in (8, 9, 10)}
    exchange = client._exchange
    steps = 0
    died = True
    while died:
        died, left = False, [steps]

        def dying(
            attempted: str, commands: list[tuple[str | bytes, ...]], left: list[int] = left
        ) -> list[object]:
            left[0] -= 1
            if left[0] == -1 and not applied:
                raise KilledError
            replies = exchange(attempted, commands)
            if left[0] == -1:
                raise KilledError
            return replies

        raw.flushdb()
        for name, value in dump.items():
            raw.restore(name, 0, value)
        client._exchange = dying  # type: ignore[method-assign,assignment]
        try:
            maintain(client)
        except KilledError:
            died = True
        client._exchange = exchange  # type: ignore[method-assign]
        for version, state in wanted.items():
            assert rows(client, planted.id(0), version) == state, f"killed at step {steps}"
        raw.delete(keys.claim(planted.id(0)))
        report = maintain(client, Policy("worker-2", deep=True))
        assert report.problems == []
        for version, state in wanted.items():
            assert rows(client, planted.id(0), version) == state
        steps += 1
    assert steps > 8


def test_concurrent_workers_add_one_snapshot(
    redis_server: RedisServer, client: Client, raw: redis.Redis
) -> None:
    planted = Planted(raw, family=family(ONE, ONE), partitions=8)
    planted.register()
    for version in range(1, 7):
        for number in range(8):
            planted.delta(number, version, {row(n): b"%d" % version for n in range(50)})
    wanted = [rows(client, planted.id(number), 6) for number in range(8)]
    reports: list[MaintenanceReport] = []

    def work(name: str) -> None:
        own = Client(config.parse({"url": redis_server.url}))
        # Without done marks each worker tries every partition, and some meet.
        reports.append(maintain(own, Policy(name)))
        own.close()

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.snapshots for report in reports) == 8
    assert [problem for report in reports for problem in report.problems] == []
    assert [rows(client, planted.id(number), 6) for number in range(8)] == wanted
    assert raw.keys("*:x") == []


def test_claimed_or_recent_partitions_are_left_to_other_workers(
    client: Client, raw: redis.Redis
) -> None:
    planted = grown(raw)
    claim = keys.claim(planted.id(0))
    service = Policy("me", done_ms=40_000, again=False)
    raw.set(claim, "another", px=600_000)
    assert maintain(client, service).left_to_others == 1
    assert maintain(client, Policy("once")).left_to_others == 1
    raw.delete(claim)
    assert maintain(client, service).partitions == 1
    assert raw.get(claim) == b""
    assert 0 < raw.pttl(claim) <= 40_000
    assert maintain(client, service).left_to_others == 1
    assert maintain(client, Policy("once")).partitions == 1, "a person asked for it"
    assert raw.exists(claim) == 0


def test_a_claim_of_a_killed_worker_expires(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw)
    release = client.script

    def dying(attempted: str, *rest: object) -> list[str]:
        if attempted == "sharing the maintenance":
            raise KilledError
        return release(attempted, *rest)  # type: ignore[arg-type]

    client.script = dying  # type: ignore[method-assign,assignment]
    with pytest.raises(KilledError):
        maintain(client, Policy("killed", claim_ms=5_000))
    assert raw.get(keys.claim(planted.id(0))) == b"killed"
    assert 0 < raw.pttl(keys.claim(planted.id(0))) <= 5_000


def test_an_instance_of_an_overtaken_run_is_deactivated(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=1)
    key = keys.instance(planted.id(0))
    raw.hset(keys.query(GEN), mapping={f"run:{OTHER_RUN}": "5 d", "run:run": "7 d", "epoch": "7"})
    raw.hset(keys.meta(planted.id(0)), "e", "7")
    older, holder = Instance("h", "1", OTHER_RUN), Instance("h", "2", "run")
    raw.set(key, holder.encode(), px=60_000)
    assert maintain(client).deactivated == 0
    raw.set(key, older.encode(), px=60_000)
    assert maintain(client).deactivated == 1
    assert raw.get(key) == b""
    assert 0 < raw.pttl(key) <= 60_000
    # A newer run that has loaded the partition and not written yet stays.
    raw.hset(keys.query(GEN), mapping={f"run:{OTHER_RUN}": "9 d", "epoch": "9"})
    raw.set(key, older.encode(), px=60_000)
    assert maintain(client).deactivated == 0
    assert raw.get(key) == older.encode()


def test_checkpoint_without_partitions_is_skipped(client: Client) -> None:
    assert str(maintain(client)).startswith("0 partitions of 1 checkpoints maintained")


@pytest.mark.parametrize("partitions", [1, 300])
def test_unlisted_partitions_are_found(client: Client, raw: redis.Redis, partitions: int) -> None:
    planted = Planted(raw, family=family(ONE, ONE), partitions=0)
    planted.register()
    for number in range(partitions):
        planted.delta(number, 1, {row(1): b"x"})
    assert maintain(client).partitions == partitions


def test_stop_request_is_checked_before_each_partition(client: Client, raw: redis.Redis) -> None:
    planted = Planted(raw, family=family(ONE, ONE), partitions=4)
    planted.register()
    for number in range(4):
        planted.delta(number, 1, {row(1): b"x"})
    seen: list[tuple[str, int, int]] = []

    def told(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))

    stopped: Callable[[], bool] = lambda: len(seen) == 2  # noqa: E731  # one line says it
    report = maintain_checkpoint(
        client, GEN, policy=WORKER, name="flights", control=PassControl(told, stopped)
    )
    assert report.partitions == 2
    assert seen == [("maintaining flights", 1, 4), ("maintaining flights", 2, 4)]
