"""Runs the suites, some in parallel, and sums them up.

    python tools/run_tests.py                     every suite of `make test`
    python tools/run_tests.py NAME ...            the named ones
    python tools/run_tests.py --long [NAME ...]   those of `make test-long`

A lane runs one suite after the other, in the order of the list. With several lanes, each line of
output begins with the name of its suite. A failure does not stop the run. At the end come the time
of each suite and the failures. The last line is `N passed, M failed`, with `, K skipped` after it
when tests were skipped. Exits with 1 when anything failed, and with CI=true when anything was
skipped. JUnit reports stay in build/reports. `--write PAGE` writes the results to a page, row by
row: suites that did not run keep their rows.

No existing tool fits: pytest, ScalaTest and linters are three programs. Two of them in parallel
must share two cores, the rules on time, and one verdict.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

# Run by its path, the script imports its neighbours by the names that tests use.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import pythons, reports, servers
from tools.clock import Clock
from tools.jvm import CHECKPOINT_FILES, OF_A_QUERY, ROOT, java_command
from tools.reports import Counts
from tools.run_limited import end_all, run_limited
from tools.suites import LONG_SUITES, SUITES, Commands, Pytest, Scalatest, Suite

_SLOWEST = 10
_NAME_MAX = 80
_LANES = 2
_STOLEN_SHOWN = 0.1
_BEGIN = "<!-- begin: make test-long -->"
_END = "<!-- end: make test-long -->"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a suite.

    `note` explains a long run that was not the suite's own fault.
    """

    suite: Suite
    counts: Counts
    passed_s: float
    note: str

    def __str__(self) -> str:
        return f"{self.suite.name:<18} {self.passed_s:7.1f} s  {self.counts}{self.note}"


def run_commands(suite: Commands, prefix: str) -> Counts:
    report = reports.folder_of(suite.name)
    ended = []
    for command in suite.commands:
        code, late = run_limited(
            list(command), cwd=ROOT, env=_environment(suite), limit_s=suite.limit_s, prefix=prefix
        )
        name = " ".join([Path(command[0]).name, *command[1:]])[:_NAME_MAX]
        ended.append((name, late or (f"exit code {code}" if code else "")))
    reports.write(report / "commands.xml", suite.name, ended)
    return reports.counts_in(report)


def run_pytest(suite: Pytest, prefix: str) -> Counts:
    if not list((ROOT / suite.folder).rglob("test_*.py")):
        print(f"error: {suite.folder} has no tests")
        return Counts(failed=1)
    report = reports.folder_of(suite.name)
    try:
        python = str(pythons.ensure(suite.python)) if suite.python else sys.executable
    except pythons.PythonError as error:
        print(f"error: {error}")
        return Counts(failed=1, failures=(str(error),))
    command = [python, "-m", "pytest", suite.folder, f"--junitxml={report / 'pytest.xml'}"]
    command += [f"--durations={_SLOWEST}", "--durations-min=5", *suite.options]
    environment = _environment(suite, python)
    if suite.server:
        environment["REDIS_STATE_SERVER"] = str(_server(suite.server))
    code, late = run_limited(
        command, cwd=ROOT, env=environment, limit_s=suite.limit_s, prefix=prefix
    )
    return _judged(report, code, late)


def _server(name: str) -> Path:
    wanted = next(server for server in servers.SERVERS if server.name == name)
    return servers.ensure(wanted, servers.cache_folder())


def _judged(report: Path, code: int, late: str) -> Counts:
    """Adds a failure for a crash, a hang or an error outside of any test, which no report has."""
    counts = reports.counts_in(report)
    if code == 0 or (counts.failed and not late):
        return counts
    return counts + Counts(failed=1, failures=(late or f"exit code {code}",))


def run_scalatest(suite: Scalatest, prefix: str) -> Counts:
    sources = ROOT / "jvm-adapter" / suite.sources
    classes = [
        ".".join(path.relative_to(sources).with_suffix("").parts)
        for path in sorted(sources.rglob("*Suite.scala"))
        if suite.runs(path.stem)
    ]
    if not classes:
        print(f"error: {sources.relative_to(ROOT)} has no *Suite.scala")
        return Counts(failed=1)
    target = ROOT / "jvm-adapter" / suite.module / "target"
    command = java_command(suite.module, ROOT / suite.spark_jars if suite.spark_jars else None)
    command += [*suite.options, "org.scalatest.tools.Runner"]
    report = reports.folder_of(suite.name)
    command += ["-oDWF", "-u", str(report), "-R", str(target / "test-classes")]
    for name in classes:
        command += ["-s", name]
    environment = _environment(suite) | dict(suite.variables)
    code, late = run_limited(
        command, cwd=target, env=environment, limit_s=suite.limit_s, prefix=prefix
    )
    return _judged(report, code, late)


