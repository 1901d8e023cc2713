"""Starts of queries in one application take nothing that Spark's own provider does not take."""

from __future__ import annotations

import pytest

from tests.faults.starts import PROVIDERS, STEP, growth, side_by_side, table

_SAMPLES = [{"threads": 40.0 + 10 * number, "heap": 80.0} for number in range(9)]
_MORE_MAX = {
    "JVM: heap in use, MiB": 0.5,
    "JVM: threads": 0.8,
    "JVM: open files": 0.3,
    "Python: threads": 0.3,
    "Python: open files": 0.3,
}
"""Bounds of the growth of a start above that of Spark, in units or MiB; a leak is one at least."""


def test_growth_of_a_start_is_the_median_of_all_slopes() -> None:
    assert growth(_SAMPLES, "threads") == 10 / STEP
    assert growth(_SAMPLES, "heap") == 0


def test_table_has_a_line_for_each_figure() -> None:
    text = table(dict.fromkeys(PROVIDERS, _SAMPLES), 90)
    assert "| threads | 70 | 120 | +1.00 | 70 | 120 | +1.00 |" in text.splitlines()


@pytest.mark.long
def test_a_start_takes_no_more_than_with_the_provider_of_spark() -> None:
    found = side_by_side(60)
    theirs, ours = (found[name] for name in PROVIDERS)
    for name, more in _MORE_MAX.items():
        assert growth(ours, name) <= max(0.0, growth(theirs, name)) + more, table(found, 60)
