"""`python -m tests.faults.system`: schedules over whole processes, and their mutants."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from tests.bench.page import replace_section
from tests.faults.oracle.results import Results
from tests.faults.system.campaign import (
    FORBIDDEN,
    MUTANT_SEEDS,
    REQUIRED,
    complaints,
    groups,
    mutants,
)
from tests.faults.system.mutants import MUTANTS

COMMAND = "python -m tests.faults.system"
_CODE = ("redis_state", "jvm-adapter", "tests/faults/oracle", "tests/faults/system")


def main(words: list[str] | None = None) -> int:
    """Run what the arguments ask for; 0 if no rule was broken and every mutant was found."""
    asked = _arguments().parse_args(words)
    # Ends as Control-C does, so that no server is left over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    first = 1 if asked.seed is None else asked.seed
    count = asked.schedules or (20_000 if asked.seed is None else 1)
    found = Results.of(Path(asked.results) if asked.results else None, _CODE)
    _run_schedules(found, range(first, first + count), asked.jobs)
    if asked.seed is None and not asked.without_mutants:
        _run_mutants(found, asked.jobs)
    wrong = complaints(found.result)
    if asked.seed is not None:
        wrong = [str(one) for one in found.result.failures]
    wrong += [f"mutant {name} lives" for name, seed in found.verdicts.items() if seed is None]
    text = _table(found)
    print(text)
    if asked.write and not wrong:
        page = Path(asked.write)
        page.write_text(replace_section(page.read_text(), COMMAND, text))
    for complaint in wrong:
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if wrong else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument(
        "--schedules", type=int, metavar="N", help="how many schedules (default 20000)"
    )
    parser.add_argument(
        "--seed", type=int, help="the first seed; without --schedules, replay this one only"
    )
    parser.add_argument("--without-mutants", action="store_true", help="schedules only")
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


def _tell(text: str) -> None:
    print(f"{datetime.now(timezone.utc):%H:%M:%S} {text}", flush=True)


def _run_schedules(found: Results, seeds: range, jobs: int | None) -> None:
    missing = found.missing(seeds)
    done, begun = 0, time.monotonic()
    for group in groups(missing, jobs=jobs):
        now = time.monotonic()
        found.add(group, now - begun)
        begun = now
        done += len(group.seeds)
        for failure in group.result.failures:
            _tell(f"FAILED {failure}")
        _tell(f"schedules: {done} of {len(missing)}")


def _run_mutants(found: Results, jobs: int | None) -> None:
    missing = [one.name for one in MUTANTS if one.name not in found.verdicts]
    begun = time.monotonic()
    for verdict in mutants(missing, jobs=jobs):
        now = time.monotonic()
        found.add_verdict(verdict, now - begun)
        begun = now
        _tell(f"mutant {verdict.name}: {verdict.failure or 'not found'}")


def _table(found: Results) -> str:
    met = found.result.counters
    today = datetime.now(timezone.utc).date()
    seeds = ", ".join(f"{first} to {last}" for first, last in found.spans)
    lines = [
        f"{today}: {met['schedules']:,} schedules, seeds {seeds}; {met['batches']:,} batches, "
        f"{met['commits']:,} commits, {met['loads compared']:,} loads compared, "
        f"in {found.seconds / 60:.0f} minutes.",
        "",
        "| counter | must be | was |",
        "|---|---|---|",
        *(f"| {name} | 0 | {met[name]:,} |" for name in FORBIDDEN),
        *(f"| {name} | above 0 | {met[name]:,} |" for name in REQUIRED),
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
