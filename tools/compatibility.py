"""Makes the table of docs/compatibility.md from the marked tests on each Spark minor.

    python tools/compatibility.py              run them on every minor and write the table
    python tools/compatibility.py 4.3 ...      only on these; the other columns stay
    python tools/compatibility.py 4.3 -- ARGS  only the tests that pytest finds by ARGS, such as
                                               tests/upgrades; the other cells stay

pytest runs the tests; this tool makes the table. A minor runs in the environment `.venv-MINOR`, and
the newest in `.venv`. How a test becomes a row: tests/support/compatibility.py.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
MINORS = tuple(json.loads((ROOT / "redis_state" / "options.json").read_text())["sparkMinors"])
FOLDERS = ("tests/spark", "tests/upgrades")
_BEGIN = "<!-- table: made by `make compatibility` -->"
_END = "<!-- end of table -->"
_RUN_WITH = "*ran with*"
_EMPTY = "–"
# The first test of the upgrades runs every query on two minors, longer than the usual limit of a
# test.
_TIMEOUT = "--timeout=2700"

Key = tuple[str, str]


@dataclass(slots=True)
class Table:
    """Cells by row and minor; `ran_with` has date and versions of each minor's run."""

    rows: dict[Key, dict[str, str]] = field(default_factory=dict)
    tests: dict[Key, str] = field(default_factory=dict)
    ran_with: dict[str, str] = field(default_factory=dict)

    def replace(self, minor: str, run: dict[str, Any], ran_with: str) -> None:
        """Replaces the column of one minor by a run."""
        for cells in self.rows.values():
            cells.pop(minor, None)
        self.merge(minor, run, ran_with)

    def merge(self, minor: str, run: dict[str, Any], ran_with: str) -> None:
        """Updates the cells of one minor that a run of some tests has."""
        for row in run["rows"]:
            self.tests[key_of(row)] = row["test"].split("::")[0].removeprefix("tests/")
        for key, cell in cells_of(run).items():
            self.rows.setdefault(key, {})[minor] = cell
        self.rows = {key: cells for key, cells in self.rows.items() if cells}
        self.ran_with[minor] = ran_with

    def text(self) -> str:
        """Formats the table for the page."""
        head = ["operator", "option", *(f"Spark {minor}" for minor in MINORS), "test"]
        ran_with = [_RUN_WITH, "", *(self.ran_with.get(minor, _EMPTY) for minor in MINORS), _EMPTY]
        lines = [_line(head), "|---" * len(head) + "|", _line(ran_with)]
        for key, cells in self.rows.items():
            found = [cells.get(minor, _EMPTY) for minor in MINORS]
            lines.append(_line([*key, *found, f"`{self.tests[key]}`"]))
        return "\n".join(lines)


def key_of(row: dict[str, str]) -> Key:
    return row["operator"], row["option"]


def cells_of(run: dict[str, Any]) -> dict[Key, str]:
    """Returns the cells of a run; of several tests of one row the worst result counts."""
    cells: dict[Key, str] = {}
    for row in run["rows"]:
        known = cells.get(key_of(row), "green")
        refused = f"Spark refuses: {row['reason']}"
        cells_by_status = {
            "green": known,
            "refused": refused,
            "absent": row["reason"],
            "red": "**red**",
        }
        cell = cells_by_status[row["status"]]
        cells[key_of(row)] = known if known == "**red**" else cell
    return cells


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def read_page(text: str) -> Table:
    table = Table()
    body = _parts(text)[1].strip().splitlines()
    for line in body[2:]:
        operator, option, *cells, test = (cell.strip() for cell in line.strip("| ").split(" | "))
        found = {m: c for m, c in zip(MINORS, cells, strict=True) if c != _EMPTY}
        if operator == _RUN_WITH:
            table.ran_with = found
        else:
            table.rows[operator, option] = found
            table.tests[operator, option] = test.strip("`")
    return table


def write_page(text: str, table: Table) -> str:
    before, _, after = _parts(text)
    return f"{before}{_BEGIN}\n{table.text()}\n{_END}{after}"


def _parts(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(f"(.*){re.escape(_BEGIN)}(.*){re.escape(_END)}(.*)", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"error: {PAGE} has no lines {_BEGIN} and {_END}")
    return found[1], found[2], found[3]


def differences(run: dict[str, Any], text: str) -> list[str]:
    """Returns the differences between a run and the page, for the minor of the run."""
    minor = minor_of(run["spark"])
    rows = read_page(text).rows
    return [
        f"{operator}, {option}: this run says {cell}, the page {said}"
        for (operator, option), cell in cells_of(run).items()
        if (said := rows.get((operator, option), {}).get(minor, "nothing")) != cell
    ]


def minor_of(version: str) -> str:
    return ".".join(version.split(".")[:2])


def python_of(minor: str) -> str:
    folder = ".venv" if minor == MINORS[-1] else f".venv-{minor}"
    program = ROOT / folder / "bin" / "python"
    if not program.exists():
        raise SystemExit(f"error: there is no {folder}: run `make env-{minor}`")
    return str(program)


def run_minor(minor: str, tests: list[str]) -> tuple[dict[str, Any], str]:
    """Runs marked tests on one minor; failures are results for the table."""
    python = python_of(minor)
    settings = {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "rows.json")
        options = ["-m", "compatibility", f"--compatibility={report}", _TIMEOUT]
        subprocess.run(
            [python, "-m", "pytest", *tests, *options],
            cwd=ROOT,
            env={**os.environ, **settings},
            check=False,
        )
        if not report.exists():
            raise SystemExit(f"error: the tests on Spark {minor} ended without a report")
        run: dict[str, Any] = json.loads(report.read_text())
    if minor_of(run["spark"]) != minor:
        raise SystemExit(f"error: {python} has Spark {run['spark']}, not {minor}")
    today = datetime.date.today().isoformat()
    return run, f"pyspark {run['spark']}, Python {run['python']}, {run['server']}, {today}"


def main(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    minors, tests = arguments[:end] or MINORS, arguments[end + 1 :]
    for minor in minors:
        python_of(minor)
    red = 0
    for minor in minors:
        run, ran_with = run_minor(minor, tests or list(FOLDERS))
        red += sum(row["status"] == "red" for row in run["rows"])
        table = read_page(PAGE.read_text("utf-8"))
        (table.merge if tests else table.replace)(minor, run, ran_with)
        PAGE.write_text(write_page(PAGE.read_text("utf-8"), table), "utf-8")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
