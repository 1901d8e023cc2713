"""A clock for time limits that do not count what a hypervisor gave to other machines.

Linux tells of it; elsewhere all time counts. On a shared machine that share is often none and at
times more than half.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
# proc(5), words of the line "cpu": user, nice, system, irq and softirq; steal.
_BUSY = (1, 2, 3, 6, 7)
_STEAL = 8


class Clock:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy_s, self._stolen_s = _cores_s()

    @property
    def passed_s(self) -> float:
        """All of the time since the begin."""
        return time.monotonic() - self._started

    @property
    def lost_s(self) -> float:
        """How much of it what could have run waited for a core that others had."""
        busy_s, stolen_s = _cores_s()
        return lost_s(self.passed_s, busy_s - self._busy_s, stolen_s - self._stolen_s)

    def left_s(self, limit_s: float) -> float:
        """What is left of a limit; below zero when it is over."""
        return limit_s + self.lost_s - self.passed_s


def lost_s(passed_s: float, busy_s: float, stolen_s: float) -> float:
    """What is lost of a time in which all cores together ran and were stolen for so long.

    Two programs that wait at once lose the time once, so it is the share of what was wanted. Where
    nothing wants to run, nothing is stolen: a test that hangs does not gain by it.
    """
    if stolen_s <= 0:
        return 0.0
    return min(stolen_s, passed_s * stolen_s / (stolen_s + max(0.0, busy_s)))


def _cores_s() -> tuple[float, float]:
    """Seconds of all cores since the start of the machine: in which they ran, and stolen ones."""
    try:
        words = _STAT.read_text().splitlines()[0].split()
    except OSError:
        return 0.0, 0.0
    ticks_a_s = os.sysconf("SC_CLK_TCK")
    return sum(int(words[i]) for i in _BUSY) / ticks_a_s, int(words[_STEAL]) / ticks_a_s
