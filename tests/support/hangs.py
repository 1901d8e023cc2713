"""Extends pytest-timeout: shows the JVMs below a hanging test, and fires more than once.

Its own timer shows Python's threads alone, though what hangs is a query as a rule, and rings once,
though what takes a failed test down may hang as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import traceback
from pathlib import Path
from types import FrameType

import pytest
import pytest_timeout  # type: ignore[import-untyped] # it has no types

from tools import processes, stacks

_JSTACK_S = 60


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    def fail(_: int, frame: FrameType | None) -> None:
        """Dumps all stacks, in the thread of the test."""
        java = "".join(map(_java_stacks, _java_processes()))
        terminal = item.config.get_terminal_writer()
        pytest_timeout.dump_stacks(terminal)
        terminal.write(java)
        python = traceback.format_stack(frame)[::-1]
        stood = stacks.stood(["Current thread 0x", *python, *java.splitlines()])
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        pytest.fail(f"hangs after {settings.timeout:g} s: {stood}")

    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    del item
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return True


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
