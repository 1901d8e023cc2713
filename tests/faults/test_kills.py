"""Real queries of every operator family, side by side, while what they run on is killed.

A seed decides what strikes when; `python -m tests.faults.kills --seed S` plays one again, and more
of them. `REDIS_STATE_TEST_SEED` is the first of these; new seeds are for the long form.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.feed import FAMILIES
from tests.faults.processes import kill
from tests.faults.rig import Rig, Run
from tests.faults.strikes import plan, strike

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FIRST_SEED = 1_063_074_870
SEEDED_QUICK = 1
SEEDED = 20
BATCHES = 3  # of the runs that are struck at a place


@pytest.fixture(scope="module")
def first_seed() -> int:
    return int(os.environ.get("REDIS_STATE_TEST_SEED", FIRST_SEED))


@pytest.fixture(scope="module")
def shared_rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


@pytest.fixture
def rig(shared_rig: Rig) -> Iterator[Rig]:
    """The driver of a run that did not end well is not there for the next one."""
    shared_rig.is_sound = False
    yield shared_rig
    if not shared_rig.is_sound:
        shared_rig.end_drivers()


def check(run: Run) -> None:
    assert not run.complaints()
    run.rig.is_sound = True


def placed(rig: Rig, seed: int, *places: str) -> Run:
    """A run that waits at places, which its feed has to come to."""
    run = Run(rig, seed, families=FAMILIES, batches=BATCHES, checkpoint_format=1 + seed % 2)
    for place in places:
        run.stop_at(place)
    return run


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.long if number >= SEEDED_QUICK else ())
        for number in range(SEEDED)
    ],
)
def test_kills_and_faults_never_lose_double_or_stale_rows(
    rig: Rig, first_seed: int, number: int
) -> None:
    made = plan(first_seed + number)
    print(made)
    run = Run(
        rig,
        made.seed,
        families=FAMILIES,
        batches=made.batches,
        checkpoint_format=made.checkpoint_format,
    )
    struck = strike(run, made)
    assert struck, "the run was over before anything struck"
    check(run)


def test_kills_of_worker_and_executor_amid_a_function_lose_nothing(rig: Rig) -> None:
    run = placed(rig, 1, "rows-1", "rows-2")
    run.start()
    kill(run.stopped_at("rows-1"))
    kill(rig.driver.executor_of(run.stopped_at("rows-2")))
    run.finish()
    check(run)


@pytest.mark.long
def test_kills_of_driver_and_executors_amid_a_function_lose_nothing(rig: Rig) -> None:
    run = placed(rig, 2, "rows-1")
    run.start()
    run.stopped_at("rows-1")
    rig.driver.kill_all()
    run.start()
    run.finish()
    check(run)


def test_kill_of_driver_between_state_and_sink_loses_nothing(rig: Rig) -> None:
    """Every partition of every family has committed the batch, and nothing of it was written."""
    places = [f"sink-{family}-1" for family in FAMILIES]
    run = placed(rig, 3, *places)
    run.start()
    for place in places:
        run.stopped_at(place)
    assert run.lines() == len(FAMILIES)
    assert run.state(2) == run.feed.counts(1)
    rig.driver.kill()
    run.start()
    run.finish()
    check(run)
