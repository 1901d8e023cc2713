"""Time as the actors of a schedule see it."""

from __future__ import annotations


class StepClock:
    """Each look at it takes a tenth of a second: a deadline comes after so many tries."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        self._now_s += 0.1
        return self._now_s

    def sleep_s(self, seconds: float) -> None:
        """Nobody waits."""
