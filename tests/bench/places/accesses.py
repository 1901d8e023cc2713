"""Keys that the batches of the benchmark touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]

HOT_PART, HOT_SHARE = 0.02, 0.95
ZIPF = 0.99
_SPREAD = 2_654_435_761
"""A prime; multiples of it visit every key of a state with fewer keys once."""


@dataclass(frozen=True, slots=True)
class Access:
    """A way to choose keys.

    Attributes:
        title: Cell of the table.
        draw: Returns keys, after the generator, the number of keys in the state and of draws.
        warm_up: Number of batches before the measured ones.
        measured: Number of measured batches.
        restarts: Number of times that each query is started anew at the end.
        aim_near: Most time of a batch, as a multiple of that with all in Redis, with a folder or
            copies on a local disk; ``None`` without an aim.
        aim_far: The same with a slow folder and no copies.
    """

    title: str
    draw: Callable[[np.random.Generator, int, int], Keys]
    warm_up: int
    measured: int = 5
    restarts: int = 0
    aim_near: float | None = None
    aim_far: float | None = None


def spread(ranks: Keys, keys: int) -> Keys:
    """Returns the keys of ranks, so that neighbours are not near each other."""
    return ranks % keys * (_SPREAD % keys) % keys


def hot(dice: np.random.Generator, keys: int, count: int) -> Keys:
    """Draws most keys from a small part of all."""
    part = max(1, int(keys * HOT_PART))
    ranks = np.where(
        dice.random(count) < HOT_SHARE, dice.integers(0, part, count), dice.integers(0, keys, count)
    )
    return spread(ranks, keys)


def zipf(dice: np.random.Generator, keys: int, count: int) -> Keys:
    """Draws the key of rank r as often as 1 / r^0.99 says."""
    power = 1 - ZIPF
    ranks = ((keys**power - 1) * dice.random(count) + 1) ** (1 / power)
    return spread(ranks.astype(np.int64) - 1, keys)


def uniform(dice: np.random.Generator, keys: int, count: int) -> Keys:
    """Draws every key equally often."""
    return dice.integers(0, keys, count)


class Fresh:
    """Draws keys that no batch has had before."""

    def __init__(self) -> None:
        self._drawn = 0

    def __call__(self, _: np.random.Generator, keys: int, count: int) -> Keys:
        """Returns the next keys above those of the state."""
        first = keys + self._drawn
        self._drawn += count
        return np.arange(first, first + count)


HOT = Access(
    "95 % in 2 % of the keys",
    hot,
    warm_up=15,
    measured=15,
    restarts=5,
    aim_near=1.1,
    aim_far=1.4,
)
SKEWED = Access("Zipf 0.99", zipf, warm_up=5)
UNIFORM = Access("uniform", uniform, warm_up=3)


def new_keys() -> Access:
    """Returns the access of a deduplication."""
    return Access("new keys only (deduplication)", Fresh(), warm_up=3, aim_far=1.3)
