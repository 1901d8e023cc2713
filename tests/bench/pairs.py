"""Lines of a table that compares two providers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.bench.ratio import Ratio, ratio

LANES = ("redis", "rocksdb")
LIMIT, TINY_LIMIT = 1.03, 1 / 20


def row(title: str, ours: Sequence[float], theirs: Sequence[float], limit: float | None) -> str:
    """A line of the table: both medians, their ratio, and whether that is what is aimed at."""
    found = ratio(ours, theirs)
    return (
        f"| {title} | {statistics.median(ours):,.2f} | {statistics.median(theirs):,.2f} "
        f"| {'–' if found is None else found} | {_verdict(found, limit)} |"
    )


def aim(most: float, found: float) -> str:
    """A cell of the table: the bound, and whether a figure reaches it."""
    return f"≤ {most:g} {'reached' if found <= most else '**missed**'}"


def _verdict(found: Ratio | None, limit: float | None) -> str:
    return "" if limit is None or found is None else aim(limit, found.point)
