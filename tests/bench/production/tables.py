"""The result of a run, as markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench.production import prices
from tests.bench.production.kills import Recovery
from tests.bench.production.lanes import Batch
from tests.bench.production.measure import Measured
from tests.bench.production.quantiles import OURS, SPARKS, quantile, ratio_to_better
from tests.bench.ratio import Ratio
from tests.bench.workloads import PROVIDERS

AIM = 0.5
_P99_BATCHES = 300  # below, the worst per cent is a batch or two
_PACES_S = (10, 1)
_KINDS = ("PUT", "COPY", "POST", "LIST", "GET", "HEAD", "DELETE")
_NAMES = "Redis | HDFSBacked | RocksDB + change log"


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that a run found.

    Attributes:
        setup: Sentences about the run itself.
        settings: The main one first.
        kills: By provider; empty if no executor was killed.
        links: Lines about what the proxies really added.
    """

    setup: str
    settings: Sequence[Measured]
    kills: dict[str, list[Recovery]]
    links: Sequence[str]


def write_tables(result: Result) -> str:
    """The summary, then a table for each question."""
    main = result.settings[0]
    parts = [
        [result.setup],
        ["### In short", *_summary(main, result.kills)],
        ["### Every setting", *_settings(result.settings)],
        ["### Where the time of a batch goes", *_shares(result.settings)],
        ["### Requests to the object store", *_requests(result.settings)],
    ]
    if result.kills:
        parts.append(["### After a killed executor", *_kills(result.kills, main)])
    parts.append(["### What the servers did", *_servers(main), *result.links])
    return "\n\n".join("\n".join(_spaced(part)) for part in parts)


def _spaced(lines: Sequence[str]) -> Iterator[str]:
    """Sets headings, tables and prose apart by empty lines."""
    for before, line in zip(["", *lines], lines, strict=False):
        if before and not (before.startswith("|") and line.startswith("|")):
            yield ""
        yield line


def _summary(main: Measured, kills: dict[str, list[Recovery]]) -> Iterator[str]:
    series = main.trigger_ms()
    yield f"| {_title(main)} | {_NAMES} | Redis / the better of Spark's | aim |"
    yield "|---|---|---|---|---|---|"
    worst = ("p99", 0.99) if main.count >= _P99_BATCHES else ("p90", 0.9)
    for name, share in (("p50", 0.5), worst):
        found = ratio_to_better(series, share)
        cells = [f"{quantile(series[one], share):,.0f}" for one in PROVIDERS]
        yield f"| batch, {name}, ms | {' | '.join(cells)} | {found} | {_verdict(found)} |"
    if kills:
        medians = {name: statistics.median(_seconds(all_)) for name, all_ in kills.items()}
        cells = [f"{medians[one]:.1f}" for one in PROVIDERS]
        title = f"next batch after a killed executor, s, median of {len(kills[OURS])}"
        yield f"| {title} | {' | '.join(cells)} | {_plain_ratio(medians)} | |"
    counts = {one: sum(main.requests[one].values()) / main.count for one in PROVIDERS}
    cells = [f"{counts[one]:.1f}" for one in PROVIDERS]
    title = "requests to the object store a batch"
    yield f"| {title} | {' | '.join(cells)} | {_plain_ratio(counts)} | |"
    for pace in _PACES_S:
        usd = {
            one: prices.usd_a_day(main.requests[one], main.count, pace_s=pace) for one in PROVIDERS
        }
        cells = [f"{usd[one]:,.2f}" for one in PROVIDERS]
        each = "second" if pace == 1 else f"{pace} s"
        title = f"price of these requests a day, a batch each {each}, USD"
        yield f"| {title} | {' | '.join(cells)} | {_plain_ratio(usd)} | |"


def _settings(settings: Sequence[Measured]) -> Iterator[str]:
    yield f"| query | batches | figure, ms | {_NAMES} | Redis / the better of Spark's |"
    yield "|---|---|---|---|---|---|---|"
    for one in settings:
        series = one.trigger_ms()
        shares = [("p50", 0.5), ("p90", 0.9)]
        if one.count >= _P99_BATCHES:
            shares.append(("p99", 0.99))
        for name, share in shares:
            cells = [f"{quantile(series[name], share):,.0f}" for name in PROVIDERS]
            found = ratio_to_better(series, share)
            yield f"| {_title(one)} | {one.count} | {name} | {' | '.join(cells)} | {found} |"
        cells = [f"{max(series[name]):,.0f}" for name in PROVIDERS]
        yield f"| {_title(one)} | {one.count} | longest | {' | '.join(cells)} | |"


