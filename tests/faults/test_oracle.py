"""The oracle over the Python store, and the mutants that show what it is able to find."""

from __future__ import annotations

import pytest

from tests.faults.oracle import campaign
from tests.faults.oracle.mutants import MUTANTS

pytestmark = pytest.mark.slow

SCHEDULES = 3000
MUTANTS_MIN = 20


def test_every_load_gives_what_was_written_or_a_fair_error() -> None:
    """Replay a seed by `make faults SEED=…`."""
    result = campaign.schedules(range(1, SCHEDULES + 1))
    print({name: result.counters[key] for name, key in campaign.REQUIRED.items()})
    assert not result.complaints
    assert result.counters["schedules"] == SCHEDULES


def test_every_mutant_is_found() -> None:
    verdicts = list(campaign.mutants())
    assert len(verdicts) == len(MUTANTS) >= MUTANTS_MIN
    assert [one.name for one in verdicts if one.failure is None] == []
