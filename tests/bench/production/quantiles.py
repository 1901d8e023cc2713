"""Quantiles of interleaved series, and their ratios with an uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tests.bench.ratio import Ratio

_RESAMPLES = 1000
_BATCHES_MIN = 5
OURS, SPARKS = "redis", ("hdfs", "rocksdb")


def quantile(series: Sequence[float], share: float) -> float:
    """Smallest value that at least `share` of the series does not exceed."""
    return sorted(series)[_place(len(series), share)]


def ratio_to_better(series: Mapping[str, Sequence[float]], share: float) -> Ratio:
    """Our quantile over the smaller one of Spark's two providers.

    The interval is of a bootstrap over batches, which all lanes ran at about the same time.
    """
    count = len(series[OURS])
    points = {name: quantile(all_, share) for name, all_ in series.items()}
    point = points[OURS] / min(points[name] for name in SPARKS)
    if count < _BATCHES_MIN:
        return Ratio(point)
    picks = np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))
    place = _place(count, share)
    found = {
        name: np.sort(np.asarray(all_)[picks], axis=1)[:, place] for name, all_ in series.items()
    }
    ratios = np.sort(found[OURS] / np.minimum(*(found[name] for name in SPARKS)))
    return Ratio(point, float(ratios[_RESAMPLES // 20]), float(ratios[-(_RESAMPLES // 20) - 1]))


def _place(count: int, share: float) -> int:
    return max(0, math.ceil(share * count) - 1)
