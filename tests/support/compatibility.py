"""Collects the rows of docs/compatibility.md from the tests: operators and options per Spark minor.

A test becomes a row, or one more proof of a row, by a marker; nothing else is needed:

    @pytest.mark.compatibility("transformWithStateInPandas", "list state")
    def test_list_state(streams): ...

The option may name parameters of the test, and is left out when there is nothing to say:

    @pytest.mark.parametrize("how", ["inner", "left_outer"])
    @pytest.mark.compatibility("stream-stream join", "{how}, state format 2")

What a Spark minor refuses by itself is not a skip: the test runs there too, must end with an error
of Spark's that has the given text in it, and the cell says "refused" with the reason and the text:

    @pytest.mark.compatibility(
        "stream-stream join",
        "state format 4",
        refused={"4.2": ("under development", "state format 4 is under development there")},
    )

Where there is nothing to run, the test is skipped with the reason, and the cell says just that:

    @pytest.mark.compatibility("state of the minor before", absent={"4.0": "the oldest minor"})

A query with a time to live, or in real-time mode, fills a column of its own, of the newest minor:

    @pytest.mark.compatibility("dropDuplicates", column=compatibility.REAL_TIME)

On other minors such a test runs only if another marker gives it a row there.

A marker without an operator only adds refusals; `pytest.param(..., marks=...)` takes one for one
parameter. Such a test should ask Spark's own provider first (`Streams.same_on_both` does): then it
is Spark that refuses, whatever keeps the state. `make compatibility` runs the marked tests of
tests/spark on every minor and writes the page; `make test` compares the page with its own run.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tools import compatibility, servers

Status = Literal["green", "red", "refused", "absent"]
_MARKER = "compatibility"
_REFUSED = pytest.StashKey[str]()
_ABSENT = pytest.StashKey[str]()
_ROWS = pytest.StashKey["list[Row]"]()


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one test on the running Spark."""

    operator: str
    option: str
    status: Status
    reason: str
    test: str
    column: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compatibility",
        metavar="FILE",
        help="write what the tests marked `compatibility` showed, as JSON",
    )
    parser.addoption(
        "--compatibility-check",
        action="store_true",
        help="fail when docs/compatibility.md says something else than these tests showed",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []


def _minor() -> str:
    import pyspark

    return ".".join(pyspark.__version__.split(".")[:2])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs nothing where the marker says that there is nothing to run."""
    for marker in item.iter_markers(_MARKER):
        reason = marker.kwargs.get("absent", {}).get(_minor())
        if reason is not None:
            item.stash[_ABSENT] = reason
            pytest.skip(reason)
    if not _is_newest() and _has_only_columns(item):
        pytest.skip(f"its column of the table is of Spark {compatibility.MINORS[-1]}")


def _has_only_columns(item: pytest.Item) -> bool:
    """Returns whether all rows of a test are in columns of the newest minor."""
    columns = [
        marker.kwargs.get("column", "") for marker in item.iter_markers(_MARKER) if marker.args
    ]
    return bool(columns) and all(columns)


def _is_newest() -> bool:
    return bool(_minor() == compatibility.MINORS[-1])


def _refusals(item: pytest.Item) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for marker in item.iter_markers(_MARKER):
        found |= marker.kwargs.get("refused", {})
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A refusal that the marker foretells passes; its absence fails."""
    refusals = _refusals(item)
    if not refusals or _minor() not in refusals:
        return (yield)
    text, reason = refusals[_minor()]
    try:
        yield
    except Exception as error:
        if text not in str(error):
            raise
        item.stash[_REFUSED] = f"{reason} (`{text}`)"
        return None
    pytest.fail(f"Spark {_minor()} no longer refuses this ({reason}): take it out of the marker")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" or report.outcome != "passed":
        item.config.stash[_ROWS] += [
            _row(item, marker, report)
            for marker in item.iter_markers(_MARKER)
            if marker.args and (_is_newest() or not marker.kwargs.get("column"))
        ]
    return report


def _row(item: pytest.Item, marker: pytest.Mark, report: pytest.TestReport) -> Row:
    operator, *options = marker.args
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec else {}
    reason = item.stash.get(_REFUSED, "")
    status: Status = "refused" if reason else "green"
    if _ABSENT in item.stash:
        status, reason = "absent", item.stash[_ABSENT]
    elif report.outcome != "passed":
        status, reason = "red", ""
    option = ", ".join(options).format(**parameters)
    return Row(
        operator.format(**parameters),
        option,
        status,
        reason,
        item.nodeid.split("[")[0],
        column=marker.kwargs.get("column", ""),
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--compatibility")
    if path is not None:
        Path(path).write_text(json.dumps(_run(session.config), indent=1))
    if session.config.getoption("--compatibility-check") and _differences(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--compatibility-check"):
        for line in _differences(config):
            terminalreporter.line(f"docs/compatibility.md: {line}. Run `make compatibility`.")


def _differences(config: pytest.Config) -> list[str]:
    return compatibility.differences(_run(config), compatibility.PAGE.read_text("utf-8"))


def _run(config: pytest.Config) -> dict[str, Any]:
    import pyspark

    program = servers.of_this_machine() or "no server"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"^(\S+) server v=(\S+)", said)
    return {
        "spark": pyspark.__version__,
        "python": platform.python_version(),
        "server": f"{version[1]} {version[2]}" if version else said.strip(),
        "rows": [asdict(row) for row in config.stash[_ROWS]],
    }
