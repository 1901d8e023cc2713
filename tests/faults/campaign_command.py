"""The command of a campaign: its schedules and mutants, and a table of what they met."""

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
from tests.faults.campaign import Campaign
from tests.faults.campaign_results import Results
from tools.markdown import list_item

SCHEDULES = 20_000
_TELL_S = 30


def run(campaign: Campaign, description: str | None, words: list[str] | None = None) -> int:
    """Run what the arguments ask for; 0 if no rule was broken and every mutant was found."""
    asked = _arguments(campaign, description).parse_args(words)
    # Ends as Control-C does, so that no server is left over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    first = 1 if asked.seed is None else asked.seed
    count = asked.schedules
    if count is None:
        count = SCHEDULES if asked.seed is None else 1
    found = Results.of(Path(asked.results) if asked.results else None, campaign.code)
    if asked.seed is None and not asked.without_mutants:
        _run_mutants(campaign, found, asked.jobs)
    _run_schedules(campaign, found, range(first, first + count), asked.jobs)
    # From a given seed on some schedules are run, which need not meet all that a whole run does.
    judged = campaign.complaints if asked.seed is None else campaign.faults
    complaints = judged(found.result) + [
        f"mutant {name} lives" for name, seed in found.verdicts.items() if seed is None
    ]
    text = _table(campaign, found)
    print(text)
    if asked.write and not complaints and not campaign.complaints(found.result):
        page = Path(asked.write)
        page.write_text(replace_section(page.read_text(), campaign.command, text))
    for complaint in complaints:
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _arguments(campaign: Campaign, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=campaign.command, description=description)
    parser.add_argument(
        "--schedules", type=int, metavar="N", help=f"how many schedules (default {SCHEDULES})"
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


def _run_schedules(campaign: Campaign, found: Results, seeds: range, jobs: int | None) -> None:
    missing = found.missing(seeds)
    if not missing:
        return
    with _progress("schedules", len(missing)) as tell:
        done, begun = 0, time.monotonic()
        for group in campaign.groups(missing, jobs):
            now = time.monotonic()
            found.add(group, now - begun)
            begun = now
            done += len(group.seeds)
            for failure in group.result.failures:
                print(f"FAILED {failure}", file=sys.stderr, flush=True)
            tell(done)


def _run_mutants(campaign: Campaign, found: Results, jobs: int | None) -> None:
    missing = [one.name for one in campaign.mutants if one.name not in found.verdicts]
    if not missing:
        return
    with _progress("mutants", len(missing)) as tell:
        begun = time.monotonic()
        for done, verdict in enumerate(campaign.verdicts(missing, jobs), 1):
            now = time.monotonic()
            found.add_verdict(verdict, now - begun)
            begun = now
            tell(done)


def _table(campaign: Campaign, found: Results) -> str:
    met = found.result.counters
    today = datetime.now(timezone.utc).date()
    seeds = ", ".join(f"{first} to {last}" for first, last in found.spans)
    headline = ", ".join(f"{met[name]:,} {name}" for name in campaign.headline)
    lines = [
        f"{today}: {met['schedules']:,} schedules, seeds {seeds}; {headline}, "
        f"in {found.seconds / 60:.0f} minutes.",
        "",
        "| counter | must be | was |",
        "|---|---|---|",
        *(f"| {name} | 0 | {met[name]:,} |" for name in campaign.forbidden),
        *(f"| {name} | above 0 | {met[key]:,} |" for name, key in campaign.required.items()),
    ]
    if found.verdicts:
        ran = [one for one in campaign.mutants if one.name in found.verdicts]
        seen = [(one, found.verdicts[one.name]) for one in ran]
        lines += [
            "",
            f"Mutants, each given {campaign.mutant_seeds} schedules. "
            "The number is the seed that finds the mutant:",
            "",
            *(list_item(f"`{one.name}` ({seed or 'not found'}): {one.rule}") for one, seed in seen),
        ]
    return "\n".join(lines)
