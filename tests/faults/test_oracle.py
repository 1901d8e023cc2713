"""The oracle over the Python store, and the mutants that show what it is able to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.oracle import known_seeds
from tests.faults.oracle.campaign import ORACLE
from tests.faults.oracle.mutants import MUTANTS

pytestmark = pytest.mark.slow

SCHEDULES_QUICK = 1000
SCHEDULES = 20_000
GROUP = 500  # as many as one test can run long before pytest takes it for hanging
MUTANTS_MIN = 20
MUTANTS_GROUPS = 2


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.long if first > SCHEDULES_QUICK else ())
        for first in range(1, SCHEDULES + 1, GROUP)
    ],
)
def test_every_load_returns_the_written_rows_or_a_fair_error(first: int) -> None:
    """Replay a seed by `make faults SEED=…`.

    The quick groups have to meet everything. Of the others some meet no case of what is rare.
    """
    result = ORACLE.run(range(first, first + GROUP))
    print({name: result.counters[key] for name, key in ORACLE.required.items()})
    judged = ORACLE.complaints if first <= SCHEDULES_QUICK else ORACLE.faults
    assert judged(result) == []
    assert result.counters["schedules"] == GROUP


def test_seed_repeats_the_same_schedule() -> None:
    seeds = range(42, 48)  # every pair of formats, with and without loss, whole and short
    first, second = (ORACLE.run(seeds, jobs=1) for _ in range(2))
    assert first.counters == second.counters
    assert first.failures == second.failures == []


@pytest.mark.parametrize("group", range(MUTANTS_GROUPS))
def test_every_mutant_is_found(group: int) -> None:
    names = [mutant.name for mutant in MUTANTS][group::MUTANTS_GROUPS]
    verdicts = list(known_seeds.QUICK.verdicts(names, None))
    assert [one.name for one in verdicts] == names
    assert [one.name for one in verdicts if one.failure is None] == []


def test_mutant_whose_known_seed_is_stale_is_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, stale = "block-count-unchecked", 1
    for seeds in ({}, {name: stale}):
        path = tmp_path / "seeds.json"
        path.write_text(json.dumps(seeds))
        monkeypatch.setattr(known_seeds, "_PATH", path)
        (verdict,) = known_seeds.QUICK.verdicts([name], 1)
        assert verdict.failure is not None
        assert verdict.failure.seed != stale


def test_number_of_mutants_is_sufficient() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_MIN
