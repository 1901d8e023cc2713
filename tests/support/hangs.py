"""Fails a test that hangs, with the stacks of Python and of its JVMs, and lets the others run."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import threading
import traceback
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

from tools import failures, processes
from tools.clock import Clock

_JSTACK_S = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hang-limit",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds after which a test is said to hang; stolen ones do not count",
    )


def pytest_configure(config: pytest.Config) -> None:
    stderr = os.dup(2)  # which pytest captures from the first test on
    config.add_cleanup(lambda: os.close(stderr))
    # tools/run_limited.py asks a suite that takes too long for its stacks by this signal.
    faulthandler.register(signal.SIGUSR1, file=stderr, all_threads=True)
    config.add_cleanup(lambda: faulthandler.unregister(signal.SIGUSR1))  # before it is closed
    config.pluginmanager.register(_Watch(stderr, config.getoption("hang_limit")))


class _Watch:
    """Looks at the test that runs, from a thread beside it."""

    def __init__(self, stderr: int, limit_s: float) -> None:
        self._stderr = stderr
        self._limit_s = limit_s
        self._java_stacks = ""
        signal.signal(signal.SIGUSR2, self._fail)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        over = threading.Event()
        threading.Thread(target=self._look, args=(item.nodeid, over), daemon=True).start()
        try:
            return (yield)
        finally:
            over.set()

    def _look(self, name: str, over: threading.Event) -> None:
        """Comes again, because what takes a failed test down may hang too."""
        main = threading.main_thread().ident
        assert main is not None
        while True:
            clock = Clock()
            while (left_s := clock.left_s(self._limit_s)) > 0:
                if over.wait(left_s):
                    return
            self._say(f"error: {name} took longer than {self._limit_s:g} s; stacks follow\n")
            # From this thread, which holds the interpreter's lock: a signal's handler does not.
            faulthandler.dump_traceback(self._stderr, all_threads=True)
            self._java_stacks = "".join(map(_java_stacks, _java_processes()))
            self._say(self._java_stacks)
            if over.is_set():
                return
            signal.pthread_kill(main, signal.SIGUSR2)

    def _fail(self, _: int, frame: FrameType | None) -> None:
        """In the thread of the test, where it stands."""
        python = traceback.format_stack(frame)[::-1]
        stacks = ["Current thread 0x", *python, *self._java_stacks.splitlines()]
        pytest.fail(f"hangs after {self._limit_s:g} s: {failures.stood(stacks)}")

    def _say(self, text: str) -> None:
        os.write(self._stderr, text.encode())


def _java_processes() -> list[int]:
    return [pid for pid, program in processes.members(os.getsid(0)) if program == "java"]


def _java_stacks(pid: int) -> str:
    """A JVM that Python started writes its own stacks to where pytest captures them."""
    try:
        jstack = Path(f"/proc/{pid}/exe").readlink().with_name("jstack")
        done = subprocess.run(
            [str(jstack), str(pid)], capture_output=True, text=True, timeout=_JSTACK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stacks of process {pid}: {error}\n"
    return done.stdout + done.stderr
