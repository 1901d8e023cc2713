"""Kind of schedule that each seed plays."""

from __future__ import annotations

from typing import Literal

STREAM_EVERY = 7
"""One schedule in so many is of a streaming query whose tasks begin its batches."""

PURGE_EVERY = 28
"""One schedule in so many is of purges and recalls."""

PIN_EVERY = 14
"""One schedule in so many is of pins and forks."""

FILE_EVERY = 14
"""One schedule in so many is of pins and forks whose history lies in files."""

COPY_EVERY = 28
"""One schedule in so many is of copies, whose files drivers delete."""

WALKS_EVERY = 224
"""One schedule in so many walks where drivers that copy have to sleep at certain moments."""

TIMED_EVERY = 4
"""One schedule in so many of the others has rows with a time to live."""

PREVIEW_EVERY = 11
"""One schedule in so many of the others has attempts that show their rows before they commit."""

Played = Literal["driver", "timed", "preview", "stream", "purge", "pin", "file", "copy", "walks"]
"""A query whose driver begins its batches, without or with a time to live or previews, one whose
tasks begin them, purges and recalls, pins, without or with files, or copies, or given walks of
copies."""


def played(seed: int) -> Played:
    """Returns what a seed plays."""
    if seed % PURGE_EVERY == 5:
        return "purge"
    if seed % PIN_EVERY == 6:
        return "pin"
    if seed % FILE_EVERY == 13:
        return "file"
    if seed % WALKS_EVERY == 131:
        return "walks"
    if seed % COPY_EVERY == 19:
        return "copy"
    if seed % STREAM_EVERY == 3:
        return "stream"
    if seed % PREVIEW_EVERY == 9:
        return "preview"
    return "timed" if seed // 5 % TIMED_EVERY == 1 else "driver"
