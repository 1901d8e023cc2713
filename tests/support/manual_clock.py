"""A clock that stands still until somebody waits."""

from __future__ import annotations

from collections.abc import Callable


class ManualClock:
    """Time that passes only while somebody sleeps, or when it is set.

    Attributes:
        slept_s: Each sleep.
        sleeps_are: Called in each sleep, once its time has passed.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.slept_s: list[float] = []
        self.sleeps_are: Callable[[], object] = lambda: None

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s.append(seconds)
        self.sleeps_are()
