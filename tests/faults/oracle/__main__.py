"""`python -m tests.faults.oracle`: schedules and mutants, with their seeds and counts."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.bench.page import replace_section
from tests.faults.oracle.campaign import (
    FORBIDDEN,
    MUTANT_SEEDS,
    REQUIRED,
    Result,
    Verdict,
    mutants,
    schedules,
)
from tests.faults.oracle.mutants import MUTANTS

COMMAND = "python -m tests.faults.oracle"


def main(words: list[str] | None = None) -> int:
    """Run what the arguments ask for; 0 if no rule was broken and every mutant was found."""
    asked = _arguments().parse_args(words)
    first = 1 if asked.seed is None else asked.seed
    count = 1 if asked.seed is not None and asked.schedules is None else asked.schedules or 20_000
    begun = time.monotonic()
    result = _run_schedules(range(first, first + count))
    complaints = result.complaints if count > 1 else [str(one) for one in result.failures]
    verdicts = [] if asked.seed is not None else list(_run_mutants())
    complaints += [f"mutant {one.name} lives" for one in verdicts if one.failure is None]
    text = _table(result, verdicts, first, count, time.monotonic() - begun)
    print(text)
    if asked.write and not complaints:
        page = Path(asked.write)
        page.write_text(replace_section(page.read_text(), COMMAND, text))
    for complaint in complaints:
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument(
        "--schedules", type=int, metavar="N", help="how many schedules (default 20000)"
    )
    parser.add_argument(
        "--seed", type=int, help="the first seed; without --schedules, replay this one only"
    )
    parser.add_argument("--write", metavar="PAGE", help="put the table on this page")
    return parser


def _progress(what: str) -> Progress:
    return Progress(what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def _run_schedules(seeds: range) -> Result:
    with _progress("schedules") as bar:
        task = bar.add_task("schedules", total=len(seeds))
        return schedules(seeds, lambda done: bar.update(task, completed=done))


def _run_mutants() -> list[Verdict]:
    found = []
    with _progress("mutants") as bar:
        task = bar.add_task("mutants", total=len(MUTANTS))
        for verdict in mutants([mutant.name for mutant in MUTANTS]):
            found.append(verdict)
            bar.advance(task)
    return found


def _table(result: Result, verdicts: list[Verdict], first: int, count: int, seconds: float) -> str:
    met = result.counters
    today = datetime.now(timezone.utc).date()
    lines = [
        f"{today}: seeds {first} to {first + count - 1}, {met['commits']:,} commits, "
        f"{met['loads compared']:,} loads compared, in {seconds / 60:.0f} minutes.",
        "",
        "| counter | must be | was |",
        "|---|---|---|",
        *(f"| {name} | 0 | {met[name]:,} |" for name in FORBIDDEN),
        *(f"| {name} | above 0 | {met[key]:,} |" for name, key in REQUIRED.items()),
    ]
    if verdicts:
        rules = {mutant.name: mutant.rule for mutant in MUTANTS}
        lines += [
            "",
            f"Mutants, each given {MUTANT_SEEDS} schedules:",
            "",
            "| mutant | the rule that it breaks | found by seed |",
            "|---|---|---|",
            *(
                f"| {one.name} | {rules[one.name]} "
                f"| {one.failure.seed if one.failure else 'not found'} |"
                for one in verdicts
            ),
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
