"""Threads of one process in an order that a seed decides: one runs at a time, line by line.

Before each line of the modules that are looked at, another thread may take over. What Python itself
does between two threads is rarer and never the same twice; here a seed replays it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

_TURN_S = 60.0
_BLOCKED_MAX = 10_000
_LINES = (2, 2, 8, 32)

Body = Callable[[], None]


class DeadlockError(AssertionError):
    """Nobody can go on."""


class _Worker(threading.Thread):
    def __init__(self, owner: Interleaving, body: Body) -> None:
        super().__init__(daemon=True)
        self.go = threading.Semaphore(0)
        self.failure: BaseException | None = None
        self._owner, self._body = owner, body

    def run(self) -> None:
        self.go.acquire()
        sys.settrace(self._owner.trace)
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001  # told by whoever waits for all
            self.failure = error
        finally:
            sys.settrace(None)
            self._owner.ended()


class Interleaving:
    """Runs bodies beside each other; made anew for each seed.

    Args:
        seed: Also decides how many lines a thread goes on for on average.
        modules: Whose lines are looked at. While `locks` is entered, the locks that they make wait
            for their turn like everything else.
    """

    def __init__(self, seed: int, modules: Sequence[ModuleType]) -> None:
        self._random = Random(seed)
        self._modules = modules
        self._files = {module.__file__ for module in modules}
        self._one_in = self._random.choice(_LINES)
        self._waiting: list[_Worker] = []
        self._current: _Worker | None = None
        self._blocked = 0
        self._done = threading.Event()

    @contextmanager
    def locks(self) -> Iterator[None]:
        """Replaces the modules' locks inside the context with locks that can be interleaved."""
        names = {name: getattr(threading, name) for name in dir(threading)}
        made = SimpleNamespace(**names)
        made.Lock = lambda: _Lock(self, threading.Lock())
        made.RLock = lambda: _Lock(self, threading.RLock())
        with ExitStack() as stack:
            for module in self._modules:
                if hasattr(module, "threading"):
                    stack.enter_context(mock.patch.object(module, "threading", made))
            yield

    def run(self, *bodies: Body) -> None:
        """Until all have ended.

        Raises:
            BaseException: What the first of them to fail raised.
        """
        workers = [_Worker(self, body) for body in bodies]
        self._waiting = list(workers)
        for worker in workers:
            worker.start()
        self._next()
        assert self._done.wait(_TURN_S), "a thread neither runs nor ends"
        for worker in workers:
            worker.join()
        for worker in workers:
            if worker.failure is not None:
                raise worker.failure

    def trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        """Trace function for `sys.settrace`."""
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line" and self._random.randrange(self._one_in) == 0:
            self._blocked = 0
            self.give_way()
        return self.trace

    def give_way(self) -> None:
        """Passes the turn to another thread, if one waits."""
        own = self._current
        if own is None or not self._waiting or threading.current_thread() is not own:
            return
        self._waiting.append(own)
        self._next()
        own.go.acquire()

    def blocked(self) -> None:
        """The thread whose turn it is cannot go on before another one has."""
        self._blocked += 1
        if self._blocked > _BLOCKED_MAX or not self._waiting:
            raise DeadlockError("each thread waits for a lock that another one holds")
        self.give_way()

    def ended(self) -> None:
        """The thread whose turn it is was done."""
        self._current = None
        if self._waiting:
            self._next()
        else:
            self._done.set()

    def owns_turn(self) -> bool:
        """Returns whether the caller is one of the threads that take turns."""
        return threading.current_thread() is self._current

    def _next(self) -> None:
        chosen = self._waiting.pop(self._random.randrange(len(self._waiting)))
        self._current = chosen
        chosen.go.release()


class _Lock:
    """A lock that gives way instead of waiting."""

    def __init__(self, owner: Interleaving, lock: Any) -> None:
        self._owner, self._lock = owner, lock

    def __enter__(self) -> bool:
        if not self._owner.owns_turn():
            return bool(self._lock.acquire())
        while not self._lock.acquire(False):
            self._owner.blocked()
        return True

    def __exit__(self, *_: object) -> None:
        self._lock.release()
