"""The registry of instances on a real server; other processes are played by raw commands."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.coordinator import Instance, StateStoreCoordinator
from redis_state.errors import ConfigError, FormatError, NotFoundError
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId
from redis_state.protocol import checkpoint_gen
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer

NAME = "orders: {2026}\0"
RUN = "6d2bd1e5-0c7c-4c3e-9d77-111111111111"
OTHER_RUN = "6d2bd1e5-0c7c-4c3e-9d77-222222222222"
TTL_MS = 9_000
THIRD_S = TTL_MS / 3000


@dataclass
class Process:
    """A process with a coordinator that does nothing unless it is told to."""

    client: Client
    clock: ManualClock = field(default_factory=partial(ManualClock, 100.0))

    def __post_init__(self) -> None:
        self.coordinator = StateStoreCoordinator(
            self.client, ttl_ms=TTL_MS, clock=self.clock, threaded=False
        )
        self.ref = self.coordinator.reference(NAME)

    def beat_after(self, seconds: float) -> int:
        """Round trips that it took."""
        before = self.client.round_trips
        self.clock.now_s += seconds
        self.coordinator.heartbeat.tick()
        return self.client.round_trips - before


def provider(partition: int = 0, *, run: str = RUN) -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId(NAME, 0, partition), run)


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def start(redis_server: RedisServer) -> Iterator[Callable[[], Process]]:
    clients: list[Client] = []

    def connect() -> Process:
        clients.append(Client(config.parse({"url": redis_server.url, "deadline": "2s"})))
        return Process(clients[-1])

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def gen(redis_server: RedisServer, raw: redis.Redis) -> str:
    """A checkpoint with four partitions."""
    client = Client(config.parse({"url": redis_server.url}))
    found = checkpoint_gen(client, NAME, create=True)
    client.close()
    assert found is not None
    listing = {"path": "", "id": found, "name": NAME, "created": 1, "seen": 1}
    raw.hset("{rs}:c", found, json.dumps(listing))
    raw.hset("{rs}:c", f"{found}:0:default", "4")
    return found


def key_of(gen: str, partition: int = 0) -> str:
    return keys.instance(provider(partition).store_id.partition(gen))


@pytest.mark.usefixtures("gen")
def test_reported_instance_is_found_by_every_process(
    start: Callable[[], Process], gen: str
) -> None:
    one, two = start(), start()
    one.ref.report_active_instance(provider(), "host-a", "1")
    assert two.ref.get_location(provider()) is None
    one.coordinator.heartbeat.tick()
    assert two.ref.get_location(provider()) == Instance("host-a", "1", RUN)
    assert two.ref.get_location(provider(run=OTHER_RUN)) is None
    assert two.ref.get_location(provider(1)) is None
    assert two.ref.verify_if_instance_active(provider(), "1")
    assert not two.ref.verify_if_instance_active(provider(), "2")
    assert not two.ref.verify_if_instance_active(provider(run=OTHER_RUN), "1")
    assert two.ref.instances() == {
        PartitionId(provider().store_id.partition(gen).store, 0): Instance("host-a", "1", RUN)
    }
    assert two.coordinator.instances(gen) == two.coordinator.instances(NAME)


def test_unrenewed_instance_expires(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    process = start()
    process.ref.report_active_instance(provider(), "h", "1")
    process.coordinator.heartbeat.tick()
    assert 0 < raw.pttl(key_of(gen)) <= TTL_MS
    # The server's own time runs out: what a ttl without a heartbeat comes to.
    raw.pexpire(key_of(gen), 0)
    assert process.ref.get_location(provider()) is None
    assert not process.ref.verify_if_instance_active(provider(), "1")
    assert process.ref.instances() == {}


def test_all_instances_are_renewed_in_one_pipeline_each_third_of_the_ttl(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    process = start()
    for partition in range(4):
        process.ref.report_active_instance(provider(partition), "h", "1")
    process.coordinator.heartbeat.tick()
    for partition in range(4):
        raw.pexpire(key_of(gen, partition), 4_000)
    assert process.beat_after(THIRD_S - 0.01) == 0
    assert process.beat_after(0.01) == 1
    assert all(raw.pttl(key_of(gen, partition)) > 4_000 for partition in range(4))
    assert process.beat_after(THIRD_S - 0.01) == 0
    assert process.beat_after(0.01) == 1


def test_expired_instance_is_registered_again_after_a_pause(
    start: Callable[[], Process],
    raw: redis.Redis,
    gen: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = start()
    lost: list[Instance | None] = []
    process.ref.report_active_instance(provider(), "h", "1", on_lost=lost.append)
    process.coordinator.heartbeat.tick()
    raw.delete(key_of(gen))
    with caplog.at_level(logging.INFO, "redis_state.coordinator"):
        process.beat_after(2 * TTL_MS / 1000)
    assert "was not renewed for 18 s" in caplog.text
    assert process.ref.verify_if_instance_active(provider(), "1")
    assert lost == []


def test_newer_instance_wins_and_the_older_one_unloads_once(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    old, new = start(), start()
    lost: list[Instance | None] = []
    old.ref.report_active_instance(provider(), "a", "1", on_lost=lost.append)
    old.ref.report_active_instance(provider(1), "a", "1", on_lost=lost.append)
    old.coordinator.heartbeat.tick()
    new.ref.report_active_instance(provider(), "b", "2")
    new.coordinator.heartbeat.tick()
    assert lost == []
    for _ in range(3):
        old.beat_after(THIRD_S)
    assert lost == [Instance("b", "2", RUN)]
    assert list(old.coordinator.heartbeat.instances) == [provider(1).store_id.partition(gen)], (
        "only the lost one is forgotten"
    )
    assert raw.get(key_of(gen)) == Instance("b", "2", RUN).encode()


def test_newer_jvm_instance_wins(start: Callable[[], Process], raw: redis.Redis, gen: str) -> None:
    process = start()
    lost: list[Instance | None] = []
    process.ref.report_active_instance(provider(), "a", "1", on_lost=lost.append)
    process.coordinator.heartbeat.tick()
    written = b'{"host":"jvm-host","executor":"driver","run":"%s"}' % OTHER_RUN.encode()
    raw.set(key_of(gen), written, px=60_000)
    assert process.ref.get_location(provider(run=OTHER_RUN)) == Instance(
        "jvm-host", "driver", OTHER_RUN
    )
    process.beat_after(THIRD_S)
    assert lost == [Instance("jvm-host", "driver", OTHER_RUN)]
    assert raw.get(key_of(gen)) == written


def test_a_newer_run_in_the_same_process_unloads_the_older(start: Callable[[], Process]) -> None:
    process = start()
    process.coordinator.heartbeat.tick()
    lost: list[Instance | None] = []
    checkpoint_gen(process.client, NAME, create=True)
    process.ref.report_active_instance(provider(), "a", "1", on_lost=lost.append)
    process.coordinator.heartbeat.tick()
    newer = provider(run=OTHER_RUN)
    process.ref.report_active_instance(newer, "a", "1")
    process.coordinator.heartbeat.tick()
    assert lost == [Instance("a", "1", OTHER_RUN)]
    # The older one leaves; that must not take the newer one away.
    process.ref.withdraw_instance(provider())
    process.coordinator.heartbeat.tick()
    assert process.ref.verify_if_instance_active(newer, "1")


@pytest.mark.usefixtures("gen")
def test_failing_callback_does_not_stop_the_others(start: Callable[[], Process]) -> None:
    process, other = start(), start()
    lost: list[Instance | None] = []

    def fail(_found: Instance | None) -> None:
        raise ValueError("no")

    process.ref.report_active_instance(provider(0), "a", "1", on_lost=fail)
    process.ref.report_active_instance(provider(1), "a", "1", on_lost=lost.append)
    process.coordinator.heartbeat.tick()
    for partition in range(2):
        other.ref.report_active_instance(provider(partition), "b", "2")
    other.coordinator.heartbeat.tick()
    process.beat_after(THIRD_S)
    assert len(lost) == 1


def test_a_run_is_deactivated_in_every_process(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    one, two, driver = start(), start(), start()
    lost: list[tuple[int, Instance | None]] = []
    one.ref.report_active_instance(provider(0), "a", "1", on_lost=lambda f: lost.append((0, f)))
    one.ref.report_active_instance(provider(3, run=OTHER_RUN), "a", "1")
    two.ref.report_active_instance(provider(1), "b", "2", on_lost=lambda f: lost.append((1, f)))
    for process in (one, two):
        process.coordinator.heartbeat.tick()
    assert driver.ref.deactivate_instances(RUN) == 2
    assert [id_.partition for id_ in driver.ref.instances()] == [3]
    for process in (one, two):
        process.beat_after(THIRD_S)
    assert lost == [(0, None), (1, None)]
    assert [id_.partition for id_ in driver.ref.instances()] == [3]
    assert 0 < raw.pttl(key_of(gen, 0)) <= TTL_MS, "what tells the owner to leave expires too"
    one.ref.report_active_instance(provider(0), "a", "1")
    one.coordinator.heartbeat.tick()
    assert driver.ref.verify_if_instance_active(provider(0), "1"), "a new load may report again"


@pytest.mark.usefixtures("gen")
def test_deactivation_keeps_a_concurrent_newer_instance(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    raw.set(key_of(gen), Instance("a", "1", RUN).encode(), px=60_000)
    process = start()
    newer = Instance("b", "2", OTHER_RUN).encode()
    call = process.client.call

    def overtaken(attempted: str, commands: object, **given: object) -> list[object]:
        if "removing" in attempted:
            raw.set(key_of(gen), newer, px=60_000)
        return call(attempted, commands, **given)  # type: ignore[arg-type]

    process.client.call = overtaken  # type: ignore[method-assign]
    assert process.ref.deactivate_instances(RUN) == 0
    assert raw.get(key_of(gen)) == newer


@pytest.mark.usefixtures("gen")
def test_withdrawn_instance_is_removed_at_once(start: Callable[[], Process]) -> None:
    one, two = start(), start()
    one.ref.report_active_instance(provider(0), "a", "1")
    one.ref.report_active_instance(provider(1), "a", "1")
    one.ref.withdraw_instance(provider(0))
    one.coordinator.heartbeat.tick()
    assert [id_.partition for id_ in two.ref.instances()] == [1]


def test_an_ephemeral_checkpoint_is_renewed_with_its_instance(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    process = start()
    meta = keys.meta(provider().store_id.partition(gen))
    raw.hset(meta, "f", "1")
    raw.pexpire(meta, 5_000)
    process.ref.report_active_instance(provider(), "h", "1", keep_ms=3_600_000)
    process.coordinator.heartbeat.tick()
    assert process.beat_after(THIRD_S) == 1
    assert raw.pttl(meta) > 5_000


def test_unknown_checkpoint_has_no_instances(start: Callable[[], Process]) -> None:
    process = start()
    process.ref.report_active_instance(provider(), "h", "1")
    process.coordinator.heartbeat.tick()
    assert process.coordinator.heartbeat.instances == {}
    assert process.ref.get_location(provider()) is None
    assert process.ref.instances() == {}
    assert process.ref.deactivate_instances(RUN) == 0
    with pytest.raises(NotFoundError):
        process.coordinator.instances(NAME)


def test_report_waits_until_its_checkpoint_exists(
    start: Callable[[], Process], raw: redis.Redis
) -> None:
    one, two = start(), start()
    one.ref.report_active_instance(provider(), "h", "1")
    one.ref.report_active_instance(provider(1), "h", "1")
    one.coordinator.heartbeat.tick()
    one.ref.withdraw_instance(provider(1))
    one.coordinator.heartbeat.tick()
    assert raw.dbsize() == 0, "a report makes no checkpoint"
    client = Client(config.parse({"url": one.client.url}))
    checkpoint_gen(client, NAME, create=True)
    client.close()
    assert one.beat_after(THIRD_S) >= 1
    assert two.ref.get_location(provider()) == Instance("h", "1", RUN)
    assert two.ref.get_location(provider(1)) is None


def test_unopened_partition_is_listed_and_deactivated(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    one, two = start(), start()
    store = StateStoreId(NAME, 2, 70, "other: store")
    far = StateStoreProviderId(store, RUN)
    one.ref.report_active_instance(far, "h", "1")
    one.coordinator.heartbeat.tick()
    assert two.ref.get_location(far) == Instance("h", "1", RUN)
    assert two.ref.instances() == {store.partition(gen): Instance("h", "1", RUN)}
    raw.delete(keys.places(gen))
    one.beat_after(THIRD_S)
    assert list(two.ref.instances()) == [store.partition(gen)], "each heartbeat renews it"
    assert raw.pttl(keys.places(gen)) > 60_000
    assert keys.owned_by(keys.places(gen), gen=gen), "a purge finds it"
    assert two.ref.deactivate_instances(RUN) == 1
    assert two.ref.instances() == {}
    raw.hset(keys.places(gen), "no place", "1")
    with pytest.raises(FormatError, match="a place is malformed"):
        two.ref.instances()


def test_damaged_entries_are_named(
    start: Callable[[], Process], raw: redis.Redis, gen: str
) -> None:
    process = start()
    raw.set(key_of(gen), b"junk", px=60_000)
    with pytest.raises(FormatError):
        process.ref.get_location(provider())


def test_a_provider_of_another_checkpoint_is_refused(start: Callable[[], Process]) -> None:
    other = StateStoreProviderId(StateStoreId("other", 0, 0), RUN)
    with pytest.raises(ConfigError):
        start().ref.get_location(other)


@pytest.mark.usefixtures("gen")
def test_each_operation_is_logged_at_debug_level(
    start: Callable[[], Process], caplog: pytest.LogCaptureFixture
) -> None:
    process = start()
    with caplog.at_level(logging.DEBUG, "redis_state.coordinator"):
        process.ref.report_active_instance(provider(), "h", "1")
        process.coordinator.heartbeat.tick()
        process.ref.get_location(provider())
        process.ref.verify_if_instance_active(provider(), "1")
        process.ref.deactivate_instances(RUN)
    for told in ("reported Instance", "looked up", "verified", "deactivated 1 instances"):
        assert told in caplog.text


@pytest.mark.usefixtures("gen")
def test_coordinator_never_scans_the_keyspace(
    start: Callable[[], Process], raw: redis.Redis
) -> None:
    process = start()
    raw.config_resetstat()
    process.ref.report_active_instance(provider(), "h", "1")
    process.coordinator.heartbeat.tick()
    process.beat_after(THIRD_S)
    assert len(process.ref.instances()) == 1
    assert process.ref.deactivate_instances(RUN) == 1
    process.coordinator.stop()
    used = set(raw.info("commandstats"))
    assert "cmdstat_mget" in used
    assert not used & {"cmdstat_keys", "cmdstat_scan", "cmdstat_randomkey"}
