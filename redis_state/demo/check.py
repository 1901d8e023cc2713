"""Compares the results of the streaming queries with a plain computation over all flights."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd

from redis_state.demo import sink
from redis_state.demo.queries import StreamingQuery
from redis_state.live import Reader

_SHOWN_MAX = 5
RowsByKey = dict[tuple[Any, ...], tuple[Any, ...]]


def _plain(value: Any) -> Any:
    """Returns one Python value for the different notations of a number, time or null."""
    if pd.isna(value):
        return None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(timezone.utc).replace(tzinfo=None)
        return value.isoformat()
    return value if isinstance(value, str) else int(value)


def _rows(table: pd.DataFrame, key: tuple[str, ...]) -> tuple[RowsByKey, int]:
    """Returns the last row of each key, and the number of earlier rows of these keys."""
    names = [name for name in table.columns if name not in key]
    rows: RowsByKey = {}
    for record in table.astype(object).to_dict("records"):
        rows[tuple(_plain(record[name]) for name in key)] = tuple(
            _plain(record[name]) for name in names
        )
    return rows, len(table) - len(rows)


def _open_windows(reader: Reader, checkpoint: Path) -> pd.DataFrame:
    """Reads the departures of the hours that the watermark has not closed, which are in Redis.

    A read without a version gives the newest version that a later batch has opened. No batch
    follows the last one, so its version is named, from Spark's commit log.
    """
    batches = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    items = reader.query("departures").operator(0).items(version=max(batches) + 1)
    return pd.DataFrame(
        [(key["window"]["start"], key["origin"], value["count"]) for key, value in items],
        columns=["hour", "origin", "departures"],
    )


def differences(
    query: StreamingQuery, flights: pd.DataFrame, folder: Path, reader: Reader
) -> tuple[int, list[str]]:
    """Returns the number of compared rows, and descriptions of the differences."""
    table = sink.read(folder / "results" / query.name)
    if query.mode == "append":
        still_open = _open_windows(reader, folder / "checkpoints" / query.name)
        table = pd.concat([table.astype(object), still_open.astype(object)])
    streamed, repeated = _rows(table, query.key)
    expected, _ = _rows(query.batch(flights), query.key)
    found = [
        f"{key}: the stream has {streamed.get(key)}, the plain computation {expected.get(key)}"
        for key in sorted({*streamed, *expected})
        if streamed.get(key) != expected.get(key)
    ]
    if query.mode == "append" and repeated:
        found.append(f"{repeated} rows came more than once")
    more = [f"and {len(found) - _SHOWN_MAX} more"] if len(found) > _SHOWN_MAX else []
    return len(expected), found[:_SHOWN_MAX] + more
