"""Waiting for another process: bounded, and never for a fixed time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

_POLLS_MAX = 1200
_POLL_S = 0.05
_FIRST_POLL_S = 0.005  # many a condition holds after a few milliseconds


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Asks until it is so.

    Raises:
        TimeoutError: It never came to be.
    """
    for polls in range(_POLLS_MAX):
        if condition():
            return
        time.sleep(min(_POLL_S, _FIRST_POLL_S * 2 ** min(polls, 4)))
    raise TimeoutError(f"waited in vain for {what}")


def await_end(process: subprocess.Popen[Any], limit_s: float) -> None:
    """Waits for a process that was told to end, and kills it once the time is over."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
