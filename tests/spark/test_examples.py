"""The scripts of `examples/`, each as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 300  # for a machine that is busy with other work
LINES_MAX = 60
LAST_LINES = {
    "aggregation": (
        "key 'de' in Redis: {'count': 4}",
        "all countries: {'de': 4, 'es': 1, 'fr': 2, 'it': 2}",
        "equal to a plain computation: True",
    ),
    "join": ("clicked within an hour: ['a', 'd']", "as it should be: True"),
    "sessions": (
        "closed: [('ann', '10:00', 3), ('bob', '10:02', 1), ('bob', '11:00', 1)]",
        "as it should be: True",
        "open, in Redis: [('cid', 1)]",
    ),
    "pandas_with_state": (
        "ann: Session(pages=['/', '/cart', '/pay'])",
        "every page of every user: True",
    ),
    "batches": (
        "the sink has failed: True",
        "visits: {0: {'ann': 1, 'bob': 1}, 1: {'ann': 2}, 2: {'ann': 3, 'bob': 2}}",
        "each counted once: True",
    ),
    "processor_sessions": (
        "closed: [('ann', 3), ('bob', 1), ('dan', 1)]",
        "open, in Redis: {'n': 1}",
    ),
    "recovery": ("every row counted once: True",),
    "replay_batch": (
        "rows of the batch: 3",
        "bob production: {'sum': 150} replay: {'sum': 100}",
        "only the large order differs: True",
    ),
    "store_alone": (
        "committed: version 1",
        "committed: version 2",
        "now: {('de', 1): 'paid', ('de', 2): 'open'}",
        "total of 'de': 55",
        "version 1: {('de', 1): 'open', ('de', 2): 'open', ('fr', 1): 'open'}",
    ),
    "live_reads": (),
}
WITHOUT_SPARK = ("live_reads", "store_alone")


def settings(folder: Path) -> dict[str, str]:
    """The environment of a script, whose temporary files are in a folder."""
    (folder / "tmp").mkdir()
    (folder / "cwd").mkdir()
    ours = {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder / "tmp"),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder / 'tmp'}",
    }
    kept = {name: value for name, value in os.environ.items() if name != "REDIS_STATE_URL"}
    return {**kept, **ours}


def run(name: str, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Runs the script and returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=folder / "cwd",
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def processes_with(variable: str) -> list[int]:
    """Processes that have a variable in the environment they were started with."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def check_nothing_is_left(folder: Path) -> None:
    wait_until(lambda: not processes_with(f"TMPDIR={folder / 'tmp'}"), "the script's processes")
    assert [path.name for name in ("tmp", "cwd") for path in (folder / name).iterdir()] == []


def test_every_example_is_tested_and_listed() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == LAST_LINES.keys()
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert [name for name in scripts if f"| [{name}.py]({name}.py) |" not in page] == []


@pytest.mark.parametrize("name", sorted(LAST_LINES))
def test_script_is_short_and_documents_its_command(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    assert len(text.splitlines()) <= LINES_MAX
    assert f"`python examples/{name}.py`" in text.split('"""')[1]


@pytest.mark.parametrize("name", sorted(LAST_LINES.keys() - set(WITHOUT_SPARK)))
def test_script_verifies_its_claim_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path, settings(tmp_path))
    assert tuple(printed[-len(LAST_LINES[name]) :]) == LAST_LINES[name]
    if name == "recovery":
        ends = [line for line in printed if line.startswith("a driver ended")]
        assert [line.split()[5] for line in ends] == ["-9;", "0;"]
        assert sum(line.endswith("and all partitions can serve it.") for line in printed) == 2
    check_nothing_is_left(tmp_path)


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_script_runs_without_spark(name: str, tmp_path: Path) -> None:
    environment = settings(tmp_path)
    (tmp_path / "none" / "pyspark").mkdir(parents=True)
    refusal = "raise ImportError('this script has to run without Spark')"
    (tmp_path / "none" / "pyspark" / "__init__.py").write_text(refusal)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "none"), str(ROOT)])
    printed = run(name, tmp_path, environment)
    if name == "live_reads":
        assert printed[-1].endswith("- newer: True")
    else:
        assert tuple(printed) == LAST_LINES[name]
    check_nothing_is_left(tmp_path)


def test_script_uses_a_given_server(shared_redis_server: RedisServer, tmp_path: Path) -> None:
    environment = {**settings(tmp_path), "REDIS_STATE_URL": shared_redis_server.url}
    for _ in range(2):
        assert tuple(run("store_alone", tmp_path, environment)) == LAST_LINES["store_alone"]
    with shared_redis_server.client() as client:
        assert any(client.scan_iter(match=b"*", count=1000))


def test_ctrl_c_stops_all_that_a_script_started(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "recovery.py")],
        cwd=tmp_path / ".",
        env=settings(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            # Step by step: each wait has its bound, and the machine may be busy.
            for path in ("*/0.csv", "*/spark-*", "*/checkpoint", "*/checkpoint/commits/0"):
                wait_until(lambda path=path: any(folder.glob(path)), path)  # type: ignore[misc]  # bound at once
        finally:
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_S) != 0
    check_nothing_is_left(tmp_path)
