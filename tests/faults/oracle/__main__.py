"""`python -m tests.faults.oracle`: schedules and mutants, with their seeds and counts."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.bench.page import replace_section
from tests.faults.oracle.campaign import FORBIDDEN, MUTANT_SEEDS, REQUIRED, groups, mutants
from tests.faults.oracle.mutants import MUTANTS
from tests.faults.oracle.results import Results

_TELL_S = 30
COMMAND = "python -m tests.faults.oracle"


def main(words: list[str] | None = None) -> int:
    """Run what the arguments ask for; 0 if no rule was broken and every mutant was found."""
    asked = _arguments().parse_args(words)
    # Ends as Control-C does, so that no server is left over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    first = 1 if asked.seed is None else asked.seed
    count = asked.schedules
    if count is None:
        count = 20_000 if asked.seed is None else 1
    found = Results.of(Path(asked.results) if asked.results else None)
    if asked.seed is None:
        _run_mutants(found, asked.jobs)
    _run_schedules(found, range(first, first + count), asked.jobs)
    complaints = found.result.complaints
    if asked.seed is not None and count == 1:
        complaints = [str(one) for one in found.result.failures]
    complaints += [f"mutant {name} lives" for name, seed in found.verdicts.items() if seed is None]
    text = _table(found)
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
    parser.add_argument(
        "--results",
        metavar="FILE",
        help="add to what earlier runs of the same code left in this file, and run nothing twice",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="so many processes (default: one for each core)"
    )
    return parser


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, else a line now and then."""
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(what, *columns, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task(what, total=total)
        told = time.monotonic()

        def tell(done: int) -> None:
            nonlocal told
            bar.update(task, completed=done)
            if bar.disable and (done == total or time.monotonic() - told > _TELL_S):
                told = time.monotonic()
                now = datetime.now(timezone.utc)
                print(f"{now:%H:%M:%S} {what}: {done} of {total}", flush=True)

        yield tell


def _run_schedules(found: Results, seeds: range, jobs: int | None) -> None:
    missing = found.missing(seeds)
    if not missing:
        return
    with _progress("schedules", len(missing)) as tell:
        done, begun = 0, time.monotonic()
        for group in groups(missing, jobs=jobs):
            now = time.monotonic()
            found.add(group, now - begun)
            begun = now
            done += len(group.seeds)
            tell(done)


def _run_mutants(found: Results, jobs: int | None) -> None:
    missing = [one.name for one in MUTANTS if one.name not in found.verdicts]
    if not missing:
        return
    with _progress("mutants", len(missing)) as tell:
        begun = time.monotonic()
        for done, verdict in enumerate(mutants(missing, jobs=jobs), 1):
            now = time.monotonic()
            found.add_verdict(verdict, now - begun)
            begun = now
            tell(done)


def _table(found: Results) -> str:
    met = found.result.counters
    today = datetime.now(timezone.utc).date()
    seeds = ", ".join(f"{first} to {last}" for first, last in found.spans)
    lines = [
        f"{today}: {met['schedules']:,} schedules, seeds {seeds}; {met['commits']:,} commits, "
        f"{met['loads compared']:,} loads compared, in {found.seconds / 60:.0f} minutes.",
        "",
        "| counter | must be | was |",
        "|---|---|---|",
        *(f"| {name} | 0 | {met[name]:,} |" for name in FORBIDDEN),
        *(f"| {name} | above 0 | {met[key]:,} |" for name, key in REQUIRED.items()),
    ]
    if found.verdicts:
        seen = [(one, found.verdicts[one.name]) for one in MUTANTS if one.name in found.verdicts]
        lines += [
            "",
            f"Mutants, each given {MUTANT_SEEDS} schedules:",
            "",
            "| mutant | the rule that it breaks | found by seed |",
            "|---|---|---|",
            *(f"| {one.name} | {one.rule} | {seed or 'not found'} |" for one, seed in seen),
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
