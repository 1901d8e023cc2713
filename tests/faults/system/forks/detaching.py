"""Forks that get snapshots of their own, so that their parents end their pins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.faults.system.forks import rules
from tests.faults.system.forks.forked import Fork, ForkedQuery, ForkedStore
from tests.faults.system.forks.making import COMPLETE, Making

if TYPE_CHECKING:
    from tests.faults.system.forks.play import Forks

_GRACE_MS = 24 * 3_600_000
_HOUR_MS = 3_600_000


class Detaching:
    """Detaches forks of a schedule."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._making = Making(forks.play, "detaches")

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        """Steps to choose from."""
        return (self._detach,)

    def _detach(self) -> None:
        """The command again, with --detach; later the parent needs nothing for the fork."""
        forks = self._forks
        attached = [one for one in forks.every() if one.of]
        if not attached:
            return
        one = forks.dice.choice(attached)
        if isinstance(one, ForkedQuery) and forks.dice.one_in(2):
            one.stop()
        told = self._making.run([*one.words, "--detach"], self._beside(one))
        if told is None or forks.play.world.problems:
            self._looked_at(one)
            return
        if COMPLETE in told[1]:
            # It was detached before, and maintenance has ended the pins since.
            if left := rules.foreign(forks.lab.server, one.ids):
                forks.wrong(f"{told[1]} It names {left} foreign segments.", "false errors")
            one.of = ""
            return
        pinned = "others need segments" in told[1] and rules.owners_of(forks.lab.server, one.ids)
        forks.lab.counters["detaches refused for pins"] += bool(told[0] and pinned)
        if told[0] and not pinned and "its query writes at the same time" not in told[1]:
            forks.wrong(f"{' '.join(one.words)} --detach: {told[1]}", "false errors")
            return
        self._looked_at(one)
        if not told[0] and not forks.play.world.problems:
            forks.lab.counters["forks detached"] += 1
            self._unpinned(one)

    def _beside(self, one: Fork) -> Callable[[], None]:
        """The fork goes on meanwhile, or its parent does."""
        if isinstance(one, ForkedStore):
            return one.write
        beside = self._forks.beside(self._forks.play)

        def act() -> None:
            if self._forks.dice.one_in(2):
                one.go_on(20)
            else:
                beside()

        return act

    def _looked_at(self, one: Fork) -> None:
        """The fork reads as before, as far as its versions are retained."""
        if self._forks.play.world.problems:
            return
        if isinstance(one, ForkedQuery):
            one.world.only_newest()
            one.read()
        else:
            one.look()

    def _unpinned(self, one: Fork) -> None:
        """The parent keeps its pins for a day after the last foreign segment, and no longer."""
        forks = self._forks
        if left := rules.foreign(forks.lab.server, one.ids):
            forks.wrong(f"a detached fork names {left} foreign segments", "rules of pins broken")
            return
        gen = one.gen if isinstance(one, ForkedQuery) else one.gen() or ""
        parents = [id_.of_gen(one.of) for id_ in one.ids]
        people, maintain = forks.play.people, forks.play.administrators.maintain
        if forks.play.held:
            return
        maintain()
        people.idle(_GRACE_MS - 2 * _HOUR_MS)
        maintain()
        if gen not in rules.owners_of(forks.lab.server, parents):
            forks.wrong("the pins of a detached fork ended within its day", "rules of pins broken")
        people.idle(3 * _HOUR_MS)
        maintain()
        if gen in rules.owners_of(forks.lab.server, parents):
            forks.wrong("a fork that needs nothing is pinned", "rules of pins broken")
        one.of = ""
        forks.lab.counters["pins of detached forks ended"] += 1
