"""The runner of `make test`: its counts, its limit, its verdict."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import clock, reports, servers, stacks
from tools.suites import LONG_SUITES, Pytest

ROOT = Path(__file__).resolve().parents[2]
SUITES = """
import pathlib, sys, tempfile
from tools import suites
from tools.suites import Commands
suites.SUITES = (
    Commands("good", ((sys.executable, "-c", "print('ran good')"),), limit_s=60),
    Commands("bad", ((sys.executable, "-c", "raise SystemExit(3)"),), limit_s=60),
    Commands("late", ((sys.executable, "-c", "print('ran late')"),), limit_s=60),
    Commands("hanging", ((sys.executable, "-c", {hanging!r}),), limit_s=6),
    Commands(
        "sleeping",
        ((sys.executable, "-c", {hanging!r}), (sys.executable, "-c", "print('went on')")),
        limit_s=600,
    ),
    Commands("leaving", ((sys.executable, "-c", {leaving!r}),), limit_s=600),
)
suites.LONG_SUITES = suites.SUITES[2:3]
from tools import reports, run_tests
with tempfile.TemporaryDirectory() as folder:
    reports.FOLDER = pathlib.Path(folder)
    sys.exit(run_tests.main(sys.argv[1:]))
"""
LEAVING = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
os._exit(1)
"""
HANGING = """
import faulthandler, subprocess, sys
faulthandler.enable()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
def waits_for_ever(): child.wait()
waits_for_ever()
"""


def command(*names: str) -> list[str]:
    program = SUITES.format(hanging=HANGING, leaving=LEAVING)
    return [sys.executable, "-c", program, *names]


def start(*names: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*names), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def run(*names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*names),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def has_ended(pid: int) -> bool:
    """Gone, or dead and only waiting for its parent to notice."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat[stat.rindex(")") + 2] == "Z"


def test_last_line_is_a_summary() -> None:
    done = run("good", "late")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"


def test_runner_continues_after_a_failure_and_fails_at_the_end() -> None:
    done = run("good", "bad", "late")
    assert done.returncode == 1
    assert "ran late" in done.stdout
    told, total = done.stdout.splitlines()[-2:]
    assert told.startswith("failed: bad: bad.python")
    assert told.endswith(": exit code 3")
    assert total == "2 passed, 1 failed"


def test_output_of_parallel_suites_is_labelled() -> None:
    lines = run("--lanes", "2", "good", "late").stdout.splitlines()
    assert {"good | ran good", "late | ran late"} <= set(lines)
    assert [line.split()[0] for line in lines[-5:-3]] == ["good", "late"]
    assert "ran good" in run("--lanes", "1", "good").stdout.splitlines()


def test_terminated_runner_ends_its_children() -> None:
    with start("--lanes", "2", "hanging", "sleeping") as running:
        assert running.stdout is not None
        children: list[int] = []
        while len(children) < 2:
            line = running.stdout.readline()
            if "child" in line:
                children.append(int(line.split()[-1]))
        running.send_signal(signal.SIGINT)
        assert "went on" not in running.stdout.read()
    assert running.returncode != 0
    assert all(has_ended(child) for child in children)


def test_unknown_suite_is_an_error() -> None:
    done = run("goood")
    assert done.returncode == 2
    assert "no suite goood; there are good, bad, late, hanging, sleeping, leaving" in done.stdout


def test_the_long_suites_keep_their_results_on_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: make test-long -->\n<!-- end: make test-long -->\nafter\n")
    for _ in range(2):
        assert run("--long", "--write", str(page)).returncode == 0
        head, rest = page.read_text().split("<!-- begin: make test-long -->")
        table, tail = rest.split("<!-- end: make test-long -->")
        assert (head, tail) == ("before\n", "\nafter\n")
        *_, row = table.strip().splitlines()
        assert row.startswith("| `late` | 20")
        assert row.endswith("| 0 | 1 passed, 0 failed |")
        assert len(table.strip().splitlines()) == 3


def test_a_page_is_for_the_long_suites() -> None:
    assert run("--write", "page.md", "good").returncode == 2


def test_every_test_that_is_marked_long_belongs_to_a_long_suite() -> None:
    served = [
        suite.folder
        for suite in LONG_SUITES
        if isinstance(suite, Pytest) and suite.options[-2:] == ("-m", "long")
    ]
    marked = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"\bmark\.long\b", path.read_text("utf-8"))
    ]
    assert marked
    assert [path for path in marked if not path.startswith(tuple(served))] == []


def test_hanging_suite_prints_stacks_and_is_killed_with_its_children() -> None:
    done = run("hanging")
    assert done.returncode == 1
    assert "waits_for_ever" in done.stdout
    told, total = done.stdout.splitlines()[-2:]
    assert told.startswith("failed: hanging: hanging.python")
    assert ": still running after 6 s: " in told
    assert total == "0 passed, 1 failed"
    assert has_ended(child_of(done))


def test_processes_left_by_a_suite_are_killed() -> None:
    done = run("leaving")
    assert done.stdout.splitlines()[-2].endswith(": exit code 1")
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"
    assert has_ended(child_of(done))


def child_of(done: subprocess.CompletedProcess[str]) -> int:
    return next(
        int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("child")
    )


TESTS = """import time

