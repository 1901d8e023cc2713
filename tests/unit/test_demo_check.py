"""The demo's verdict: it must be able to say no."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pandas as pd
import pytest

from redis_state.demo import check
from redis_state.demo.queries import QUERIES
from redis_state.live import Reader

CARRIERS = next(query for query in QUERIES if query.name == "carriers")
NO_READER = cast("Reader", None)  # a query in update mode has all its results in the sink


@pytest.fixture
def flights() -> pd.DataFrame:
    table = pd.DataFrame({"carrier": ["UA", "UA", "DL", "DL"], "dep_delay": [5, 7, -2, None]})
    table["dep_delay"] = table["dep_delay"].astype("Int64")
    return table


def write_batch(folder: Path, batch: int, rows: list[tuple[str, int, int, int]]) -> None:
    results = folder / "results" / "carriers"
    results.mkdir(parents=True, exist_ok=True)
    columns = ["carrier", "flights", "delay_sum", "delay_max"]
    pd.DataFrame(rows, columns=columns).to_pickle(results / f"{batch:06}.pickle")


def test_later_batch_overrides_an_earlier_one(tmp_path: Path, flights: pd.DataFrame) -> None:
    write_batch(tmp_path, 0, [("UA", 1, 5, 5), ("DL", 1, -2, -2)])
    write_batch(tmp_path, 1, [("UA", 2, 12, 7)])
    assert check.differences(CARRIERS, flights, tmp_path, NO_READER) == (2, [])


def test_a_wrong_row_is_found(tmp_path: Path, flights: pd.DataFrame) -> None:
    write_batch(tmp_path, 0, [("UA", 2, 11, 7), ("DL", 1, -2, -2)])
    _, found = check.differences(CARRIERS, flights, tmp_path, NO_READER)
    assert len(found) == 1
    assert "UA" in found[0]


def test_missing_and_surplus_rows_are_found(tmp_path: Path, flights: pd.DataFrame) -> None:
    write_batch(tmp_path, 0, [("UA", 2, 12, 7), ("B6", 1, 0, 0)])
    _, found = check.differences(CARRIERS, flights, tmp_path, NO_READER)
    assert len(found) == 2
