"""Maintenance of the stores loaded in this process, on one daemon thread.

Snapshots and retention change no version that can be loaded. So no task waits for this thread, and
a kill at any point leaves nothing to repair. Stores that no process has loaded are maintained from
Redis alone (`redis_state.maintain`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from redis_state.clock import SYSTEM, Clock
from redis_state.config import duration_ms, option_named
from redis_state.errors import UnavailableError
from redis_state.process import STOP_S, BackgroundThread

INTERVAL_S = 60.0
PAUSE_S, PAUSE_S_MAX = 1.0, 60.0
"""First and longest pause of maintenance on a server that does not answer."""
JITTER = 0.2
_LOG = logging.getLogger("redis_state.store.maintenance")


def interval_s(interval: str | float | timedelta) -> float:
    """Parses the interval between two passes, in seconds.

    Raises:
        ConfigError: The interval is not a duration from 1 s to 1 d.
    """
    option = replace(option_named("deadline"), name="interval")
    option = replace(option, minimum=1000, maximum=86_400_000)
    return duration_ms(option, interval) / 1000


class Server(Protocol):
    """The server of a provider."""

    @property
    def name(self) -> str:
        """Name of the server in logs."""

    def answers(self) -> bool:
        """Returns whether the server serves one call, without repetition."""


class Maintained(Protocol):
    """A loaded store provider, as its maintenance sees it."""

    @property
    def server(self) -> Server:
        """The server that has the partition."""

    def do_maintenance(self) -> object:
        """Adds a snapshot if one is due, and drops segments that no retained version needs."""


def _ignore(_id: Hashable, _error: Exception) -> None:
    return None


@dataclass(slots=True)
class _Silence:
    """Time in which a server does not answer."""

    since_s: float
    until_s: float
    pause_s: float = PAUSE_S

    def extend(self, now_s: float) -> None:
        self.pause_s = min(PAUSE_S_MAX, 2 * self.pause_s)
        self.until_s = now_s + self.pause_s


class MaintenanceWorker:
    """Calls `do_maintenance` of all loaded providers one after the other, once each interval.

    A server that does not answer holds the thread until the deadline. So its other providers are
    skipped, and stay loaded. When a pause ends, one call tries it again: the pause doubles, or the
    silence ends.

    The thread may be stopped and started again, also while the old one is still busy.

    Args:
        loaded: Returns the providers that are loaded now; called before each pass.
        unload: Called with a failed provider's id and the error; the provider is skipped until it
            is loaded again.
        interval_s: Average time between the beginnings of two passes.
        jitter: Share by which each interval varies at random, so that processes started together do
            not stay in step.
        threaded: ``False`` if the caller itself calls `tick`.
    """

    def __init__(
        self,
        loaded: Callable[[], Mapping[Hashable, Maintained]],
        *,
        unload: Callable[[Hashable, Exception], None] = _ignore,
        interval_s: float = INTERVAL_S,
        jitter: float = JITTER,
        clock: Clock = SYSTEM,
        threaded: bool = True,
    ) -> None:
        self._loaded = loaded
        self._unload = unload
        self._interval_s = interval_s
        self._jitter = jitter
        self._clock = clock
        self._silences: dict[str, _Silence] = {}
        self._due_s = self._next_due_s()
        self._background = BackgroundThread(
            "maintenance", self.tick, self._pause_s, what="a maintenance pass", threaded=threaded
        )

    @property
    def is_running(self) -> bool:
        """Returns whether the thread is alive in this process."""
        return self._background.is_running

    def start(self) -> None:
        """Starts the thread unless it is running."""
        if self._background.threaded and not self._background.is_running:
            self._due_s = self._next_due_s()
        self._background.start()

    def set_interval(self, interval_s: float) -> None:
        """Sets the interval between two passes from now on."""
        self._interval_s = interval_s
        self._due_s = self._next_due_s()
        self._background.wake()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Ends the thread after its current provider; waits at most `timeout_s`."""
        self._background.stop(timeout_s)

    def tick(self) -> None:
        """Runs a pass if one is due."""
        if self._clock.monotonic_s() >= self._due_s:
            self.run_pass()

    def run_pass(self) -> int:
        """Maintains every loaded provider now.

        Returns:
            Number of providers that failed. Each was unloaded, unless its server was silent.
        """
        began_s = self._clock.monotonic_s()
        self._due_s = self._next_due_s()
        failed = done = skipped = 0
        stopping = self._background.stopping
        for id_, provider in self._loaded().items():
            if stopping.is_set():
                break
            if self._is_silent(provider.server):
                skipped += 1
                continue
            done += 1
            failed += not self._maintain(id_, provider)
        ms = (self._clock.monotonic_s() - began_s) * 1000
        _LOG.debug(
            "maintained %d providers in %.0f ms, %d failed, %d skipped", done, ms, failed, skipped
        )
        return failed

    def _is_silent(self, server: Server) -> bool:
        """Returns whether a server is to be left alone; tries it once when its pause is over."""
        silence = self._silences.get(server.name)
        if silence is None:
            return False
        if self._clock.monotonic_s() >= silence.until_s:
            if server.answers():
                return False
            silence.extend(self._clock.monotonic_s())
        return True

    def _fell_silent(self, id_: Hashable, server: Server, error: Exception) -> bool:
        """Notes a server that did not answer; false if something else did not."""
        # A folder of files may not answer, whatever the server did before.
        if not isinstance(error, UnavailableError) or server.answers():
            return False
        known = self._silences.get(server.name)
        now_s = self._clock.monotonic_s()
        if known is not None:
            known.extend(now_s)
            return True
        self._silences[server.name] = _Silence(now_s, now_s + PAUSE_S)
        _LOG.warning(
            "%s does not answer, so maintenance of the stores on it pauses; no state depends on "
            "it: maintenance of %s: %s",
            server.name,
            id_,
            error,
        )
        return True

    def _answered(self, server: Server) -> None:
        silence = self._silences.pop(server.name, None)
        if silence is not None:
            silent_s = self._clock.monotonic_s() - silence.since_s
            _LOG.info("%s answers again after %.0f s: maintenance goes on", server.name, silent_s)

    def _maintain(self, id_: Hashable, provider: Maintained) -> bool:
        try:
            provider.do_maintenance()
            self._answered(provider.server)
        except Exception as error:  # noqa: BLE001  # one failing provider must not stop the others
            if self._fell_silent(id_, provider.server, error):
                return False
            _LOG.warning("maintenance of %s failed, so it is unloaded: %s", id_, error)
            try:
                self._unload(id_, error)
            except Exception:  # noqa: BLE001  # foreign code; the other providers live on
                _LOG.exception("unloading %s failed", id_)
            return False
        return True

    def _next_due_s(self) -> float:
        share = random.uniform(1 - self._jitter, 1 + self._jitter)
        return self._clock.monotonic_s() + self._interval_s * share

    def _pause_s(self) -> float:
        return max(0.0, self._due_s - self._clock.monotonic_s())
