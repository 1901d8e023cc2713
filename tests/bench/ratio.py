"""Ratios of interleaved series, with their uncertainty."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2000
_PAIRS_MIN = 5


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two medians.

    Attributes:
        low: Lower end of the 90 % bootstrap interval over the pairs; `None` below five pairs.
        high: Its upper end.
    """

    point: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None:
            return f"{self.point:.3f}"
        return f"{self.point:.3f} ({self.low:.3f} – {self.high:.3f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """Median of ours over median of theirs; `None` if theirs is nothing."""
    if statistics.median(theirs) <= 0:
        return None
    point = statistics.median(ours) / statistics.median(theirs)
    if len(ours) < _PAIRS_MIN or len(ours) != len(theirs):
        return Ratio(point)
    rng = random.Random(0)
    ratios = []
    for _ in range(_RESAMPLES):
        picks = [rng.randrange(len(ours)) for _ in ours]
        below = statistics.median([theirs[i] for i in picks])
        if below > 0:
            ratios.append(statistics.median([ours[i] for i in picks]) / below)
    ratios.sort()
    return Ratio(point, ratios[len(ratios) // 20], ratios[-(len(ratios) // 20) - 1])
