"""`python -m tests.faults.kills`: many runs of real queries while what they run on is killed."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.bench.page import replace_section
from tests.faults.feed import FAMILIES
from tests.faults.rig import Rig, Run
from tests.faults.strikes import STRIKES, Plan, plan, strike

COMMAND = "python -m tests.faults.kills"
_LIMIT_RUNS = 5_000


@dataclass
class Tally:
    """Counts of all runs."""

    runs: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    given_out: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    hangs: int = 0
    complaints: list[str] = field(default_factory=list)


def play(rig: Rig, made: Plan, tally: Tally) -> None:
    """One run by its plan; after one that did not end well the next gets a new driver."""
    run = Run(
        rig,
        made.seed,
        families=FAMILIES,
        batches=made.batches,
        checkpoint_format=made.checkpoint_format,
    )
    tally.runs += 1
    found: list[str] = []
    try:
        tally.struck.update(strike(run, made))
        found = run.complaints()
        tally.wrong += len(found)
    except TimeoutError as error:
        tally.hangs += 1
        found = [str(error)]
    except AssertionError as error:
        found = [str(error)]
    for family in FAMILIES:
        tally.given_out[family] += sum(len(rows) for rows in run.outputs(family).values())
    tally.restarts.update(kind for _, kind in run.restarts())
    if found:
        rig.end_drivers()
        tally.complaints += [f"{made}: {text}" for text in found]


def table(tally: Tally, first: int, minutes: float) -> str:
    """The result, as it stands on a page."""
    today = datetime.now(timezone.utc).date()
    again = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.restarts.items()))
    needed = "above 0" if _is_long(tally) else "any"
    lines = [
        f"{today}: {tally.runs} runs, seeds {first} to {first + tally.runs - 1}, "
        f"in {minutes:.0f} minutes. Queries started again after an error: {again or 'none'}.",
        "",
        "| counter | must be | was |",
        "|---|---|---|",
        f"| lost, doubled or stale | 0 | {tally.wrong} |",
        f"| hangs | 0 | {tally.hangs} |",
        f"| other failures | 0 | {len(tally.complaints) - tally.wrong - tally.hangs} |",
        *(f"| batches compared: {name} | above 0 | {tally.given_out[name]} |" for name in FAMILIES),
        *(f"| {name} | {needed} | {tally.struck[name]} |" for name in STRIKES),
    ]
    return "\n".join(lines)


def _is_long(tally: Tally) -> bool:
    """True if there were enough runs to meet every strike."""
    return tally.runs >= len(STRIKES)


def _missing(tally: Tally) -> Iterator[str]:
    """Yields the strikes that enough runs should have met, and did not."""
    if _is_long(tally):
        yield from (f"nothing met '{name}'" for name in STRIKES if not tally.struck[name])


def main(words: list[str] | None = None) -> int:
    """Play the runs that the arguments ask for; 0 if none broke a rule."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--runs", type=int, metavar="N", help="how many runs (default 60)")
    parser.add_argument(
        "--seed", type=int, help="the first seed; without --runs, play this one again only"
    )
    parser.add_argument("--write", metavar="PAGE", help="put the table on this page")
    asked = parser.parse_args(words)
    count = 1 if asked.seed is not None and asked.runs is None else asked.runs or 60
    if not 0 < count <= _LIMIT_RUNS:
        parser.error(f"--runs is 1 to {_LIMIT_RUNS}")
    first = random.randrange(2**31) if asked.seed is None else asked.seed
    tally = Tally()
    begun = time.monotonic()
    columns = ("kill runs", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Rig() as rig, Progress(*columns) as bar:
        task = bar.add_task("runs", total=count)
        for seed in range(first, first + count):
            made = plan(seed)
            bar.console.print(str(made), highlight=False)
            play(rig, made, tally)
            bar.advance(task)
    complaints = [*tally.complaints, *_missing(tally)]
    text = table(tally, first, (time.monotonic() - begun) / 60)
    print(text)
    if asked.write and not complaints:
        page = Path(asked.write)
        page.write_text(replace_section(page.read_text(), COMMAND, text))
    for complaint in complaints:
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
