"""Forks and background threads of a process. Start with `forks.py` and `background.py`."""

from redis_state.process.background import STOP_S, BackgroundThread
from redis_state.process.forks import Home, elsewhere, process_id, tell_after_fork

__all__ = [
    "STOP_S",
    "BackgroundThread",
    "Home",
    "elsewhere",
    "process_id",
    "tell_after_fork",
]
