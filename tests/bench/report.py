"""The table of a run, as markdown."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.workloads import PARTITIONS, Batch, Workload

_RESAMPLES = 2000
_OPEN = "redisStateOpenMs"


@dataclass(frozen=True, slots=True)
class Result:
    """Measured batches of one workload by provider, and what they cost the server."""

    work: Workload
    times: dict[str, list[Batch]]
    loads: dict[str, Batch]
    redis_bytes: int
    redis_cpu_s: float
    redis_calls: int


Median = Callable[[Sequence[float]], float]


def write_report(results: Sequence[Result], *, command: str, machine: str, median: Median) -> str:
    lines = [
        f"`{command}` on {machine}; {PARTITIONS} partitions; medians of interleaved batches.",
        "",
    ]
    for result in results:
        lines += [f"### {result.work.name}", "", *_table(result, median), "", *_server(result), ""]
    return "\n".join(lines)


def _table(result: Result, median: Median) -> list[str]:
    figures: list[tuple[str, str, Callable[[Batch], float], float]] = [
        ("open + commit per store, ms", "", _open_and_commit, 1 / PARTITIONS),
        ("get + put per batch, all stores, ms", "", lambda b: b.update_ms, 1.0),
        ("whole batch, ms", "", lambda b: b.trigger_ms, 1.0),
        ("local memory per row, bytes", "", lambda b: b.memory_bytes / max(1, b.rows), 1.0),
    ]
    lines = [
        "| figure | Redis | HDFSBacked | RocksDB + change log "
        "| Redis / HDFSBacked | Redis / RocksDB |",
        "|---|---|---|---|---|---|",
    ]
    for title, _, value, scale in figures:
        series = {name: [value(b) * scale for b in all_] for name, all_ in result.times.items()}
        lines.append(_row(title, series, median))
    loads = {name: [b.trigger_ms] for name, b in result.loads.items()}
    lines.append(_row("first batch after a restart (state load included), ms", loads, median))
    return lines


def _open_and_commit(batch: Batch) -> float:
    """Spark does not report its own providers' time to open, which favours them."""
    return batch.commit_ms + batch.custom.get(_OPEN, 0)


def _row(title: str, series: dict[str, list[float]], median: Median) -> str:
    cells = [f"{median(series[name]):,.1f}" for name in ("redis", "hdfs", "rocksdb")]
    ratios = [_ratio(series["redis"], series[name], median) for name in ("hdfs", "rocksdb")]
    return f"| {title} | {' | '.join(cells)} | {' | '.join(ratios)} |"


def _ratio(ours: list[float], theirs: list[float], median: Median) -> str:
    """Ratio of medians with a 90 % bootstrap interval over the interleaved pairs."""
    if median(theirs) == 0:
        return "–"
    point = median(ours) / median(theirs)
    if len(ours) < 5:
        return f"{point:.3f}"
    rng = random.Random(0)
    ratios = []
    for _ in range(_RESAMPLES):
        picks = [rng.randrange(len(ours)) for _ in ours]
        below = median([theirs[i] for i in picks])
        if below > 0:
            ratios.append(median([ours[i] for i in picks]) / below)
    ratios.sort()
    low, high = ratios[len(ratios) // 20], ratios[-len(ratios) // 20 - 1]
    return f"{point:.3f} ({low:.3f} – {high:.3f})"


def _server(result: Result) -> list[str]:
    rows = max(1, result.loads["redis"].rows)
    changed = result.work.updates * (result.work.warm_up + result.work.measured + 1)
    return [
        f"Redis: {result.redis_bytes / rows:,.0f} bytes per live row, kept versions included; "
        f"{result.redis_cpu_s * 1e6 / changed:,.2f} µs of CPU per changed row; "
        f"{result.redis_calls:,} commands, scripts' inner ones included."
    ]
