"""Directed walks of copies: rules of docs/format.md, section 11, that seeds break too seldom.

Each rule is about a driver that sleeps amid a copy at the wrong moment, for the wrong time. So the
order of the steps is given here, and only what is committed is left to the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from redis_state.backend.transport import Transport
from tests.faults.oracle.copier import GRACE_MS, HALF_MS, KEPT
from tests.faults.oracle.copy_schedule import CopySchedule, Driver
from tests.faults.oracle.file_schedule import FileSchedule
from tests.faults.oracle.pin_world import DAY_MS

_MINUTE_MS = 60_000
_KNOWS, _HAS_FILES, _HAS_MANIFEST = "knows the copies", "has its files", "has its manifest"
_DELETES = "deletes files"
_BEGIN_COMMITS = 8
"""So many that one more delta does not change all rows."""


class CopyWalks(CopySchedule):
    """One checkpoint, and one walk after the other, without faults."""

    def __init__(self, seed: int, server: Transport, url: str, counters: Counter[str]) -> None:
        super().__init__(seed, server, url, counters)
        self.files.kind = "prompt"
        self.network.faults = False

    def play(self) -> None:
        """Walks until a rule was broken; else judges what is left."""
        for _ in range(_BEGIN_COMMITS):
            self._commit()
        for walk in (
            self._place_of_a_removed_copy,
            self._copy_that_comes_amid_a_deletion,
            self._file_of_a_restored_partition,
            self._copy_slower_than_the_grace,
            self._deletion_amid_a_copy,
            self._copy_beside_the_newest,
        ):
            walk()
            self._rest()
            self.counters["walks of copies"] += 1
            if self.problems:
                return
        self.end()

    # ---- walks ---------------------------------------------------------------------------------

    def _place_of_a_removed_copy(self) -> None:
        """A driver knows a copy, and sleeps until its successor has removed that."""
        self._commit()
        self._snapshot()
        self._commit()
        self._copy()
        sleeper = self._successor()
        self._begin(sleeper, until=_KNOWS)
        self._successor()
        self._newer_copies()
        self._finish(sleeper)

    def _copy_that_comes_amid_a_deletion(self) -> None:
        """A driver has listed the manifests; those are replaced before it reads them."""
        sleeper = self._with_old_files()
        for _ in range(KEPT):
            self._commit()
            self._copy()
        self._sleep(GRACE_MS + _MINUTE_MS)
        self.files.listed = ""
        self._until(sleeper, lambda: self.files.listed == self.copies.folder.path)
        for _ in range(KEPT - 1):
            self._commit()
            self._begin(self.drivers[-1], until=_HAS_MANIFEST)
            self._kill_copy(self.drivers[-1])
            self._successor()
        deleter = self.drivers[-1]
        self._begin(deleter, until=_HAS_MANIFEST)
        self._until(deleter, lambda: len(self.files.complete()) == KEPT)
        self._begin_again(sleeper, until=_HAS_MANIFEST)
        self._finish(deleter)
        self._finish(sleeper)

    def _file_of_a_restored_partition(self) -> None:
        """A restored partition drops its copy's files; the server may still go back to them."""
        self._commit()
        self._copy()
        self._lose(self._root)
        self._successor()
        self._newer_copies()
        self._sleep(GRACE_MS + _MINUTE_MS)
        self._commit()
        self._copy()

    def _copy_slower_than_the_grace(self) -> None:
        """A driver tries again with files of a failed copy, and sleeps until they are deleted."""
        self._commit()
        self._snapshot()
        sleeper = self._successor()
        self._begin(sleeper, until=_HAS_FILES)
        self.files.fails = True
        self._finish(sleeper)
        self._begin(sleeper, until=_KNOWS)
        self._successor()
        self._newer_copies()
        self._sleep(GRACE_MS + _MINUTE_MS)
        for _ in range(KEPT + 1):
            # Each lists the folder for its first copy, and forgets what is not there.
            self._successor()
            self._newer_copies()
        self._finish(sleeper)

    def _deletion_amid_a_copy(self) -> None:
        """A driver finishes its copy between the choice of the files to delete and the deletion."""
        sleeper = self._with_old_files()
        self._sleep(GRACE_MS + _MINUTE_MS)
        self._commit()
        deleter = self.drivers[-1]
        self._begin(deleter, until=_DELETES)
        self._finish(sleeper)
        self._finish(deleter)

    def _copy_beside_the_newest(self) -> None:
        """A copy beside the two newest is removed; these do not know what it named until now."""
        self._commit()
        sleeper = self._with_files(self._successor())
        remover = self._successor()
        self._begin(remover, until=_KNOWS)
        self._successor()
        self._sleep(_MINUTE_MS)
        for _ in range(KEPT):
            self._commit()
            self._copy()
        self._sleep(HALF_MS - 5 * _MINUTE_MS)
        self._begin_again(sleeper, until=_HAS_MANIFEST)
        self._kill_copy(sleeper)
        self._sleep(HALF_MS + 2 * _MINUTE_MS)
        self._finish(remover)
        self._sleep(5 * _MINUTE_MS)
        self._commit()
        self._copy()

    # ---- steps ---------------------------------------------------------------------------------

    def _with_old_files(self) -> Driver:
        """A driver that sleeps with its files, all its own, which a copy of another has listed."""
        self._commit()
        self._snapshot()
        sleeper = self._with_files(self._successor())
        self._successor()
        self._snapshot()
        self._commit()
        self._sleep(_MINUTE_MS)
        self._copy()
        return sleeper

    def _with_files(self, driver: Driver) -> Driver:
        """A driver begins a copy, and sleeps before it reads its files back."""
        if not self.problems:
            self.make_copy(driver)
            self._until(driver, lambda: self.files.has_written(driver))
        return driver

    def _newer_copies(self) -> None:
        """As many copies as stay, of versions over a newer snapshot, and one more."""
        for _ in range(KEPT + 1):
            self._commit()
            self._snapshot()
            self._commit()
            self._copy()

    def _commit(self) -> None:
        self._alone(partial(self.attempt, self._root, alone=True))

    def _snapshot(self) -> None:
        self._alone(partial(self.maintain, self._root, retained=0))

    def _successor(self) -> Driver:
        """Starts the next driver, which holds the partition from its first commit on."""
        self.restart(self._root, 0)
        self._commit()
        self._commit()
        return self.drivers[-1]

    def _copy(self) -> None:
        """The newest driver makes a copy."""
        self._begin(self.drivers[-1], until="")

    def _alone(self, begin: Callable[[], None]) -> None:
        if self.problems:
            return
        begin()
        self._act(self.network.actors[-1], until="")

    def _begin(self, driver: Driver, *, until: str) -> None:
        if not self.problems:
            self.make_copy(driver)
            self._begin_again(driver, until=until)

    def _begin_again(self, driver: Driver, *, until: str) -> None:
        if driver.actor in self.network.actors and not self.problems:
            self._act(driver.actor, until=until)

    def _until(self, driver: Driver, is_met: Callable[[], bool]) -> None:
        """A driver goes on with its copy, exchange by exchange."""
        actors, actor = self.network.actors, driver.actor
        others = [one for one in actors if one is not actor]
        actors[:] = [one for one in actors if one is actor]
        while actors and not is_met() and not self.problems:
            FileSchedule.step(self)
        actors += others

    def _kill_copy(self, driver: Driver) -> None:
        assert driver.actor is not None
        driver.actor.killed = True
        self._finish(driver)

    def _finish(self, driver: Driver) -> None:
        self._begin_again(driver, until="")

    def _sleep(self, ms: int) -> None:
        if self.problems:
            return
        self.world.pass_by(ms)
        self.age_notes(ms)
        self.world.judge()
        self.now_ms += ms
        self.files.settle()

    def _rest(self) -> None:
        """Everybody comes to an end, and what the walk left is deleted."""
        for driver in self.drivers:
            self._finish(driver)
        self._sleep(2 * DAY_MS)
