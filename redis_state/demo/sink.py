"""A sink for small results: one file a batch, so that a repeated batch replaces itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def writer(folder: Path) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch`; `folder` must exist."""

    def write(rows: DataFrame, batch: int) -> None:
        path = folder / f"{batch:06}.pickle"
        unfinished = path.with_suffix(".tmp")
        rows.toPandas().to_pickle(unfinished)
        # Renamed when complete: a kill leaves no partial file under the final name.
        unfinished.replace(path)

    return write


def read(folder: Path) -> pd.DataFrame:
    """Reads the rows of all batches, in the order of the batches."""
    frames = [pd.read_pickle(path) for path in sorted(folder.glob("*.pickle"))]
    rows: pd.DataFrame = pd.concat([frame for frame in frames if len(frame)], ignore_index=True)
    return rows
