"""The tables of a run, as markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.ratio import Ratio, ratio
from tests.bench.store_level import (
    RAW_BYTES,
    StoreResult,
    cpu_us,
    first_open_and_commit_ms,
    open_and_commit_ms,
    server_cpu_us,
    update_us,
)
from tests.bench.workloads import PARTITIONS, PROVIDERS, Batch, Workload, open_ms

EARLY = 14
"""Batches after which the memory of the server is read for the first time."""

_HEAD = (
    "| figure | Redis | HDFSBacked | RocksDB + change log | Redis / HDFSBacked | Redis / RocksDB |",
    "|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Measured batches of one query by provider, and what they cost the server.

    Attributes:
        redis_bytes: Memory of the server for the state, after all batches.
        redis_bytes_early: The same after `EARLY` batches.
    """

    work: Workload
    times: dict[str, list[Batch]]
    loads: dict[str, Batch]
    redis_bytes: int
    redis_bytes_early: int
    redis_cpu_s: float
    redis_calls: int
    redis_net_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a series for each provider and what is aimed at.

    Attributes:
        limits: Largest ratios to HDFSBacked and to RocksDB; `None` where nothing is aimed at.
        most: Largest median of ours; `None` where nothing is aimed at.
    """

    title: str
    series: dict[str, list[float]]
    limits: tuple[float | None, float | None] = (None, None)
    most: float | None = None

    def ratios(self) -> list[Ratio | None]:
        ours = self.series["redis"]
        return [
            ratio(ours, self.series[name]) if name in self.series else None
            for name in ("hdfs", "rocksdb")
        ]

    def __str__(self) -> str:
        cells = [
            f"{statistics.median(self.series[name]):,.2f}" if name in self.series else "–"
            for name in PROVIDERS
        ]
        return f"| {self.title} | {' | '.join([*cells, *map(_text, self.ratios())])} |"


def write_report(
    queries: Sequence[QueryResult], stores: Sequence[StoreResult], *, command: str, machine: str
) -> str:
    """Everything that was measured; the comparison with the targets comes first."""
    tables = [(f"Stores alone: {s.work.name}", _store_rows(s), _server_of_store(s)) for s in stores]
    tables += [(f"Query: {q.work.name}", _query_rows(q), _server_of_query(q)) for q in queries]
    lines = [f"`{command}` on {machine}; {PARTITIONS} partitions; medians of interleaved batches."]
    lines += ["", "### Against the targets", "", *_verdicts(tables, stores, queries), ""]
    for title, rows, server in tables:
        lines += [f"### {title}", "", *_HEAD, *map(str, rows), "", server, ""]
    return "\n".join(lines)


def _store_rows(result: StoreResult) -> list[Row]:
    lanes, work = result.lanes, result.work

    def of(measure: Callable[[dict[str, list[int]]], list[float]]) -> dict[str, list[float]]:
        return {name: measure(lane) for name, lane in lanes.items()}

    limits = (0.05, 0.05) if work.tiny else (0.12, 0.2)
    rows = [
        Row("open + commit of a store, ms", of(open_and_commit_ms), limits),
        Row(
            "get + put of a row, µs",
            of(lambda lane: update_us(lane, work.updates)),
            (1, 1 / 2) if not work.tiny else (None, None),
        ),
        Row(
            "CPU of a changed row, server and background included, µs",
            {name: [cpu_us(result, name)] for name in lanes},
            (1, None),
            None if work.tiny else 4,
        ),
    ]
    if work.tiny:
        cold = of(first_open_and_commit_ms)
        title = f"… in the first {len(cold['redis'])} batches of the JVM, ms"
        return [rows[0], Row(title, cold), *rows[1:]]
    heap = {name: [lanes[name]["heapBytes"] / lanes[name]["rows"]] for name in ("redis", "hdfs")}
    return [
        *rows,
        Row("state load until open, ms", of(lambda lane: _ms(lane["loadOpenNs"])), (0.05, None)),
        Row(
            "state load until every row was read, ms",
            of(lambda lane: _ms(lane["loadReadNs"])),
            (0.12, 0.2),
        ),
        Row("heap of a row, two versions held, bytes", heap, (0.25, None), 65),
    ]


def _query_rows(result: QueryResult) -> list[Row]:
    def of(measure: Callable[[Batch], float]) -> dict[str, list[float]]:
        return {name: [measure(one) for one in all_] for name, all_ in result.times.items()}

    loads = {name: [one.trigger_ms] for name, one in result.loads.items()}
    limit = 1.0 if result.work.tiny else 0.45
    return [
        Row("whole batch, ms", of(lambda b: b.trigger_ms), (limit, limit)),
        Row("open + commit of a store, ms", of(_open_and_commit)),
        Row("get + put of a batch, all stores, ms", of(lambda b: b.update_ms)),
        Row("local memory of a row, bytes", of(lambda b: b.memory_bytes / max(1, b.rows))),
        Row("first batch after a restart, ms", loads),
    ]


def _open_and_commit(batch: Batch) -> float:
    return (batch.commit_ms + open_ms(batch.custom)) / PARTITIONS


def _verdicts(
    tables: Sequence[tuple[str, list[Row], str]],
    stores: Sequence[StoreResult],
    queries: Sequence[QueryResult],
) -> list[str]:
    lines = ["| where | figure | aim | found | |", "|---|---|---|---|---|"]
    for title, rows, _ in tables:
        for row in rows:
            for name, limit, found in zip(
                ("HDFSBacked", "RocksDB"), row.limits, row.ratios(), strict=True
            ):
                if limit is not None and found is not None:
                    lines.append(_verdict(title, f"{row.title}, / {name}", limit, found))
            if row.most is not None:
                ours = Ratio(statistics.median(row.series["redis"]))
                lines.append(_verdict(title, row.title, row.most, ours))
    for query in queries:
        if not query.work.tiny:
            figure = f"Redis bytes of a row after {EARLY} batches"
            found = Ratio(query.redis_bytes_early / query.work.keys)
            lines.append(_verdict(f"Query: {query.work.name}", figure, 25, found))
    for one in stores:
        if one.snapshot_bytes:
            raw = one.lanes["redis"]["rows"] * RAW_BYTES
            found = Ratio(one.snapshot_bytes / raw)
            title = f"Stores alone: {one.work.name}"
            lines.append(_verdict(title, "snapshot in Redis / raw bytes of its rows", 1 / 2, found))
            cpu = Ratio(server_cpu_us(one) / one.field_cpu_us)
            if not one.work.tiny:
                figure = "Redis CPU of a row / one `HSET` field per row"
                lines.append(_verdict(title, figure, 0.08, cpu))
    return lines


def _verdict(title: str, figure: str, limit: float, found: Ratio) -> str:
    reached = "reached" if found.point <= limit else "**missed**"
    return f"| {title} | {figure} | ≤ {limit:g} | {found} | {reached} |"


def _ms(nanos: Sequence[int]) -> list[float]:
    return [value / 1e6 for value in nanos]


def _text(found: Ratio | None) -> str:
    return "–" if found is None else str(found)


def _server_of_store(result: StoreResult) -> str:
    rows = max(1, result.lanes["redis"]["rows"])
    return (
        f"Redis: {server_cpu_us(result):.3f} µs of CPU per changed row, "
        f"{result.field_cpu_us:.2f} µs with one field per row; newest snapshots "
        f"{result.snapshot_bytes / rows:.1f} bytes a row, {RAW_BYTES} raw."
    )


def _server_of_query(result: QueryResult) -> str:
    rows = max(1, result.loads["redis"].rows)
    changed = result.work.updates * (result.work.warm_up + result.work.measured + 1)
    return (
        f"Redis: {result.redis_bytes / rows:,.0f} bytes per live row, kept versions included; "
        f"{result.redis_cpu_s * 1e6 / changed:,.2f} µs of CPU and "
        f"{result.redis_net_bytes / changed:,.1f} bytes of network per changed row; "
        f"{result.redis_calls:,} commands, scripts' inner ones included."
    )
