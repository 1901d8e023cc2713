"""Schedules over whole processes, and the mended faults that they have to find."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.oracle.campaign import Result
from tests.faults.system import campaign
from tests.faults.system.mutants import MUTANTS

SCHEDULES = 60
LONG_SCHEDULES = 2000
GROUP = 200


def played(seeds: range, *, jobs: int | None = None) -> Result:
    result = Result(Counter())
    for group in campaign.groups(seeds, jobs=jobs):
        result.counters.update(group.result.counters)
        result.failures += group.result.failures
    return result


def test_nothing_around_the_protocol_loses_state_or_fails_falsely() -> None:
    """Replay a seed by `make system SEED=…`."""
    result = played(range(1, SCHEDULES + 1), jobs=1)
    assert [str(one) for one in result.failures] == []
    assert result.counters["schedules"] == SCHEDULES
    assert not any(result.counters[name] for name in campaign.FORBIDDEN)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, LONG_SCHEDULES + 1, GROUP))
def test_many_schedules(first: int) -> None:
    result = played(range(first, first + GROUP), jobs=1)
    assert [str(one) for one in result.failures] == []


@pytest.mark.long
@pytest.mark.parametrize("name", [one.name for one in MUTANTS])
def test_every_mutant_is_found(name: str) -> None:
    (verdict,) = campaign.mutants([name], jobs=1)
    assert verdict.failure is not None


def test_the_mutants_fit_the_code() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.texts() or mutant.patches
