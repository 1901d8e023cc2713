"""Increases that the exporter adds up from look to look."""

from __future__ import annotations

import pytest

from redis_state.protocol.instances import TOTALS_TTL_MS, Instance, Totals
from redis_state.status.totals import ErrorIncreases, Increases
from tests.support.manual_clock import ManualClock

GEN = "0" * 32
LOST = ("lost", 0, "default")
TTL_S = TOTALS_TTL_MS / 1000


@pytest.mark.parametrize(
    ("looks", "sums"),
    [
        ([(0, 12), (15, 14), (30, 15)], [0, 2, 3]),
        # A server that came back with an older file, or a replica that lags: nothing was counted.
        ([(0, 12), (15, 11), (30, 12)], [0, 0, 1]),
        # What was counted has expired, which one of the looks saw, or which none was there to see.
        ([(0, 12), (15, None), (30, 2)], [0, 0, 2]),
        ([(0, 12), (TTL_S, 2)], [0, 2]),
        ([(0, None), (15, 1)], [0, 1]),
    ],
)
def test_errors_add_up(looks: list[tuple[float, int | None]], sums: list[int]) -> None:
    clock = ManualClock()
    increases = ErrorIncreases(clock)
    found = []
    for clock.now_s, count in looks:
        seen = {GEN: {} if count is None else {LOST: count}}
        found.append(increases.add(seen).get((GEN, *LOST), 0))
    assert found == sums


@pytest.mark.parametrize(
    ("looks", "sums"),
    [
        ([0, 5, 12], [0, 5, 12]),
        # The instance was loaded anew.
        ([5000, 3, 5], [5000, 5003, 5005]),
        # The hash was evicted or has expired, and the next heartbeat wrote it again.
        ([5000, None, 5002], [5000, 5000, 5002]),
        # A server that came back with an older file, or a replica that lags.
        ([5000, 4990, 5003], [5000, 5000, 5003]),
    ],
)
def test_increases_add_up(looks: list[int | None], sums: list[int]) -> None:
    increases = Increases()
    instance, place, store = Instance("host", "1", "run"), (0, 0, "default"), (GEN, 0, "default")
    found = []
    for count in looks:
        seen = {} if count is None else {place: Totals(instance, {"commits": count})}
        found.append(increases.add({GEN: seen})[store]["commits"])
    assert found == sums