import pytest


def test_one():
    waits_for_ever()


def test_two():
    pass


@pytest.fixture
def taken_down_late():
    yield
    waits_for_ever()


def test_three(taken_down_late):
    pass


def waits_for_ever():
    time.sleep(600)
"""
TASK = """package org.redisstate;
class Task {
    public static void main(String[] arguments) throws Exception {
        Thread.currentThread().setName("Executor task launch worker for task 0");
        System.out.println("runs");
        Thread.sleep(600000);
    }
}
"""


def test_hanging_test_fails_alone_with_the_stacks_of_its_jvm(tmp_path: Path) -> None:
    Path(tmp_path, "Task.java").write_text(TASK)
    Path(tmp_path, "tests").mkdir()
    Path(tmp_path, "tests", "test_hanging.py").write_text(TESTS)
    java = ["java", "-Xmx64m", str(tmp_path / "Task.java")]
    pytest_program = [sys.executable, "-m", "pytest", "--junitxml=reports/report.xml"]
    with subprocess.Popen(java, stdout=subprocess.PIPE) as jvm:
        try:
            assert jvm.stdout is not None
            assert jvm.stdout.readline() == b"runs\n"
            done = subprocess.run(
                [*pytest_program, "-p", "tests.support.hangs", "--timeout=3"],
                cwd=tmp_path,
                # CI lets pytest write whole lines.
                env={**os.environ, "CI": "true", "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        finally:
            jvm.kill()
    assert "2 passed" in done.stdout.splitlines()[-1]
    assert "in waits_for_ever" in done.stdout
    assert "Task.main(Task.java:6)" in done.stdout
    hangs = (
        "Failed: hangs after 3 s: tests/test_hanging.py:25 waits_for_ever < tests/test_hanging.py"
    )
    assert reports.counts_in(tmp_path / "reports").failures == (
        f"tests.test_hanging.test_one: {hangs}:7 test_one; Task.java:6",
        f'tests.test_hanging.test_three: failed on teardown with "{hangs}:17 taken_down_late; '
        'Task.java:6"',
    )


@pytest.mark.parametrize(
    ("busy_s", "stolen_s", "lost_s"),
    [(100, 0, 0), (500, 500, 500), (50, 950, 950), (900, 900, 500), (1, 9, 9), (0, -5, 0)],
)
def test_stolen_time_is_subtracted_once(busy_s: int, stolen_s: int, lost_s: int) -> None:
    """The figures are of 1,000 seconds on two cores."""
    assert clock.lost_s(1000, busy_s, stolen_s) == pytest.approx(lost_s)


def test_stolen_time_is_zero_without_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_STAT", tmp_path / "none")
    assert clock.Clock().lost_s == 0


JVM_STACKS = """
"redis-state-stage-1" #21 daemon prio=5
   java.lang.Thread.State: RUNNABLE
\tat app//org.redisstate.core.backend.JedisTransport.exchange(JedisTransport.scala:44)
"ScalaTest-main-running-GoingBackSuite" #12 prio=5
\tat java.base@17.0.1/java.net.Socket.read(Socket.java:9)
\tat app//org.redisstate.core.store.WriteSession.abort(WriteSession.scala:272)
\tat org.redisstate.core.store.GoingBackSuite.write(GoingBackSuite.scala:69)
"""
PYTHON_STACKS = """
Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3/threading.py", line 320 in wait
  File "/x/redis_state/store.py", line 7 in commit
  File "/x/tests/unit/test_c.py", line 20 in test_two
