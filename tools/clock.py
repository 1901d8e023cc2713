"""Clock for time limits that ignores the time that a hypervisor gave to other machines.

Only Linux reports this time; elsewhere all time counts. On a shared machine its share is often
zero, and at times more than half.
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
    """Clock that starts when it is created."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy_s, self._stolen_s = _cores_s()

    @property
    def passed_s(self) -> float:
        """Returns the whole time since the start."""
        return time.monotonic() - self._started

    @property
    def lost_s(self) -> float:
        """Returns the part of the time in which runnable programs waited for a stolen core."""
        busy_s, stolen_s = _cores_s()
        return lost_s(self.passed_s, busy_s - self._busy_s, stolen_s - self._stolen_s)

    def left_s(self, limit_s: float) -> float:
        """Returns the time left of a limit; below zero when the limit has passed."""
        return limit_s + self.lost_s - self.passed_s


def lost_s(passed_s: float, busy_s: float, stolen_s: float) -> float:
    """Returns the time lost to a hypervisor, from the sums of running and stolen time of all cores.

    Two programs that wait at once lose the time only once. So the result is the stolen share of the
    wanted core time. If nothing wants to run, nothing is stolen: a hanging test gains no time.
    """
    if stolen_s <= 0:
        return 0.0
    return min(stolen_s, passed_s * stolen_s / (stolen_s + max(0.0, busy_s)))


def _cores_s() -> tuple[float, float]:
    """Returns running and stolen seconds of all cores since the start of the machine."""
    try:
        words = _STAT.read_text().splitlines()[0].split()
    except OSError:
        return 0.0, 0.0
    ticks_a_s = os.sysconf("SC_CLK_TCK")
    return sum(int(words[i]) for i in _BUSY) / ticks_a_s, int(words[_STEAL]) / ticks_a_s