def _environment(suite: Suite, python: str = sys.executable) -> dict[str, str]:
    """Returns this environment, with a Python's programs first on PATH, and Spark's settings.

    Long suites leave the form of checkpoint files to Spark.
    """
    options = OF_A_QUERY if suite in LONG_SUITES else (*OF_A_QUERY, CHECKPOINT_FILES)
    programs = str(Path(python).parent)
    path = os.pathsep.join((programs, os.environ.get("PATH", os.defpath)))
    return {
        **os.environ,
        "PATH": path,
        "REDIS_STATE_SERVER": servers.of_this_machine() or "",
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": " ".join(options),
    }


def run_suite(suite: Suite, prefix: str = "") -> Counts:
    match suite:
        case Commands():
            return run_commands(suite, prefix)
        case Pytest():
            return run_pytest(suite, prefix)
        case Scalatest():
            return run_scalatest(suite, prefix)


def run_suites(suites: Sequence[Suite], lanes: int) -> Iterator[Outcome]:
    """Yields the outcome of each suite as it ends."""

    def run(suite: Suite) -> Outcome:
        # One write for each line, because another lane writes at the same time.
        print(f"== {suite.name}\n", end="", flush=True)
        clock = Clock()
        counts = run_suite(suite, f"{suite.name} | " if min(lanes, len(suites)) > 1 else "")
        outcome = Outcome(suite, counts, clock.passed_s, _stolen(clock))
        print(f"== {outcome}\n", end="", flush=True)
        return outcome

    with ThreadPoolExecutor(lanes) as pool:
        running = [pool.submit(run, suite) for suite in suites]
        try:
            for ended in as_completed(running):
                yield ended.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise


def _stolen(clock: Clock) -> str:
    """Returns a note if a suite took long because of stolen time."""
    share = clock.lost_s / clock.passed_s
    return f" ({share:.0%} of the time stolen)" if share > _STOLEN_SHOWN else ""


def _write(page: Path, rows: dict[str, str]) -> None:
    """Writes rows into the table between two comments of a page, in the order of the suites."""
    text = page.read_text("utf-8")
    head, rest = text.split(_BEGIN)
    table, tail = rest.split(_END)
    kept = dict(re.findall(r"^\| `([^`]+)` (\|.*)$", table, re.MULTILINE)) | rows
    lines = [f"| `{suite.name}` {kept[suite.name]}" for suite in LONG_SUITES if suite.name in kept]
    table = "\n".join(
        ("", "| suite | run on | minutes | result |", "|---|---|---|---|", *lines, "")
    )
    page.write_text(f"{head}{_BEGIN}{table}{_END}{tail}", "utf-8")


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_tests.py", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a suite; none means all")
    parser.add_argument("--long", action="store_true", help="the suites of `make test-long`")
    parser.add_argument(
        "--lanes",
        type=int,
        metavar="N",
        default=min(_LANES, os.cpu_count() or 1),
        help=f"so many suites at once (default: {_LANES}, on one core 1)",
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="with --long: keep the results")
    asked = parser.parse_args(words)
    if asked.write and not asked.long:
        parser.error("--write goes with --long")
    if asked.lanes < 1:
        parser.error("--lanes has to be 1 or more")
    return asked


def main(words: list[str]) -> int:
    asked = _arguments(words)
    suites = LONG_SUITES if asked.long else SUITES
    known = {suite.name: suite for suite in suites}
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        print(f"error: no suite {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [known[name] for name in dict.fromkeys(asked.names)] or suites
    clock = Clock()
    outcomes = {}
    for outcome in run_suites(chosen, asked.lanes):
        outcomes[outcome.suite.name] = outcome
        if asked.write:
            today = datetime.now(timezone.utc).date()
            row = f"| {today} | {outcome.passed_s / 60:.0f} | {outcome.counts} |"
            _write(asked.write, {outcome.suite.name: row})
    ended = [outcomes[suite.name] for suite in chosen]
    total = sum((outcome.counts for outcome in ended), Counts())
    failures = [
        f"failed: {one.suite.name}: {line}" for one in ended for line in one.counts.failures
    ]
    refused = os.environ.get("CI") == "true"
    of_skip = "failed: skipped in CI" if refused else "skipped"
    skips = [f"{of_skip}: {one.suite.name}: {line}" for one in ended for line in one.counts.skips]
    lanes = "1 lane" if asked.lanes == 1 else f"{asked.lanes} lanes"
    took = f"all of it took {clock.passed_s / 60:.1f} minutes, in {lanes}{_stolen(clock)}"
    print("\n".join(("", *map(str, ended), took, "", *skips, *failures)))
    print(total, flush=True)
    refused = refused and total.skipped > 0
    return 1 if total.failed or refused or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
