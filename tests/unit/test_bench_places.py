"""Accesses and table of the benchmark of states larger than Redis."""

from __future__ import annotations

import numpy as np

from tests.bench.places.accesses import HOT, SKEWED, UNIFORM, Fresh, spread
from tests.bench.places.lanes import PLACES, Batch
from tests.bench.places.report import Measured, Sizes, report

KEYS = 100_000


def test_spread_visits_each_key_once() -> None:
    assert np.unique(spread(np.arange(KEYS), KEYS)).size == KEYS


def test_accesses_are_as_skewed_as_they_are_called() -> None:
    dice = np.random.default_rng(3)
    parts = {}
    for access in (HOT, SKEWED, UNIFORM):
        keys = access.draw(dice, KEYS, 200_000)
        assert keys.min() >= 0
        assert keys.max() < KEYS
        counts = np.sort(np.bincount(keys, minlength=KEYS))[::-1]
        parts[access.title] = counts[: KEYS // 50].sum() / counts.sum()
    assert 0.945 < parts[HOT.title] < 0.96
    assert 0.6 < parts[SKEWED.title] < 0.75  # the integral of 1 / r^0.99 gives 0.65
    assert parts[UNIFORM.title] < 0.1


def test_new_keys_are_drawn_once() -> None:
    draw, dice = Fresh(), np.random.default_rng(3)
    assert [draw(dice, KEYS, 3).tolist() for _ in range(2)] == [
        [KEYS, KEYS + 1, KEYS + 2],
        [KEYS + 3, KEYS + 4, KEYS + 5],
    ]


def test_report_marks_what_is_missed() -> None:
    found = Measured(HOT, whole=20, bound=1)
    for place in PLACES:
        ms = {"all": 100.0, "near": 105.0, "far": 141.0, "disk": 111.0}.get(place.name, 200.0)
        found.batches[place.name] = [Batch(ms=ms, reads=3, hits=0, round_trips=0, rows=0)] * 5
        found.written[place.name] = 10
        found.first[place.name] = [ms + 400 * (place.name == "near")] * 3
    times, prices, first = (
        {line.split(" | ")[1]: line for line in table.splitlines() if line.startswith("| 95 %")}
        for table in report("bench", Sizes(rows=1, updates=1, texts=0), [found]).split("|---|\n")[
            1:
        ]
    )
    assert "≤ 1.1 reached" in times["bound, folder on the local disk"]
    assert "≤ 1.4 **missed**" in times["bound, folder of 20 ms"]
    assert "≤ 1.1 **missed**" in times["bound, folder of 20 ms, `localDisk`"]
    assert "≤" not in times["RocksDB with change log"]
    # 8,640 batches of two PUT at 5 and three GET at 0.4 USD for a million
    assert prices["bound, folder of 20 ms"].endswith("| 3 | 2.0 | 0.10 |")
    assert first["bound, folder on the local disk"].endswith("| 505 | 405 | ≤ 300 **missed** |")
    assert first["bound, folder of 20 ms"].endswith("| 141 | 41 | ≤ 300 reached |")
