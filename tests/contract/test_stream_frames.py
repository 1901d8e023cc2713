"""Frames of `transform_with_state`: which of them may commit, whatever clocks say."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.config import Config
from redis_state.errors import StateError, UsageError
from redis_state.recovery.query_state import stores_of
from tests.contract.stream_support import TENANT, Driver, frame_of
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="module")
def config(shared_redis_server: RedisServer) -> Config:
    return options.parse({"url": shared_redis_server.url})


@pytest.fixture(scope="module")
def client(config: Config) -> Iterator[Client]:
    made = Client(config)
    yield made
    made.close()


@pytest.fixture
def driver(client: Client, config: Config) -> Driver:
    return Driver(client, config)


def test_stale_frame_is_refused_in_every_partition(client: Client, config: Config) -> None:
    driver = Driver(client, config, partitions=2)
    plan = driver.plan()
    for batch in range(3):
        for partition in (0, 1):
            driver.task(plan, "r1", batch, partition=partition).run()
    for run in ("r1", "r2"):
        for partition in (0, 1):
            for old in (0, 1):
                stale = driver.task(plan, run, 2, partition=partition, frame=frame_of("r1", old))
                with pytest.raises(UsageError, match=f"the DataFrame belongs to batch {old}"):
                    stale.join()
            # Evaluated twice, and run again by another run: each with its own frame.
            driver.task(plan, run, 2, partition=partition).run()
    kept = driver.task(plan, "r2", 2, frame=frame_of("r1", 2))
    with pytest.raises(
        UsageError, match="belongs to this batch, but of an earlier start of the query"
    ):
        kept.join()
    assert driver.task(plan, "r2", 3).run().read == b"r1:0 r1:1 r2:2 "


def test_stale_frame_that_begins_a_batch_begins_nothing(driver: Driver) -> None:
    plan = driver.plan()
    for batch in (0, 1):
        driver.task(plan, "r1", batch).run()
    for _ in range(2):
        with pytest.raises(UsageError, match="the DataFrame belongs to batch 0"):
            driver.task(plan, "r1", 2, frame=frame_of("r1", 0)).join()
    assert driver.task(plan, "r1", 2).run().read == b"r1:0 r1:1 "


def test_stale_frame_of_a_batch_long_gone_is_refused(driver: Driver) -> None:
    """More batches than Redis knows planned times of."""
    plan = driver.plan()
    for batch in range(40):
        driver.task(plan, "r1", batch).run()
    for kept in (1, 20):
        for batch in (39, 40):
            with pytest.raises(UsageError, match=f"the DataFrame belongs to batch {kept}"):
                driver.task(plan, "r1", batch, frame=frame_of("r1", kept)).join()
    with pytest.raises(UsageError, match="the DataFrame belongs to another batch"):
        driver.task(plan, "r1", 39, frame=frame_of("r1", 99)).join()


def test_frames_are_remembered_up_to_a_bound(driver: Driver) -> None:
    plan = driver.plan()
    for batch in range(260):
        driver.task(plan, "r1", batch).run()
    (frames,) = driver.client.call(
        "looking", [("HGET", keys.query(plan.gen, tenant=TENANT), "frames:0:default")]
    )
    known = frames.split()
    assert len(known) == 256
    assert known[-1] == f"259:{frame_of('r1', 259)}".encode()


def test_clock_of_the_driver_does_not_matter(driver: Driver) -> None:
    """The driver's clock steps back within a run, and gives several batches one time."""
    plan = driver.plan()
    for batch, planned in enumerate((1000, 999, 1000, 1000, 1, 2_000)):
        driver.task(plan, "r1", batch, planned=str(planned)).run()
    for batch, planned in ((5, 2_000), (6, 1000)):
        driver.task(plan, "r2", batch, planned=str(planned)).run()
    text = b"r1:0 r1:1 r1:2 r1:3 r1:4 r2:5 r2:6 "
    assert driver.task(plan, "r2", 7, planned="999").run().read == text


def test_task_without_a_frame_commits_nothing(driver: Driver) -> None:
    plan = driver.plan()
    nothing: tuple[dict[str, Any], ...] = ({"frame": ""}, {"planned": ""})
    for given in nothing:
        with pytest.raises(UsageError, match="the DataFrame belongs to another batch"):
            driver.task(plan, "r1", 0, **given).join()


def test_second_operator_of_a_query_with_the_same_store_is_refused(driver: Driver) -> None:
    first, second = driver.plan(), driver.plan()
    for one, other in ((first, second), (second, first)):
        run = uuid.uuid4().hex
        driver.task(one, run, 0).run()
        with pytest.raises(UsageError, match="two calls of transform_with_state in this query"):
            driver.task(other, run, 0, frame=frame_of("other", 0)).join()
        if one is first:
            driver = Driver(driver.client, driver.config)
            first, second = driver.plan(), driver.plan()


def test_batch_planned_in_the_same_millisecond_after_a_rewind_counts_nothing_of_before(
    client: Client, config: Config
) -> None:
    """The clock stepped back, and a limit leaves a partition out: it has the rows of before."""
    driver = Driver(client, config, partitions=2)
    plan = driver.plan()
    for batch in range(2):
        for partition in (0, 1):
            driver.task(plan, "r1", batch, partition=partition).run()
    (store,) = stores_of(client, plan.gen, tenant=TENANT)
    store.set_to(client, 0, tenant=TENANT)
    later = driver.plan()
    driver.task(later, "r2", 1, partition=0, planned="1001", text="anew").run()
    with pytest.raises(StateError, match="partition 1 does not hold version 2"):
        driver.task(later, "r2", 2, partition=0).join()
