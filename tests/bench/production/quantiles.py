"""Quantiles of interleaved series, and their ratios with an uncertainty."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from tests.bench.ratio import Ratio

_RESAMPLES = 1000
_BATCHES_MIN = 5
OURS, SPARKS = "redis", ("hdfs", "rocksdb")


def quantile(series: Sequence[float], share: float) -> float:
    """Smallest value that at least `share` of the series does not exceed."""
    return sorted(series)[max(0, math.ceil(share * len(series)) - 1)]


def ratio_to_better(series: Mapping[str, Sequence[float]], share: float) -> Ratio:
    """Our quantile over the smaller one of Spark's two providers.

    The interval is of a bootstrap over batches, which all lanes ran at about the same time.
    """
    count = len(series[OURS])
    point = _to_better(series, range(count), share)
    if count < _BATCHES_MIN:
        return Ratio(point)
    dice = random.Random(0)
    found = sorted(
        _to_better(series, dice.choices(range(count), k=count), share) for _ in range(_RESAMPLES)
    )
    return Ratio(point, found[_RESAMPLES // 20], found[-(_RESAMPLES // 20) - 1])


def _to_better(series: Mapping[str, Sequence[float]], picks: Sequence[int], share: float) -> float:
    found = {name: quantile([all_[i] for i in picks], share) for name, all_ in series.items()}
    return found[OURS] / min(found[name] for name in SPARKS)
