"""`python -m tests.faults.day`: a day of queries that come, are struck, and go; what grows?

An hour is a run of a query of each operator family, with the checks of the kill runs. Something
strikes it; driver and executors are struck in the first third of the day alone, since what later
ones use is compared from hour to hour. Then a version is kept, a fork begins, one query goes back
by a batch and runs it again, all is maintained, and the queries of the hour before are purged. Time
is simulated: the expiries of all keys are brought forward by the rest of the hour.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from redis_state import connect
from redis_state.cli.main import main as redis_state
from tests.bench.page import replace_section
from tests.faults.feed import FAMILIES
from tests.faults.job import MORE
from tests.faults.rig import Rig, Run
from tests.faults.soak import WARM_UP, trends
from tests.faults.strikes import LINES, PROCESSES, Plan, strike
from tests.faults.usage import application_figures, server_figures
from tests.support.capacity import SimulatedTime

COMMAND = "python -m tests.faults.day"
HOURS = 24
BATCHES = 3
_HOUR_MS = 3_600_000
_LATE = ("driver killed", "driver stopped", "driver replaced while it slept", "executor killed",
         "executor stopped")  # fmt: skip
_REWOUND = "aggregation"
_FORKED = "session windows"
_KEPT = "deduplication"
# What has an expiry because somebody is alive is renewed in real time.
_ALIVE = ("*}:i:*", "*:x")
_APPLICATION = {
    "settings": {
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "100",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.driver.memory": "1g",
    },
    "options": {"copy_every_batches": "2"},
    "ttl": dict.fromkeys(("aggregation", "deduplication", "applyInPandasWithState"), "30d"),
}


@dataclass
class Day:
    """Counts and figures of the hours so far."""

    samples: list[dict[str, float]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    complaints: list[str] = field(default_factory=list)


class Hours:
    """The hours of a day on one rig."""

    def __init__(self, rig: Rig, hours: int, seed: int) -> None:
        self._rig = rig
        self._hours = hours
        self._seed = seed
        self._before: list[str] = []
        self.day = Day()

    def play(self, hour: int) -> None:
        """Plays an hour, and adds its figures."""
        run = Run(
            self._rig,
            self._seed + hour,
            families=FAMILIES,
            batches=BATCHES,
            checkpoint_format=1 + hour % 2,
        )
        self.day.done.update(strike(run, self._plan(hour)))
        mine = {family: run.folder / "checkpoints" / family for family in FAMILIES}
        self._operate(run, mine, hour)
        self.day.complaints += [f"hour {hour}: {text}" for text in run.complaints()]
        self.day.batches += run.lines()
        self._command("maintain", "--once", "--orphans")
        for gen in self._before:
            self._command("purge", "--gen", gen, "--now", "--yes", "--force")
            self.day.done["purge"] += 1
        self._before = self._checkpoints()
        for old in self._rig.scratch.glob("run-*"):
            if old != run.folder:
                shutil.rmtree(old, ignore_errors=True)
        self._pass_time()
        self._sample()

    def _plan(self, hour: int) -> Plan:
        """A strike on a process and one on the line."""
        early = hour < self._hours * WARM_UP
        names = [name for name in PROCESSES if early or name not in _LATE]
        lines = list(LINES)
        dice = random.Random(self._seed + hour)
        chosen = [names[hour % len(names)], lines[hour % len(lines)]]
        last = (BATCHES - 1) * len(FAMILIES)
        at = sorted(dice.randint(1, last) for _ in chosen)
        struck = zip(at, (0.1, 0.1), chosen, strict=True)
        return Plan(self._seed + hour, BATCHES, 1 + hour % 2, tuple(struck))

    def _operate(self, run: Run, mine: dict[str, Path], hour: int) -> None:
        gen = json.loads((mine[_KEPT] / "state" / "_redis_state").read_text())["gen"]
        self._command("keep", gen, "--name", f"hour-{hour}", "--for", "2h")
        fork = str(run.folder / "fork")
        self._command("fork", str(mine[_FORKED]), "--to", fork)
        rewound = str(mine[_REWOUND])
        newest = max(run.outputs(_REWOUND))
        if newest > 0:
            back = ["--checkpoint", rewound, "--to-batch", str(newest - 1), "--yes", "--force"]
            self._command("rewind", *back)
            lines = run.lines()
            (run.folder / f"done-{self._rig.driver.pid}").unlink(missing_ok=True)
            run.start()
            run.wait("the rewound batch", lambda: run.lines() > lines)
            run.finish()
        self.day.done.update(("keep", "fork", "rewind"))
        copies = "state/_redis_state_copies/*"
        self.day.done["copy"] += sum(1 for of in mine.values() for _ in of.glob(copies))

    def _command(self, *words: str) -> None:
        with redirect_stdout(io.StringIO()):
            status = redis_state([*words, "--url", self._rig.server.url])
        if status:
            self.day.complaints.append(f"`redis-state {' '.join(words)}` ended with {status}")

    def _checkpoints(self) -> list[str]:
        """Ids of all checkpoints of the server, those of forks and of Python stores included."""
        with connect(self._rig.server.url) as reader:
            return [query.gen for query in reader.status()]

    def _pass_time(self) -> None:
        with self._rig.server.client() as client:
            SimulatedTime(client).pass_all_ms(_HOUR_MS, but=_ALIVE)

    def _sample(self) -> None:
        with self._rig.server.client() as client:
            found = dict(server_figures(client))
        found |= dict(application_figures(self._rig.driver))
        found["files of the driver's folder"] = float(
            sum(1 for path in self._rig.scratch.rglob("*") if path.is_file())
        )
        self.day.samples.append(found)


def table(day: Day, minutes: float) -> tuple[str, bool]:
    """The result, as it stands on a page, and whether everything is as it has to be."""
    today = datetime.now(timezone.utc).date()
    hours = len(day.samples)
    counted = day.samples[round(hours * WARM_UP) :]
    good = not day.complaints and bool(day.batches)
    told = ", ".join(f"{name} {count}" for name, count in sorted(day.done.items()))
    lines = [
        f"{today}: {hours} simulated hours in {minutes:.0f} minutes, {day.batches:,} batches "
        f"compared, {len(day.complaints)} complaints: {told}. Figures of the last "
        f"{len(counted)} hours.",
        "",
    ]
    rows, flat = trends(counted)
    return "\n".join([*lines, *rows]), good and flat


def main(words: list[str] | None = None) -> int:
    """Play the hours; 0 if no row was wrong and everything is flat."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--hours", type=int, default=HOURS, help=f"how many (default {HOURS})")
    parser.add_argument("--seed", type=int, default=1, help="decides rows and faults (default 1)")
    parser.add_argument("--write", metavar="PAGE", help="put the table on this page")
    asked = parser.parse_args(words)
    if not 1 <= asked.hours <= 1_000:
        parser.error("--hours is 1 to 1000")
    os.environ[MORE] = json.dumps(_APPLICATION)
    begun = time.monotonic()
    with Rig() as rig:
        hours = Hours(rig, asked.hours, asked.seed)
        for hour in range(asked.hours):
            try:
                hours.play(hour)
            except (AssertionError, TimeoutError) as error:
                hours.day.complaints.append(f"hour {hour}: {error}")
                break
            latest = {name: round(value) for name, value in hours.day.samples[-1].items()}
            print(f"{time.monotonic() - begun:5.0f} s, hour {hour + 1}: {latest}", flush=True)
    text, good = table(hours.day, (time.monotonic() - begun) / 60)
    print(text)
    for complaint in hours.day.complaints:
        print(f"FAILED {complaint}", file=sys.stderr)
    if asked.write and not hours.day.complaints:
        page = Path(asked.write)
        page.write_text(replace_section(page.read_text(), COMMAND, text))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
