"""Kind of schedule that each seed plays."""

from __future__ import annotations

from typing import Literal

STREAM_EVERY = 7
"""One schedule in so many is of a streaming query whose tasks begin its batches."""

PURGE_EVERY = 28
"""One schedule in so many is of purges and recalls."""

Played = Literal["driver", "stream", "purge"]
"""A query whose driver begins its batches, one whose tasks do, or purges and recalls."""


def played(seed: int) -> Played:
    """Returns what a seed plays."""
    if seed % PURGE_EVERY == 5:
        return "purge"
    return "stream" if seed % STREAM_EVERY == 3 else "driver"
