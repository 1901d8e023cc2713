"""The runner of `make test`: its counts, its limit, its verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = """
import sys
sys.path.insert(0, {tools!r})
import suites
from suites import Commands
suites.SUITES = (
    Commands("good", ((sys.executable, "-c", "print('ran good')"),), limit_s=60),
    Commands("bad", ((sys.executable, "-c", "raise SystemExit(3)"),), limit_s=60),
    Commands("late", ((sys.executable, "-c", "print('ran late')"),), limit_s=60),
    Commands("hanging", ((sys.executable, "-c", {hanging!r}),), limit_s=2),
)
import run_tests
sys.exit(run_tests.main(sys.argv[1:]))
"""
HANGING = """
import faulthandler, signal, subprocess, sys
faulthandler.register(signal.SIGUSR1)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
def waits_for_ever(): child.wait()
waits_for_ever()
"""


def run(*names: str) -> subprocess.CompletedProcess[str]:
    program = SUITES.format(tools=str(ROOT / "tools"), hanging=HANGING)
    return subprocess.run(
        [sys.executable, "-c", program, *names],
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


def test_last_line_sums_up() -> None:
    done = run("good", "late")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"


def test_goes_on_after_a_failure_and_fails_at_the_end() -> None:
    done = run("good", "bad", "late")
    assert done.returncode == 1
    assert "ran late" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 passed, 1 failed"


def test_a_wrong_name_is_an_error() -> None:
    done = run("goood")
    assert done.returncode == 2
    assert "no suite goood; there are good, bad, late, hanging" in done.stdout


def test_a_hanging_suite_prints_its_stacks_and_ends_with_its_children() -> None:
    done = run("hanging")
    assert done.returncode == 1
    assert "waits_for_ever" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"
    child = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("child"))
    assert has_ended(int(child))


def test_an_empty_suite_is_a_failure(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import run_tests, suites;"
        f"print(run_tests.run_suite(suites.Pytest('none', {str(tmp_path)!r}, 10)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"
