"""The only module that reads time or sleeps, so that tests can inject a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Clock of the package."""

    def monotonic_s(self) -> float:
        """Returns seconds since a fixed moment; never decreases."""

    def sleep_s(self, seconds: float) -> None:
        """Waits for at least this many seconds."""


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        """Implements `Clock.monotonic_s`."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Implements `Clock.sleep_s`."""
        time.sleep(seconds)


SYSTEM = SystemClock()


def wall_ms() -> int:
    """Returns milliseconds since 1970 by this machine's clock, for display or comparison."""
    return time.time_ns() // 1_000_000
