"""Runs of the oracle add up, as long as they are of one state of the code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.campaign import Failure, Group, Result, Verdict
from tests.faults.campaign_results import OtherCodeError, Results
from tests.faults.oracle.campaign import ORACLE


def group(*seeds: int, wrong: int = 0) -> Group:
    failures = [Failure(seed, ("it lies",)) for seed in seeds[:wrong]]
    met = Counter({"schedules": len(seeds), "wrong": wrong})
    return Group(seeds, Result(met, failures))


def test_repeated_seed_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    found = Results.of(path, ORACLE.code)
    found.add(group(1, 2, 3), 2.0)
    found.add(group(7, 8, wrong=1), 1.0)
    found.add_verdict(Verdict("no-fence", Failure(4, ("it lies",))), 0.5)
    found.add_verdict(Verdict("staged-for-ever", None), 0.5)

    again = Results.of(path, ORACLE.code)
    assert again.missing(range(1, 11)) == [4, 5, 6, 9, 10]
    again.add(group(4, 5, 6), 1.0)

    kept = Results.of(path, ORACLE.code)
    assert kept.spans == [(1, 8)]
    assert kept.result.counters == {"schedules": 8, "wrong": 1}
    assert kept.result.failures == [Failure(7, ("it lies",))]
    assert kept.verdicts == {"no-fence": 4, "staged-for-ever": None}
    assert kept.seconds == 5.0


def test_results_of_other_code_are_not_added_up(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    found = Results.of(path, ORACLE.code)
    found.code = "0123456789abcdef"
    found.add(group(1), 1.0)
    with pytest.raises(OtherCodeError, match="0123456789abcdef"):
        Results.of(path, ORACLE.code)


def test_results_without_a_file_are_not_kept() -> None:
    found = Results.of(None, ORACLE.code)
    found.add(group(2), 1.0)
    assert found.spans == [(2, 2)]
    assert Results.of(None, ORACLE.code).spans == []
