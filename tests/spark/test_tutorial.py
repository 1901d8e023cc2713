"""docs/tutorial.md, step by step in one shell: its files, its commands, and what they print."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from redis_state import __version__
from tests.support.redis_server import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
PORT = "6399"
BLOCK = re.compile(
    r'^```(?:python title="(?P<name>.+?)"|console)\n(?P<text>.*?)^```', re.DOTALL | re.M
)
# What installs: the checkout is tested, and tools/check_wheel.py looks at the wheel.
INSTALLS = ("python3 -m venv ", ". ", "pip install ")
# What prints ids and numbers that differ from run to run.
VARIES = ("redis-state queries ", "redis-state doctor ", "redis-state purge ", "tail ")
# Spark may put two files into the batch that the kill cut off: the later ones have other numbers.
BATCH = re.compile(r'"batch": \d+')
VARYING = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|\d+")
WATCH_END_LINES = 3
WAITS_MAX = 5


def wait_long(condition: Callable[[], bool], what: str) -> None:
    """Five minutes: a machine that is busy starts Spark late."""
    for _ in range(WAITS_MAX - 1):
        with suppress(TimeoutError):
            return wait_until(condition, what)
    return wait_until(condition, what)


class Shell:
    """The reader's terminal: a bash with job control, in which commands run one by one."""

    def __init__(self, home: Path, server: str) -> None:
        self._home = home
        self._count = 0
        for name in ("tmp", "bin", "out", "cwd"):
            (home / name).mkdir()
        self._command("python", sys.executable)
        self._command("redis-state", sys.executable, "-m", "redis_state")
        self._command("redis-server", server)
        tmp = home / "tmp"
        ours = {
            "PATH": os.pathsep.join([str(home / "bin"), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={tmp}",
        }
        with (home / "out" / "shell").open("w") as told:
            self._process = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                cwd=home / "cwd",
                env={**os.environ, **ours},
                stdin=subprocess.PIPE,
                stdout=told,
                stderr=told,
                text=True,
                start_new_session=True,
            )
        # What an interactive shell has: a job is a process group, and `%name` finds it.
        self._send("set -m")

    def _command(self, name: str, *words: str) -> None:
        path = self._home / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        path.chmod(0o755)

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def run(self, command: str) -> list[str]:
        """Runs a command, which has to succeed, and returns its output."""
        self._count += 1
        out, err, status, ended = (
            self._home / "out" / f"{self._count}.{kind}" for kind in ("out", "err", "status", "end")
        )
        out_err = f"> {shlex.quote(str(out))} 2> {shlex.quote(str(err))}"
        self._send(f"{{ {command}\n}} < /dev/null {out_err}")
        # Renamed, so that it is there with all that it says.
        to, end = shlex.quote(str(status)), shlex.quote(str(ended))
        self._send(f"echo $? > {to}; mv {to} {end}")
        wait_long(ended.exists, command)
        assert ended.read_text() == "0\n", (command, out.read_text(), err.read_text()[-4000:])
        return out.read_text().splitlines()

    def processes(self) -> list[int]:
        """All that runs in it, and the shell itself: they are one session."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
                if session == str(self._process.pid) and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def shell(tmp_path: Path, server_path: str) -> Iterator[Shell]:
    opened = Shell(tmp_path, server_path)
    yield opened
    opened.close()


def steps(page: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the page's steps: a file's name and text, or a command and its output."""
    for block in BLOCK.finditer(page):
        if block["name"]:
            yield block["name"], block["text"], []
            continue
        for part in re.split(r"^\$ ", block["text"], flags=re.M)[1:]:
            command, *shown = part.splitlines()
            yield "", command, shown


def compare(command: str, printed: list[str], shown: list[str]) -> None:
    if command == "python watch.py":
        for lines in (printed, shown):
            under_way = [line for line in lines[:-WATCH_END_LINES] if line != "…"]
            assert all(re.fullmatch(r"\d+ of \d+ visits", line) for line in under_way)
        printed, shown = printed[-WATCH_END_LINES:], shown[-WATCH_END_LINES:]
    if command.startswith(VARIES):
        printed, shown = ([VARYING.sub("N", line) for line in lines] for lines in (printed, shown))
    if command.startswith("redis-state history "):
        printed, shown = (
            [BATCH.sub("batch", line) for line in lines] for lines in (printed, shown)
        )
    assert printed == shown, command


def numbers(log: Path) -> list[int]:
    """The batches that one of Spark's logs has."""
    return [int(path.name) for path in log.iterdir() if path.name.isdigit()]


def test_wheel_in_the_tutorial_has_this_version() -> None:
    assert f"'redis_state-{__version__}-py3-none-any.whl[demo]'" in PAGE.read_text("utf-8")


def test_every_step_does_what_the_page_shows(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "cwd" / "tutorial"
    commits = folder / "checkpoint" / "commits"
    killed = []
    for name, line, shown in steps(PAGE.read_text("utf-8").replace(PORT, str(free_port()))):
        if name:
            (folder / name).write_text(line)
            continue
        if line.startswith(INSTALLS):
            continue
        if line.startswith("redis-state get "):
            # Asked again until the query has confirmed its last batch.
            wait_long(lambda line=line, shown=shown: shell.run(line) == shown, line)  # type: ignore[misc]  # bound at once
            continue
        if line == "cat visits.log":
            log = folder / "visits.log"
            wait_long(lambda log=log, shown=shown: log.read_text().splitlines() == shown, line)  # type: ignore[misc]  # bound at once
        printed = []
        for command in line.split("; "):
            if command.startswith("sleep "):
                # What the reader waits for: some of the new files are counted, and not all.
                done = len(numbers(commits))
                wait_long((commits / f"{done + 1}").exists, "batches of the new files")
                continue
            printed += shell.run(command)
            if command.startswith("kill "):
                killed.append(command)
                left = 1 if command == "kill %redis-server" else 2  # the shell, and Redis
                wait_long(lambda left=left: len(shell.processes()) == left, command)  # type: ignore[misc]  # bound at once
            if command == "kill -9 %python":
                assert len(numbers(commits)) < len(list((folder / "in").glob("*.json")))
        compare(line, printed, shown)
    assert killed == ["kill -9 %python", "kill %python", "kill %redis-server"]
    assert not folder.exists()
