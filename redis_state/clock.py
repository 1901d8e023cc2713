"""The only place that reads time or sleeps, so that tests can use another clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as the package sees it."""

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def sleep_s(self, seconds: float) -> None:
        """Wait for at least so many seconds."""


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Wait for at least so many seconds."""
        time.sleep(seconds)


SYSTEM = SystemClock()


def wall_ms() -> int:
    """Milliseconds since 1970 by this machine's clock, to show, or to compare with a server's."""
    return time.time_ns() // 1_000_000
