"""Time limits that do not count what a hypervisor gave to other machines (Linux; else all counts).

On a shared machine that share is often none and at times more than half.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_STEAL = 8  # proc(5): the ninth word of the line "cpu"


def stolen_s() -> float:
    """Seconds since the start of the machine, as the mean of its cores."""
    try:
        words = _STAT.read_text().splitlines()[0].split()
    except OSError:
        return 0.0
    return int(words[_STEAL]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)


class Patience:
    """Begins when it is made."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._started = time.monotonic()
        self._stolen_s = stolen_s()

    @property
    def passed_s(self) -> float:
        """All of the time since the begin."""
        return time.monotonic() - self._started

    @property
    def lost_s(self) -> float:
        """How much of it was stolen."""
        return max(0.0, stolen_s() - self._stolen_s)

    @property
    def left_s(self) -> float:
        """What is left of the limit; below zero when it is over."""
        return self._limit_s + self.lost_s - self.passed_s
