"""Drivers of one query and the logs that they share, as Spark writes and checks them.

An entry of the offset log (before a batch) and of the commit log (behind it) is created if it is
absent; a driver that finds the entry of somebody else there ends with Spark's
CONCURRENT_STREAM_LOG_UPDATE. A driver looks at the logs when it starts, and then goes by what it
writes: one that was started beside a living one may repeat a batch that the other left long ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.oracle.runs import Run


@dataclass
class Driver:
    """Position of one driver.

    Attributes:
        at: The version that its batch goes on from.
        planned: Whether it counts on the entry of the offset log: it wrote it, or repeats it.
    """

    at: int
    planned: bool


@dataclass
class Drivers:
    """Living drivers, in the order in which they started.

    Attributes:
        alive: By their runs.
        planned: The newest batch of the offset log.
        ran: Runs that began a batch of the offset log, by its number.
        lost: Runs whose batch was logged by another one.
    """

    alive: dict[Run, Driver] = field(default_factory=dict)
    planned: int = -1
    ran: dict[int, set[Run]] = field(default_factory=dict)
    lost: set[Run] = field(default_factory=set)

    def __contains__(self, run: Run | None) -> bool:
        return run in self.alive

    def __iter__(self) -> Iterator[Run]:
        return iter(tuple(self.alive))

    def start(self, run: Run, at: int) -> None:
        """One more looks at the logs, the newest version of which is `at`."""
        self.alive[run] = Driver(at, self.planned >= at)

    def rewind(self, at: int) -> None:
        """The entries of this batch and of later ones are moved away."""
        self.planned = min(self.planned, at - 1)
        self.ran = {batch: runs for batch, runs in self.ran.items() if batch < at}

    def end(self, run: Run) -> None:
        """Ends a driver that crashes, or finds another driver's entry."""
        self.alive.pop(run, None)

    def begins_batch(self, run: Run) -> bool:
        """Returns whether the run has or gets the offset log's entry; ends its driver if not."""
        driver = self.alive[run]
        if not driver.planned and self.planned >= driver.at:
            self.end(run)
            return False
        driver.planned = True
        self.planned = max(self.planned, driver.at)
        self.ran.setdefault(driver.at, set()).add(run)
        return True

    def ends_batch(self, run: Run, version: int, newest: int) -> bool:
        """Returns whether the run gets the commit log's entry for the writer of this version.

        Args:
            newest: The newest version of the commit log.
        """
        driver = self.alive.get(run)
        if driver is None or driver.at != version - 1:
            return False
        if newest != driver.at:
            self.end(run)
            return False
        self.alive[run] = Driver(version, planned=False)
        beside = {one for one, other in self.alive.items() if other.at == driver.at}
        self.lost |= (beside | self.ran.get(driver.at, set())) - {run}
        return True

    def beside(self, run: Run, version: int) -> set[Run]:
        """Later runs that wrote this version too."""
        return {one for one in self.ran.get(version - 1, ()) if one.number > run.number}
