"""Makes the table of docs/compatibility.md from the marked tests on each Spark minor.

    python tools/compatibility.py              run them on every minor and write the table
    python tools/compatibility.py 4.3 ...      only on these; the other columns stay
    python tools/compatibility.py 4.3 -- ARGS  only the tests that pytest finds by ARGS, such as
                                               tests/upgrades; the other cells stay

pytest runs the tests; this tool makes the table. A minor runs in the environment `.venv-MINOR`, and
the newest in `.venv`. How a test becomes a row: tests/support/compatibility.py. The last columns
are of tests with a time to live and in real-time mode, on the newest minor.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.markdown import list_item

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
MINORS = tuple(json.loads((ROOT / "redis_state" / "options.json").read_text())["sparkMinors"])
REAL_TIME = "real-time"
TIME_TO_LIVE = "time to live"
OF_NEWEST = {
    TIME_TO_LIVE: f"time to live on {MINORS[-1]}",
    REAL_TIME: f"real-time mode of {MINORS[-1]}",
}
"""Titles of the columns that only the newest minor fills."""

COLUMNS = (*MINORS, *OF_NEWEST)
FOLDERS = ("tests/spark", "tests/upgrades")
_BEGIN = "<!-- table: made by `make compatibility` -->"
_END = "<!-- end of table -->"
_TITLES = {**{minor: f"Spark {minor}" for minor in MINORS}, **OF_NEWEST}
_EMPTY = "–"
_SHORT = {"green", "**red**", _EMPTY}
# The first test of the upgrades runs every query on two minors, longer than the usual limit of a
# test.
_TIMEOUT = "--timeout=2700"

Key = tuple[str, str]
Place = tuple[Key, str]
"""Row and column of a cell."""


@dataclass(slots=True)
class Table:
    """Cells by row and column; `ran_with` has date and versions of each column's run."""

    rows: dict[Key, dict[str, str]] = field(default_factory=dict)
    tests: dict[Key, str] = field(default_factory=dict)
    ran_with: dict[str, str] = field(default_factory=dict)

    def replace(self, minor: str, run: dict[str, Any], ran_with: str) -> None:
        """Replaces the columns of one minor by a run."""
        for cells in self.rows.values():
            for column in columns_of(minor):
                cells.pop(column, None)
        self.merge(run, ran_with)

    def merge(self, run: dict[str, Any], ran_with: str) -> None:
        """Updates the cells that a run of some tests has."""
        # A row of an ordinary query and of one in another column names the test of the former.
        for row in sorted(run["rows"], key=lambda row: not row["column"]):
            test = row["test"].split("::")[0].removeprefix("tests/")
            if not row["column"] or key_of(row) not in self.tests:
                self.tests[key_of(row)] = test
        found = cells_of(run)
        for (key, column), cell in found.items():
            self.rows.setdefault(key, {})[column] = cell
        self.rows = {key: cells for key, cells in self.rows.items() if cells}
        for column in {column for _, column in found}:
            self.ran_with[column] = ran_with

    def text(self) -> str:
        """Formats the versions, one table for each operator and test file, and the notes."""
        notes: dict[str, int] = {}
        lines = [
            list_item(f"{title}: {self.ran_with[column]}")
            for column, title in _TITLES.items()
            if column in self.ran_with
        ]
        groups: dict[Key, dict[Key, dict[str, str]]] = {}
        for key, cells in self.rows.items():
            groups.setdefault((key[0], self.tests[key]), {})[key] = cells
        for (operator, test), group in groups.items():
            columns = [
                c for c in COLUMNS if c in MINORS or any(c in cells for cells in group.values())
            ]
            lines += ["", f"**{operator}** (`{test}`)", "", _line(["option", *columns])]
            lines.append("|---" * (len(columns) + 1) + "|")
            for (_, option), cells in group.items():
                short = [_short(cells.get(column, _EMPTY), notes) for column in columns]
                lines.append(_line([option or _EMPTY, *short]))
        lines += ["", *(list_item(f"({number}): {note}") for note, number in notes.items())]
        return "\n".join(lines)


def key_of(row: dict[str, str]) -> Key:
    return row["operator"], row["option"]


def columns_of(minor: str) -> tuple[str, ...]:
    """Returns the columns that a run on this minor fills."""
    return (minor, *OF_NEWEST) if minor == MINORS[-1] else (minor,)


def cells_of(run: dict[str, Any]) -> dict[Place, str]:
    """Returns the cells of a run; of several tests of one cell the worst result counts."""
    cells: dict[Place, str] = {}
    minor = minor_of(run["spark"])
    for row in run["rows"]:
        place = key_of(row), row["column"] or minor
        known = cells.get(place, "green")
        refused = f"Spark refuses: {row['reason']}"
        cells_by_status = {
            "green": known,
            "refused": refused,
            "absent": row["reason"],
            "red": "**red**",
        }
        cell = cells_by_status[row["status"]]
        cells[place] = known if known == "**red**" else cell
    return cells


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _short(cell: str, notes: dict[str, int]) -> str:
    """Returns the cell, or the number of its note where it has more than a word."""
    return cell if cell in _SHORT else f"({notes.setdefault(cell, len(notes) + 1)})"


def read_page(text: str) -> Table:
    table = Table()
    body = re.sub(r"\n {2,}", " ", _parts(text)[1])
    notes = dict(re.findall(r"^- (\(\d+\)): (.*)$", body, re.MULTILINE))
    operator = test = ""
    columns: list[str] = []
    for line in body.splitlines():
        if named := re.fullmatch(r"\*\*(.*)\*\* \(`(.*)`\)", line):
            operator, test = named.groups()
        elif line.startswith("| "):
            option, *cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
            if option == "option":
                columns = cells
                continue
            key = operator, option.replace(_EMPTY, "")
            table.tests[key] = test
            table.rows[key] = {
                column: notes.get(cell, cell)
                for column, cell in zip(columns, cells, strict=True)
                if cell != _EMPTY
            }
    for column, title in _TITLES.items():
        if ran_with := re.search(rf"^- {re.escape(title)}: (.*)$", body, re.MULTILINE):
            table.ran_with[column] = ran_with[1]
    return table


def write_page(text: str, table: Table) -> str:
    before, _, after = _parts(text)
    return f"{before}{_BEGIN}\n\n{table.text()}\n\n{_END}{after}"


def _parts(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(f"(.*){re.escape(_BEGIN)}(.*){re.escape(_END)}(.*)", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"error: {PAGE} has no lines {_BEGIN} and {_END}")
    return found[1], found[2], found[3]


def differences(run: dict[str, Any], text: str) -> list[str]:
    """Returns the differences between a run and the page, for the columns of the run."""
    rows = read_page(text).rows
    return [
        f"{operator}, {option}{_mode_of(column)}: this run says {cell}, the page {said}"
        for ((operator, option), column), cell in cells_of(run).items()
        if (said := rows.get((operator, option), {}).get(column, "nothing")) != cell
    ]


def _mode_of(column: str) -> str:
    return f" in the column {OF_NEWEST[column]}" if column in OF_NEWEST else ""


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
        if tests:
            table.merge(run, ran_with)
        else:
            table.replace(minor, run, ran_with)
        PAGE.write_text(write_page(PAGE.read_text("utf-8"), table), "utf-8")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
