"""Table of the benchmark."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import pyspark

from tests.bench.pairs import aim
from tests.bench.places.accesses import Access
from tests.bench.places.lanes import ALL_IN_REDIS, PLACES, Batch, Place
from tests.bench.production.prices import SOURCE, usd_a_day
from tests.bench.ratio import ratio
from tests.bench.workloads import PARTITIONS
from tests.support.memory_sampler import MemorySampler

_MB = 1e6
_PACE_S = 10
_FIRST_MS = 300
"""Aim for the first batch of a restarted query, beyond that of one with all in Redis."""


@dataclass(slots=True)
class Sizes:
    """Sizes of the work.

    Attributes:
        rows: Rows of the state.
        updates: Rows of a batch.
        texts: Number of random texts of a row.
        local_bytes: The option `localMemory`.
    """

    rows: int
    updates: int
    texts: int
    local_bytes: int = 0


@dataclass(slots=True)
class Measured:
    """Figures of one access.

    Attributes:
        whole: Bytes of the state in Redis before there was a bound.
        bound: The option `redisMemory`.
        batches: By the name of the place.
        samplers: By the name of the place.
        written: Number of files that the measured batches wrote, by the name of the place.
        first: Times of the first batches after restarts, in ms, by the name of the place.
    """

    access: Access
    whole: int
    bound: int
    batches: dict[str, list[Batch]] = field(default_factory=dict)
    samplers: dict[str, MemorySampler] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[float]] = field(default_factory=dict)


def report(command: str, sizes: Sizes, measured: Sequence[Measured]) -> str:
    """Returns the section of the page."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    first = measured[0]
    head = (
        f"`{command}` on {machine}, {date.today().isoformat()}: {sizes.rows:,} rows in "
        f"{PARTITIONS} partitions, {sizes.updates:,} changes a batch, medians; `redisMemory` is "
        f"{first.bound / _MB:.1f} MB, the state of the first access had "
        f"{first.whole / _MB:.1f} MB in Redis without it; "
        f"`localMemory` for all queries together is {sizes.local_bytes / _MB:.0f} MB; "
        f"the load of the machine was {os.getloadavg()[0]:.1f}."
    )
    lines = [
        "| access | where | ms a batch | all in Redis | aim | reads of files a batch | of the disk "
        "| Redis at most, samples |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in measured:
        lines += [_line(one, place) for place in PLACES]
    lines += [
        "",
        "Requests to a folder of 20 ms at the price of objects "
        f"({SOURCE}), with a batch each {_PACE_S} s; reads ahead and maintenance are among them. "
        "A file is one `PUT` here.",
        "",
        "| access | where | reads a batch | files a batch | USD a day |",
        "|---|---|---|---|---|",
    ]
    lines += [_price(one, place) for one in measured for place in PLACES if place.is_slow]
    if any(one.first for one in measured):
        lines += [
            "",
            "First batch after a restart; its stores are opened from Redis and files.",
            "",
            "| access | where | ms | more than all in Redis, ms | aim |",
            "|---|---|---|---|---|",
        ]
        lines += [_first(one, place) for one in measured if one.first for place in PLACES]
    return "\n".join([head, "", *lines, ""])


def _price(one: Measured, place: Place) -> str:
    batches = one.batches[place.name]
    reads, written = sum(batch.reads for batch in batches), one.written[place.name]
    usd = usd_a_day({"GET": reads, "PUT": written}, len(batches), pace_s=_PACE_S)
    return (
        f"| {one.access.title} | {place.title} | {reads / len(batches):,.0f} "
        f"| {written / len(batches):.1f} | {usd:.2f} |"
    )


def _first(one: Measured, place: Place) -> str:
    times = one.first[place.name]
    shown, verdict = "", ""
    if place is not ALL_IN_REDIS:
        pairs = zip(times, one.first[ALL_IN_REDIS.name], strict=True)
        more = statistics.median(a - b for a, b in pairs)
        shown, verdict = f"{more:,.0f}", aim(_FIRST_MS, more) if place.is_bounded else ""
    return (
        f"| {one.access.title} | {place.title} | {statistics.median(times):,.0f} | {shown} "
        f"| {verdict} |"
    )


def _line(one: Measured, place: Place) -> str:
    batches = one.batches[place.name]
    times = [batch.ms for batch in batches]
    found = ratio(times, [batch.ms for batch in one.batches[ALL_IN_REDIS.name]])
    shown, verdict = "", ""
    if place is not ALL_IN_REDIS and found is not None:
        shown = f"{found} ×"
        most = _aim(one.access, place)
        verdict = "" if most is None else aim(most, found.point)
    sampler = one.samplers.get(place.name)
    peak = "" if sampler is None else f"{sampler.peak / one.bound:.0%} of {sampler.samples}"
    reads, hits = (_median([getattr(b, name) for b in batches]) for name in ("reads", "hits"))
    return (
        f"| {one.access.title} | {place.title} | {statistics.median(times):,.0f} | {shown} "
        f"| {verdict} | {reads} | {hits} | {peak} |"
    )


def _median(counts: Sequence[int]) -> str:
    return f"{statistics.median(counts):,.0f}" if any(counts) else ""


def _aim(access: Access, place: Place) -> float | None:
    if not place.is_bounded:
        return None
    return access.aim_near if place.is_near else access.aim_far
