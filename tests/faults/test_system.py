"""Schedules over whole processes, and the mended faults that they have to find."""

from __future__ import annotations

import pkgutil

import pytest

from tests.faults.system.campaign import SYSTEM
from tests.faults.system.mutants import MUTANTS

SCHEDULES = 60
LONG_SCHEDULES = 2000
GROUP = 200


def test_system_schedules_lose_no_state_and_raise_no_false_error() -> None:
    """Replay a seed by `make system SEED=…`."""
    result = SYSTEM.run(range(1, SCHEDULES + 1), jobs=1)
    assert SYSTEM.faults(result) == []
    assert result.counters["schedules"] == SCHEDULES


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, LONG_SCHEDULES + 1, GROUP))
def test_many_system_schedules_pass(first: int) -> None:
    result = SYSTEM.run(range(first, first + GROUP), jobs=1)
    assert SYSTEM.faults(result) == []


@pytest.mark.long
@pytest.mark.parametrize("name", [one.name for one in MUTANTS])
def test_every_mutant_is_found(name: str) -> None:
    (verdict,) = SYSTEM.verdicts([name], 1)
    assert verdict.failure is not None


def test_mutants_match_the_code() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.texts() or mutant.patches
        for target, _ in mutant.patches:
            owner, _, name = target.rpartition(".")
            assert hasattr(pkgutil.resolve_name(owner), name), target