"""


@pytest.mark.parametrize(
    ("dumped", "told"),
    [
        (JVM_STACKS, "WriteSession.scala:272 < GoingBackSuite.scala:69"),
        (PYTHON_STACKS, "redis_state/store.py:7 commit < tests/unit/test_c.py:20 test_two"),
        ("", "no stack of ours"),
    ],
)
def test_position_of_a_hanging_test_is_printed_in_one_line(dumped: str, told: str) -> None:
    assert stacks.stood(dumped.splitlines()) == told


OF_SCALATEST = """<?xml version="1.0" encoding="UTF-8" ?>
<testsuite errors="0" failures="1" hostname="vm" name="a.BadSuite" tests="3" time="0.1">
  <testcase name="one" classname="a.BadSuite" time="0.05">
    <failure message="1 == 2\nwas false" type="class TestFailedException">at ...</failure>
  </testcase>
  <testcase name="two" classname="a.BadSuite" time="0.05"></testcase>
  <testcase name="three" classname="a.BadSuite" time="0.05"><skipped/></testcase>
</testsuite>"""
ABORTED = '<testsuite errors="1" failures="0" name="a.AbortingSuite" tests="0" time="0.1"/>'
OF_PYTEST = """<testsuites><testsuite name="pytest" errors="1" failures="0" skipped="0" tests="2">
  <testcase classname="tests.unit.test_a" name="test_one[x]" time="0.1"/>
  <testcase classname="tests.unit.test_a" name="test_two" time="0.1">
    <error message="failed on teardown">at ...</error>
  </testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("report", "counts"),
    [
        (
            OF_SCALATEST,
            reports.Counts(1, 1, 1, ("a.BadSuite.one: 1 == 2 was false",), ("a.BadSuite.three",)),
        ),
        (ABORTED, reports.Counts(failed=1, failures=("a.AbortingSuite aborted",))),
        (
            OF_PYTEST,
            reports.Counts(1, 1, 0, ("tests.unit.test_a.test_two: failed on teardown",)),
        ),
    ],
)
def test_reports_are_counted_with_one_line_per_failure_and_skip(
    report: str, counts: reports.Counts, tmp_path: Path
) -> None:
    Path(tmp_path, "report.xml").write_text(report)
    assert reports.counts_in(tmp_path) == counts


def test_an_empty_suite_is_a_failure(tmp_path: Path) -> None:
    program = (
        "import pathlib; from tools import reports, run_tests, suites;"
        f"reports.FOLDER = pathlib.Path({str(tmp_path / 'reports')!r});"
        f"print(run_tests.run_suite(suites.Pytest('none', {str(tmp_path)!r}, 10)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"


@pytest.mark.parametrize(
    ("ci", "code", "label"), [("true", 1, "failed: skipped in CI"), ("false", 0, "skipped")]
)
def test_skipped_tests_are_named_and_fail_in_ci_alone(
    tmp_path: Path, ci: str, code: int, label: str
) -> None:
    (tmp_path / "test_skips.py").write_text(
        "import pytest\ndef test_one(): pass\ndef test_two(): pytest.skip('no engine')\n"
    )
    program = (
        "import pathlib, sys; from tools import reports, suites;"
        f"suites.SUITES = (suites.Pytest('some', {str(tmp_path)!r}, 60),);"
        f"reports.FOLDER = pathlib.Path({str(tmp_path / 'reports')!r});"
        "from tools import run_tests; sys.exit(run_tests.main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code
    *_, named, last = done.stdout.splitlines()
    assert named.startswith(f"{label}: some: ")
    assert named.endswith("test_skips.test_two: no engine")
    assert last == "1 passed, 0 failed, 1 skipped"


@pytest.mark.parametrize(
    ("installed", "taken"),
    [
        (("venv", "usr"), "usr"),
        (("venv",), "venv"),
        ((), None),
    ],
)
def test_pip_server_is_used_if_there_is_no_other(
    installed: tuple[str, ...], taken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name / "bin" for name in ("venv", "usr")}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        if name in installed:
            folder.joinpath("redis-server").touch(mode=0o700)
    tmp_path.joinpath("venv", "pyvenv.cfg").touch()
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders.values())))
    monkeypatch.delenv("REDIS_STATE_SERVER", raising=False)
    expected = None if taken is None else str(folders[taken] / "redis-server")
    assert servers.of_this_machine() == expected
    monkeypatch.setenv("REDIS_STATE_SERVER", "/opt/valkey-server")
    assert servers.of_this_machine() == "/opt/valkey-server"
