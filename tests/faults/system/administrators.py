"""Administrators of a server: maintenance, purge, rewind and restore, at good times and bad."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.files import folder_at
from redis_state.recovery.copies import Copy
from redis_state.recovery.copies.restore import newest_fitting
from tests.faults.system.world import PARTITIONS

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_LATELY_MS = 240_000
_BACK_MAX = 3


class Administrators:
    """Their commands, run as `redis-state` runs them."""

    def __init__(self, schedule: Schedule) -> None:
        self._play = schedule

    def maintain(self) -> None:
        """One pass, with all that it can look for."""
        play = self._play
        status, said = play.lab.command("maintain", "--once", "--deep", "--orphans")
        play.lab.counters["maintenance by Python"] += 1
        if status:
            play.lab.counters["problems of maintain"] += 1
            play.world.problem(f"maintain: {said}")

    def vanished(self) -> None:
        """Twice, with time between, as a service does. The query was in use all the time."""
        play = self._play
        if play.held:
            return
        if play.dice.one_in(2):
            self._use_for_long()
        if play.idle_for_long:
            return
        gen = play.python.gen() if play.python.idle_ms > 30 * _DAY_MS else None
        for _ in range(2):
            status, said = play.lab.command(
                "maintain", "--once", "--vanished-after", "30d", "--yes"
            )
            if status:
                play.world.problem(f"maintain --vanished-after: {said}")
            play.people.let_pass(_HOUR_MS)
        play.lab.counters["searches for vanished checkpoints"] += 1
        if gen is not None:
            self._call_back(gen)
        if play.forks is not None:
            play.forks.recall_unused()
        play.python.look()
        if play.processors is not None:
            # Its checkpoint may have been purged, and can be recalled for a day.
            play.processors.in_peace()

    def _use_for_long(self) -> None:
        """Stops the query after a run that began long ago and committed a short time ago."""
        play = self._play
        if not any(job.alive for job in play.jobs):
            return
        play.people.let_months_pass()
        play.work_for_a_batch()
        if play.stop_all():
            play.lab.counters["long runs ended before a search"] += not play.idle_for_long

    def _call_back(self, gen: str) -> None:
        """Recalls a checkpoint that was purged after long disuse."""
        play = self._play
        if play.forks is not None and not play.lab.redis("HEXISTS", keys.query(gen), "purged"):
            return  # Forks or kept versions need it.
        status, said = play.lab.command("purge", "--gen", gen, "--recall")
        play.lab.counters["vanished checkpoints called back"] += 1
        play.python.idle_ms = 0
        if status:
            play.world.problem(f"purge --recall: {said}")

    def refused(self) -> None:
        """Somebody takes the wrong checkpoint: it is in use."""
        play = self._play
        gen = play.people.gen()
        if gen is None or not play.people.is_shown():
            return
        if not play.lab.redis("EXISTS", f"{{rs:{gen}}}:q"):
            return
        place = ("--checkpoint", str(play.folder), "--yes")
        commands: list[tuple[str, ...]] = [
            ("purge", "--gen", gen, "--yes"),
            ("purge", "--gen", gen, "--yes"),
        ]
        if play.world.logged:
            last = len(play.world.logged) - 1
            commands.append(("rewind", *place, "--to-batch", str(last)))
        if self._copy() is not None:
            commands += [("restore", *place)] * 3
        words = play.dice.choice(commands)
        status, said = play.lab.command(*words)
        play.lab.counters[f"{words[0]} of a query in use"] += 1
        if not status:
            play.lab.counters["taken in use"] += 1
            play.world.problem(f"{words[0]} of a query in use: {said}")

    def purge_beside(self, key: tuple[str, str]) -> None:
        """Purges the query while a task lists it, and recalls it.

        Args:
            key: Process and thread of the task, which is held before it writes the entry.
        """
        play = self._play
        gen = play.people.gen()
        if gen is None:
            return
        play.lab.counters["purges while a task lists the query"] += 1
        status, said = play.lab.command("purge", "--gen", gen, "--yes", "--force")
        if status:
            play.world.problem(f"purge --force: {said}")
        play.is_purged = True
        play.proceed(key)
        play.is_purged = False
        names = play.lab.redis("HKEYS", keys.checkpoints(tenant=""))
        if left := [name for name in names if name.startswith(gen.encode())]:
            play.lab.counters["listed after a purge"] += 1
            play.world.problem(f"a purged query is listed: {left}")
        status, said = play.lab.command("purge", "--gen", gen, "--recall")
        if status:
            play.world.problem(f"purge --recall: {said}")

    def purge_of_python(self) -> None:
        """Attempts to purge Python stores in use, whose process shows only its commits."""
        play = self._play
        play.python.write()
        gen = play.python.gen()
        assert gen is not None
        status, said = play.lab.command("purge", "--gen", gen, "--yes")
        play.lab.counters["purge of Python's in use"] += 1
        if not status:
            play.lab.counters["taken in use"] += 1
            play.world.problem(f"stores of Python in use were purged: {said}")

    # ---- a query that is stopped ------------------------------------------------------------

    def rewind(self, *, by: int | None = None) -> None:
        """Stops the query, and rewinds it by a number of batches; by default a random one."""
        play = self._play
        last = len(play.world.logged) - 1
        oldest = max(0, last - _BACK_MAX + 1, play.world.oldest - 1)
        if last < oldest or not play.stop_all():
            return
        to_batch = play.dice.between(oldest, last) if by is None else max(oldest, last - by)
        words = ("rewind", "--checkpoint", str(play.folder), "--to-batch", str(to_batch), "--yes")
        status, said = play.lab.command(*words, *self._forced())
        play.lab.counters["rewinds"] += 1
        if status:
            play.lab.counters["false errors"] += 1
            play.world.problem(f"rewind: {said}")
        play.world.go_back(to_batch)

    def restore(self) -> None:
        """A server loses all of it, or a partition; a copy brings it back."""
        play = self._play
        if self._copy() is None or not play.stop_all():
            return
        gen, copy = play.people.gen(), self._copy()
        if gen is None or copy is None:
            return
        if play.dice.one_in(2) and copy.version >= play.world.oldest:
            self._lose(f"{{rs:{gen}:0:{play.dice.below(PARTITIONS)}:")
            if play.forks is not None:
                play.forks.partition_lost()
            force = self._forced()
        else:
            if play.has_python:
                play.python.write()
            play.lab.redis("FLUSHDB")
            play.python.server_lost_all()
            if play.processors is not None:
                play.processors.server_lost_all()
            if play.forks is not None:
                play.forks.server_lost_all()
            force = ()
        words = ("restore", "--checkpoint", str(play.folder), "--yes", *force)
        status, said = play.lab.command(*words)
        play.lab.counters["restores"] += 1
        told = re.search(r"batch (\d+) is the newest now", said)
        if status or told is None or int(told[1]) != copy.batch:
            play.lab.counters["false errors"] += 1
            play.world.problem(f"restore of batch {copy.batch}: {said}")
        play.world.restored(copy.batch)

    def _copy(self) -> Copy | None:
        return (
            newest_fitting(folder_at(str(self._play.folder))) if self._play.world.logged else None
        )

    def _lose(self, beginning: str) -> None:
        lost = [name for name in self._play.lab.key_names() if name.startswith(beginning.encode())]
        if lost:
            self._play.lab.redis("UNLINK", *lost)

    def _forced(self) -> tuple[str, ...]:
        """Either wait for so long that nothing speaks of life, or know better."""
        if self._play.dice.one_in(2):
            return ("--force",)
        self._play.people.let_pass(_LATELY_MS)
        return ()

    # ---- the end ----------------------------------------------------------------------------

    def purge_all(self) -> None:
        """The checkpoints are given up: no key of them stays."""
        play = self._play
        # A name of Python's stays known, unless its checkpoint goes at once.
        processors = play.processors.gens() if play.processors is not None else []
        for gen, more in (
            (play.people.gen(), ()),
            (play.python.gen(), ("--now",)),
            *((gen, ("--now",)) for gen in processors),
        ):
            if gen is None or not play.lab.redis("EXISTS", f"{{rs:{gen}}}:q"):
                continue
            words = ("purge", "--gen", gen, "--yes", *more)
            status, said = play.lab.command(*words)
            if status:
                status, said = play.lab.command(*words, "--force")
            if status:
                play.world.problem(f"purge: {said}")
        play.lab.jump(2 * _DAY_MS)
        # The list of folders whose files `purge --files` deletes stays until then.
        folders = keys.purged_files().encode()
        status, said = play.lab.command("purge", "--files")
        if status or not all(gen.decode() in said for gen in play.lab.redis("HKEYS", folders)):
            play.world.problem(f"purge --files: {said}")
        left = [name for name in play.lab.key_names() if name != folders]
        if left:
            play.lab.counters["keys left"] += 1
            play.world.problem(f"keys left: {left}")
