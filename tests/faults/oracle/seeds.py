"""Kind of schedule that each seed plays."""

from __future__ import annotations

from typing import Literal

STREAM_EVERY = 7
"""One schedule in so many is of a streaming query whose tasks begin its batches."""

PURGE_EVERY = 28
"""One schedule in so many is of purges and recalls."""

PIN_EVERY = 14
"""One schedule in so many is of pins and forks."""

Played = Literal["driver", "stream", "purge", "pin"]
"""A query whose driver begins its batches, one whose tasks do, purges and recalls, or pins."""


def played(seed: int) -> Played:
    """Returns what a seed plays."""
    if seed % PURGE_EVERY == 5:
        return "purge"
    if seed % PIN_EVERY == 6:
        return "pin"
    return "stream" if seed % STREAM_EVERY == 3 else "driver"
