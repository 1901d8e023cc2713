"""The four streaming queries, and the plain pandas computation that each must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

WATERMARK = "6 hours"
# A Python call for each aircraft and batch takes milliseconds: one fleet keeps the demo short.
ROTATIONS_CARRIER = "B6"
_ROTATION = "legs LONG, minutes LONG, last_airport STRING, last_departure TIMESTAMP"


@dataclass(frozen=True, slots=True)
class StreamingQuery:
    """One query.

    Attributes:
        name: Also the name of its checkpoint and of its results.
        key: The columns that identify a result row.
        mode: Spark's output mode.
        stream: Maps the stream of flights to the results.
        batch: Maps all flights to the results, in pandas.
    """

    name: str
    key: tuple[str, ...]
    mode: str
    stream: Callable[[DataFrame], DataFrame]
    batch: Callable[[pd.DataFrame], pd.DataFrame]


def _delays(column: str) -> Callable[[DataFrame], DataFrame]:
    def stream(flights: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        delay = f.col("dep_delay")
        return (
            flights.where(f.col(column).isNotNull() & delay.isNotNull())
            .groupBy(column)
            .agg(
                f.count("*").alias("flights"),
                f.sum(delay).alias("delay_sum"),
                f.max(delay).alias("delay_max"),
            )
        )

    return stream


def _delays_in_pandas(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def batch(flights: pd.DataFrame) -> pd.DataFrame:
        groups = flights.dropna(subset=[column, "dep_delay"]).groupby(column)
        return pd.DataFrame(
            {
                "flights": groups.size(),
                "delay_sum": groups["dep_delay"].sum(),
                "delay_max": groups["dep_delay"].max(),
            }
        ).reset_index()

    return batch


def _departures(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        flights.withWatermark("departure", WATERMARK)
        .groupBy(f.window("departure", "1 hour"), "origin")
        .count()
        .select(f.col("window.start").alias("hour"), "origin", f.col("count").alias("departures"))
    )


def _departures_in_pandas(flights: pd.DataFrame) -> pd.DataFrame:
    hours = flights["departure"].dt.floor("h").rename("hour")
    counts: pd.DataFrame = flights.groupby([hours, "origin"]).size().reset_index(name="departures")
    return counts


def advance_rotation(
    key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Adds one batch of an aircraft's legs to its rotation."""
    legs, minutes, airport, departure = state.get if state.exists else (0, 0, None, None)
    for frame in frames:
        legs += len(frame)
        minutes += int(frame["air_time"].sum())
        # Rows of a batch may come in several frames, in any order.
        last: Any = frame.loc[frame["departure"].idxmax()]
        if departure is None or last["departure"] > departure:
            airport, departure = last["dest"], last["departure"].to_pydatetime()
    state.update((legs, minutes, airport, departure))
    yield pd.DataFrame(
        {
            "tailnum": [key[0]],
            "legs": [legs],
            "minutes": [minutes],
            "last_airport": [airport],
            "last_departure": [departure],
        }
    )


def _rotations(flights: DataFrame) -> DataFrame:
    flown = flights.where(
        f"tailnum IS NOT NULL AND air_time IS NOT NULL AND carrier = '{ROTATIONS_CARRIER}'"
    )
    legs = flown.select("tailnum", "departure", "dest", "air_time")
    return legs.groupBy("tailnum").applyInPandasWithState(
        advance_rotation,
        outputStructType=f"tailnum STRING, {_ROTATION}",
        stateStructType=_ROTATION,
        outputMode="update",
        timeoutConf="NoTimeout",
    )


def _rotations_in_pandas(flights: pd.DataFrame) -> pd.DataFrame:
    flown = flights.dropna(subset=["tailnum", "air_time"])
    flown = flown[flown["carrier"] == ROTATIONS_CARRIER]
    groups = flown.sort_values("departure").groupby("tailnum")
    return pd.DataFrame(
        {
            "legs": groups.size(),
            "minutes": groups["air_time"].sum(),
            "last_airport": groups["dest"].last(),
            "last_departure": groups["departure"].last(),
        }
    ).reset_index()


QUERIES = (
    StreamingQuery(
        "carriers", ("carrier",), "update", _delays("carrier"), _delays_in_pandas("carrier")
    ),
    StreamingQuery(
        "aircraft", ("tailnum",), "update", _delays("tailnum"), _delays_in_pandas("tailnum")
    ),
    StreamingQuery("departures", ("hour", "origin"), "append", _departures, _departures_in_pandas),
    StreamingQuery("rotations", ("tailnum",), "update", _rotations, _rotations_in_pandas),
)
