"""Waiting for another process: bounded, and never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLLS_MAX = 1200
_POLL_S = 0.05


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Asks until it is so.

    Raises:
        TimeoutError: It never came to be.
    """
    for _ in range(_POLLS_MAX):
        if condition():
            return
        time.sleep(_POLL_S)
    raise TimeoutError(f"waited in vain for {what}")
