"""JUnit reports of the suites: their folders and their results.

pytest and ScalaTest write their own reports; `write` makes those of other programs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

FOLDER = Path(__file__).resolve().parent.parent / "build" / "reports"
_LENGTH_MAX = 300


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of passed, failed and skipped tests; each failure and skip as a line of its name."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.failures + other.failures,
            self.skips + other.skips,
        )

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def folder_of(suite: str) -> Path:
    """Returns an empty folder for the reports of one suite; removes those of an earlier run."""
    folder = FOLDER / suite
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write(path: Path, suite: str, failed_by_name: Iterable[tuple[str, str]]) -> None:
    """Writes a report of tests, given by name and message; an empty message means passed."""
    written = TestSuite(suite)
    for name, message in failed_by_name:
        case = TestCase(name, classname=suite)
        if message:
            case.result = [Failure(message)]
        written.add_testcase(case)
    report = JUnitXml()
    report.add_testsuite(written)
    report.write(str(path))


def counts_in(folder: Path) -> Counts:
    """Sums up all reports of a folder."""
    total = Counts()
    for path in sorted(folder.glob("*.xml")):
        for suite in _suites(path):
            passed = sum(not case.result for case in suite)
            told = tuple(_lines(suite, Failure, Error))
            skips = tuple(_lines(suite, Skipped))
            failed = suite.failures + suite.errors
            if failed > len(told):  # a suite that ended outside of its tests, in ScalaTest's word
                told += (f"{suite.name} aborted",)
            total += Counts(passed, failed, suite.skipped, told, skips)
    return total


def _suites(path: Path) -> Iterator[TestSuite]:
    root = JUnitXml.fromfile(str(path))
    if isinstance(root, TestSuite):
        yield root
    else:
        yield from root


def _lines(suite: TestSuite, *kinds: type) -> Iterator[str]:
    for case in suite:
        for result in case.result:
            if isinstance(result, kinds):
                name = ".".join(filter(None, (case.classname, case.name)))
                reason = f": {result.message}" if result.message else ""
                yield " ".join(f"{name}{reason}".split())[:_LENGTH_MAX]
