"""Runs a program with a time limit; past it, prints the stacks and ends its processes.

`subprocess` and pytest-timeout handle one process. A suite also has JVMs and servers below it.
Their stacks show why the suite hangs, and they must not outlive it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tools.clock import Clock
from tools.processes import members, signal_all
from tools.stacks import stood

_STACKS_S = 10
_TERMINATE_S = 10
_POLL_S = 0.1


_sessions: set[int] = set()
_ending = threading.Event()


def run_limited(
    command: list[str], *, cwd: Path, env: dict[str, str], limit_s: int, prefix: str = ""
) -> tuple[int, str]:
    """Runs a command, copies its output to this process's output, and returns its exit code.

    The second value is the position of the command when its time was over, else empty. Each copied
    line begins with `prefix`. After `end_all` no command runs any more.

    The command gets a session of its own. After `limit_s` seconds by `Clock`, SIGQUIT asks every
    Java process of the session for its stacks. SIGABRT ends every Python process: Python's
    faulthandler, which pytest enables, then prints its stacks. Then the other processes are ended.
    Processes that the command leaves behind are ended with it.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    _sessions.add(process.pid)
    if _ending.is_set():
        signal_all(process.pid, signal.SIGKILL)
    stacks: list[str] = []
    late = threading.Event()
    copying = threading.Thread(target=_copy, args=(process, prefix, late, stacks), daemon=True)
    copying.start()
    try:
        code = _wait(process, limit_s)
    except TimeoutError:
        print(
            f"{prefix}error: still running after {limit_s} s; stacks follow\n", end="", flush=True
        )
        late.set()
        _end_session(process.pid)
        code = process.wait()
    signal_all(process.pid, signal.SIGKILL)
    _sessions.discard(process.pid)
    copying.join(_TERMINATE_S)  # a process of another session may hold the output open
    return code, f"still running after {limit_s} s: {stood(stacks)}" if late.is_set() else ""


def end_all() -> None:
    """Ends all running commands, whose own sessions Control-C does not reach."""
    _ending.set()
    for number, patience_s in ((signal.SIGTERM, _TERMINATE_S), (signal.SIGKILL, 0)):
        for session in tuple(_sessions):
            signal_all(session, number)
        for session in tuple(_sessions):
            _are_gone(session, patience_s)


def _wait(process: subprocess.Popen[str], limit_s: float) -> int:
    clock = Clock()
    while (left_s := clock.left_s(limit_s)) > 0:
        try:
            return process.wait(left_s)
        except subprocess.TimeoutExpired:
            continue
    raise TimeoutError


def _copy(
    process: subprocess.Popen[str], prefix: str, late: threading.Event, stacks: list[str]
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(prefix + line)
        sys.stdout.flush()
        if late.is_set():
            stacks.append(line.rstrip("\n"))


def _end_session(session: int) -> None:
    for pid, program in members(session):
        try:
            if program == "java":
                os.kill(pid, signal.SIGQUIT)
            elif program.startswith(("python", "pytest")):
                os.kill(pid, signal.SIGABRT)
        except ProcessLookupError:
            continue  # it has just ended
    for number, patience_s in ((signal.SIGTERM, _STACKS_S), (signal.SIGKILL, _TERMINATE_S)):
        if _are_gone(session, patience_s):
            break
        signal_all(session, number)


def _are_gone(session: int, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while any(True for _ in members(session)):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True