def _shares(settings: Sequence[Measured]) -> Iterator[str]:
    yield f"| query | part of a batch, median, ms | {_NAMES} |"
    yield "|---|---|---|---|---|"
    parts: dict[str, Callable[[Batch], float]] = {
        "Spark's logs of offsets and commits": lambda batch: batch.logs_ms,
        "the rest": lambda batch: batch.trigger_ms - batch.logs_ms,
    }
    for one in settings:
        for title, part in parts.items():
            found = [statistics.median(map(part, one.batches[name])) for name in PROVIDERS]
            cells = [f"{ms:,.0f}" for ms in found]
            yield f"| {_title(one)} | {title} | {' | '.join(cells)} |"


def _requests(settings: Sequence[Measured]) -> Iterator[str]:
    yield f"| query | a batch | {_NAMES} |"
    yield "|---|---|---|---|---|"
    for one in settings:
        for kind in _KINDS:
            counts = [one.requests[name].get(kind, 0) / one.count for name in PROVIDERS]
            if any(counts):
                yield f"| {_title(one)} | `{kind}` | {' | '.join(f'{n:.2f}' for n in counts)} |"
        usd = [
            prices.usd_a_day(one.requests[name], one.count, pace_s=_PACES_S[0])
            for name in PROVIDERS
        ]
        title = f"USD a day, a batch each {_PACES_S[0]} s"
        yield f"| {_title(one)} | {title} | {' | '.join(f'{n:.2f}' for n in usd)} |"
    yield (
        f"Prices: {prices.WRITE_USD_PER_1000} USD for 1,000 `PUT`, `COPY`, `POST` or `LIST`, "
        f"{prices.READ_USD_PER_1000} USD for 1,000 of the others, `DELETE` free ({prices.SOURCE})."
    )


def _kills(kills: dict[str, list[Recovery]], main: Measured) -> Iterator[str]:
    yield f"| until the next batch is done, s | {_NAMES} |"
    yield "|---|---|---|---|"
    ordinary = main.trigger_ms()
    rows = {
        "median": {name: statistics.median(_seconds(all_)) for name, all_ in kills.items()},
        "shortest": {name: min(_seconds(all_)) for name, all_ in kills.items()},
        "longest": {name: max(_seconds(all_)) for name, all_ in kills.items()},
        "an ordinary batch, median": {
            name: statistics.median(ordinary[name]) / 1e3 for name in PROVIDERS
        },
    }
    for title, found in rows.items():
        yield f"| {title} | {' | '.join(f'{found[name]:.2f}' for name in PROVIDERS)} |"
    lost = {name: "; ".join(str(one.partitions) for one in all_) for name, all_ in kills.items()}
    yield f"| partitions lost in each kill | {' | '.join(lost[name] for name in PROVIDERS)} |"


def _servers(main: Measured) -> Iterator[str]:
    use, count = main.redis, main.count
    held = ", ".join(f"{name} {' + '.join(map(str, main.placement[name]))}" for name in PROVIDERS)
    yield (
        f"Redis in the main setting: {use.memory_bytes / 1e6:,.0f} MB of memory in the end, with "
        f"retained versions; {use.cpu_s / count * 1e3:.1f} ms of one core and "
        f"{use.network_bytes / count / 1e3:,.0f} kB of network a batch. Partitions on each "
        f"executor: {held}."
    )


def _title(one: Measured) -> str:
    return f"{one.query}, {one.partitions} partitions, Redis {one.redis_ms:g} ms"


def _seconds(recoveries: Sequence[Recovery]) -> list[float]:
    return [one.seconds for one in recoveries]


def _plain_ratio(found: dict[str, float]) -> str:
    theirs = min(found[name] for name in SPARKS)
    return f"{found[OURS] / theirs:.2f}" if theirs else "–"


def _verdict(found: Ratio) -> str:
    return f"≤ {AIM:g} {'reached' if found.point <= AIM else '**missed**'}"
