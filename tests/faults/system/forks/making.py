"""Commands that make and detach forks: at once, killed, cut off, slow, or never finished."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.faults.system.forks import points

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_POINTS_MAX = 90
_STRIDE_MAX = 7
_SLOW_MS = 25 * 3_600_000

COMPLETE = "that fork is complete already"

Told = tuple[int, str]
Way = Callable[[list[str], Callable[[], None]], Told | None]


class Making:
    """Runs commands that can be repeated, and counts what happens to them.

    Attributes:
        kind: What they make, in counters.
    """

    def __init__(self, play: Schedule, kind: str) -> None:
        self._play = play
        self._lab, self._dice = play.lab, play.dice
        self.kind = kind

    def run(
        self,
        words: list[str],
        beside: Callable[[], None],
        owner: Callable[[], str] | None = None,
    ) -> Told | None:
        """Runs the command in one of several ways; `None` if it was given up.

        Args:
            beside: What the others do meanwhile.
            owner: Returns the owner of the pins that the command makes; `None` if it makes none.
        """
        often = self.at_once, self.at_once
        ways: list[Way] = [*often, self.killed, self.cut_off, self.amid, self.slow, self.given_up]
        if owner is not None:
            ways.append(partial(self._renewed, owner))
        return self._dice.choice(ways)(words, beside)

    def at_once(self, words: list[str], _beside: Callable[[], None]) -> Told | None:
        """Runs the command without any fault."""
        return self._lab.command(*words)

    def killed(self, words: list[str], beside: Callable[[], None]) -> Told | None:
        """Killed at one point after the other, and repeated each time."""
        number = self._dice.below(_STRIDE_MAX)
        while True:
            try:
                with points.at(number, points.kill):
                    return self._again(words)
            except points.CutError:
                self._count("killed")
            number += self._dice.between(1, _STRIDE_MAX)
            if self._dice.one_in(6):
                beside()
            if self._play.world.problems:
                return None

    def cut_off(self, words: list[str], _beside: Callable[[], None]) -> Told | None:
        """Loses its connections at a point, and is repeated."""
        with points.at(self._dice.below(_POINTS_MAX), points.cut_off, lasts=True) as point:
            told = self._lab.command(*words)
        if not point.reached:
            return told
        self._count("cut off from the server")
        return self._again(words)

    def amid(self, words: list[str], beside: Callable[[], None]) -> Told | None:
        """The others do something at a point of it."""
        with points.at(self._dice.below(_POINTS_MAX), beside) as point:
            told = self._lab.command(*words)
        self._lab.counters[f"others go on amid {self.kind}"] += point.reached
        return told

    def slow(self, words: list[str], _beside: Callable[[], None]) -> Told | None:
        """Sleeps for more than a day at a point, while maintenance passes."""

        def sleep() -> None:
            if self._play.held:
                return
            self._play.people.idle(_SLOW_MS)
            self._lab.command("maintain", "--once")

        with points.at(self._dice.below(_POINTS_MAX), sleep) as point:
            told = self._lab.command(*words)
        self._lab.counters[f"a day amid {self.kind}"] += point.reached
        # What expired meanwhile is made again by the same command.
        return self._again(words) if told[0] and point.reached else told

    def _renewed(
        self, owner: Callable[[], str], words: list[str], _beside: Callable[[], None]
    ) -> Told | None:
        """Killed behind its first pins, and repeated before maintenance ends them, expired."""
        try:
            with points.before("creating the partitions of a fork", points.kill):
                return self._lab.command(*words)
        except points.CutError:
            self._count("killed")
        if self._play.held:
            return self._again(words)
        self._play.people.idle(_SLOW_MS)
        told: list[Told] = []
        with points.before("ending a pin", lambda: told.append(self._again(words)), about=owner()):
            self._lab.command("maintain", "--once")
        if not told:
            self._lab.counters["false errors"] += 1
            self._play.world.problem(f"maintenance ends no expired pin of {' '.join(words)}")
            return None
        self._count("pinned anew before maintenance ends their pins")
        return told[0]

    def given_up(self, words: list[str], _beside: Callable[[], None]) -> Told | None:
        """Killed, and never finished; unless it was done before."""
        try:
            with points.at(self._dice.below(_POINTS_MAX), points.kill):
                return self._lab.command(*words)
        except points.CutError:
            self._count("given up")
        return None

    def _again(self, words: list[str]) -> Told:
        """The command may have been interrupted behind its last step."""
        status, said = self._lab.command(*words)
        return (0 if COMPLETE in said else status), said

    def _count(self, what: str) -> None:
        self._lab.counters[f"{self.kind} {what}"] += 1
