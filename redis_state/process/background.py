"""Supervision of the daemon threads that keep the state alive while tasks run."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from redis_state.process.forks import tell_after_fork

STOP_S = 5.0
"""Longest wait for the end of a stopped thread."""

# Set before the interpreter tears down modules that a step may use.
_exiting = threading.Event()
atexit.register(_exiting.set)


class BackgroundThread:
    """Daemon thread that repeats a step until it is stopped; thread-safe.

    An error of a step is logged by the logger of its module, and the next step follows. A forked
    child has no thread before it calls `start`. No step begins while the interpreter shuts down.

    Args:
        name: Name of the thread after ``redis-state-``.
        step: Called on the thread after each pause, and after `wake`.
        pause_s: Returns the seconds until the next step; ``None`` waits for `wake`.
        what: Name of a step in the log, such as ``a heartbeat``.
        last: Called on the thread once it is stopped. Such a thread cannot be started again.
        threaded: ``False`` if the caller itself calls the step; `start` then only undoes `stop`.

    Attributes:
        stopping: Set by `stop`. A new thread has a new event, since the old one may still run.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], object],
        pause_s: Callable[[], float | None],
        *,
        what: str,
        last: Callable[[], object] | None = None,
        threaded: bool = True,
    ) -> None:
        self._name = name
        self._step = step
        self._pause_s = pause_s
        self._what = what
        self._last = last
        self.threaded = threaded
        self._log = logging.getLogger(step.__module__)
        self.after_fork()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the thread of the parent process, and replaces the locks."""
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._begin()

    def _begin(self) -> None:
        self.stopping, self._awake = threading.Event(), threading.Event()

    @property
    def is_running(self) -> bool:
        """True if the thread is alive in this process."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """True if the caller runs on this thread."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Starts the thread unless it is running."""
        with self._starting:
            if self.stopping.is_set():
                if self._last is not None:
                    return
                self._begin()
            elif self.is_running:
                return
            if self.threaded and not _exiting.is_set():
                events = self.stopping, self._awake
                name = f"redis-state-{self._name}"
                thread = threading.Thread(target=self._run, args=events, name=name, daemon=True)
                thread.start()
                self._thread = thread

    def wake(self) -> None:
        """Ends the pause before the next step."""
        self._awake.set()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Ends the thread after its current step; waits at most `timeout_s`."""
        with self._starting:
            thread = self._thread
            self.stopping.set()
            self._awake.set()
        if thread is not None and not self.is_current:
            thread.join(timeout_s)

    def _run(self, stopping: threading.Event, awake: threading.Event) -> None:
        while not stopping.is_set():
            awake.wait(self._pause_s())
            awake.clear()
            if _exiting.is_set():
                return
            if stopping.is_set():
                break
            try:
                self._step()
            except Exception:  # noqa: BLE001  # the thread has nobody to raise it to
                self._log.exception("%s failed; the next one is tried", self._what)
        if self._last is not None:
            self._last()
