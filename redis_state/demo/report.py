"""Figures of the closing table, from Spark's progress reports of each batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figures:
    """Cost of one query's batches.

    Attributes:
        batches: Batches that Spark reported; the batch that the kill interrupted has no report.
        rows_read: Flights read in them.
        rows_live: State rows after the last one.
        commit_ms: Median time of a store's commit; the stores of an operator commit in parallel.
        load_ms: Time to load state in the first batch after the restart, all stores; ``None``
            without such a batch.
        heap_bytes_per_row: Executor memory for each state row; ``None`` without rows.
    """

    batches: int
    rows_read: int
    rows_live: int
    commit_ms: float
    load_ms: int | None
    heap_bytes_per_row: float | None


def read_progress(path: Path) -> list[dict[str, Any]]:
    """Reads Spark's reports, oldest first; skips a line that the kill cut off."""
    if not path.exists():
        return []
    lines = path.read_text("utf-8").splitlines()
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def figures(progress: list[dict[str, Any]], name: str) -> Figures:
    """Returns the figures of one query."""
    # An idle report repeats the last batch without having run it.
    mine = [
        report
        for report in progress
        if report["name"] == name and "addBatch" in report["durationMs"]
    ]
    operators = [report["stateOperators"][0] for report in mine]
    commits = [
        operator["customMetrics"]["redisStateCommitMs"] / operator["numStateStoreInstances"]
        for operator in operators
    ]
    restarted = [
        operator
        for report, operator in zip(mine, operators, strict=True)
        if report["runId"] != mine[0]["runId"]
    ]
    last = operators[-1]
    rows = last["numRowsTotal"]
    return Figures(
        batches=len(mine),
        rows_read=sum(report["numInputRows"] for report in mine),
        rows_live=rows,
        commit_ms=median(commits),
        load_ms=restarted[0]["customMetrics"]["redisStateLoadMs"] if restarted else None,
        heap_bytes_per_row=last["customMetrics"]["redisStateLocalBytes"] / rows if rows else None,
    )


def _figure(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def table(all_figures: dict[str, Figures], *, redis_bytes: int) -> Table:
    """Returns the closing table; `redis_bytes` is the size of all queries' state in Redis."""
    shown = Table(
        box=box.SIMPLE_HEAD,
        caption="As Spark reported it; a batch that the kill cut short may be missing."
        " Heap and Redis hold several versions of the rows.",
        caption_justify="left",
    )
    shown.add_column("query", no_wrap=True)
    for head in (
        "batches",
        "flights",
        "state\nrows",
        "commit\nms per\nstore",
        "load ms\nafter\nrestart",
        "heap\nB per\nrow",
        "Redis\nB per\nrow",
    ):
        shown.add_column(head, justify="right")
    for name, one in all_figures.items():
        shown.add_row(
            name,
            str(one.batches),
            f"{one.rows_read:,}",
            f"{one.rows_live:,}",
            _figure(one.commit_ms, 1),
            _figure(one.load_ms),
            _figure(one.heap_bytes_per_row),
            "",
        )
    rows = sum(one.rows_live for one in all_figures.values())
    shown.add_section()
    shown.add_row(
        "all",
        str(sum(one.batches for one in all_figures.values())),
        f"{sum(one.rows_read for one in all_figures.values()):,}",
        f"{rows:,}",
        *("", "", ""),
        _figure(redis_bytes / rows if rows else None),
    )
    return shown
