"""Runs a program with a limit on its time; past it, prints the stacks and ends its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_STACKS_S = 10
_TERMINATE_S = 10
_POLL_S = 0.1


def run_limited(
    command: list[str], *, cwd: Path, env: dict[str, str], limit_s: int
) -> tuple[int, str]:
    """Runs a command, copies its output to ours, and returns its exit code and output.

    The command gets a session of its own. After `limit_s` seconds every Java process of the
    session is asked for its stacks (SIGQUIT) and every Python process for its own (SIGUSR1, a
    handler that tests/conftest.py sets), then all of them are ended.
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
    parts: list[str] = []
    timer = threading.Timer(limit_s, _end_session, [process, limit_s, parts])
    timer.daemon = True
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        parts.append(line)
    code = process.wait()
    timer.cancel()
    _signal_all(process.pid, signal.SIGKILL)
    return code, "".join(parts)


def _end_session(process: subprocess.Popen[str], limit_s: int, output: list[str]) -> None:
    output.append(f"error: still running after {limit_s} s; stacks follow\n")
    print(output[-1], end="", flush=True)
    for pid, program in _members(process.pid):
        if program == "java":
            os.kill(pid, signal.SIGQUIT)
        elif program.startswith(("python", "pytest")) and _handles(pid, signal.SIGUSR1):
            os.kill(pid, signal.SIGUSR1)
    # What the command left behind may hold its output open, so all members count, not it alone.
    for number, patience_s in ((signal.SIGTERM, _STACKS_S), (signal.SIGKILL, _TERMINATE_S)):
        if _are_gone(process.pid, patience_s):
            break
        _signal_all(process.pid, number)


def _are_gone(session: int, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while any(True for _ in _members(session)):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _signal_all(session: int, number: signal.Signals) -> None:
    for pid, _ in _members(session):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _members(session: int) -> Iterator[tuple[int, str]]:
    """Processes of a session: id and program name (Linux; elsewhere none)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        program = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(stat.parent.name), program


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process catches a signal; without a handler it would end without its stacks."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
