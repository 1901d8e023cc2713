"""The folder of a schedule of copies, and the rules of docs/format.md, section 11."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.replies import time_ms
from redis_state.files import Item
from tests.faults.oracle.copier import HALF_MS, KEPT, PlayedCopy, files_in, parsed
from tests.faults.oracle.file_world import SimFiles, path_of
from tests.faults.oracle.pin_world import DAY_MS

if TYPE_CHECKING:
    from tests.faults.oracle.copy_schedule import CopySchedule

_RETRIED = 4
"""A file system's client repeats all but one in so many of the calls that are not answered."""


class JudgedFiles(SimFiles):
    """The folder of a schedule, with the rules of copies.

    Args:
        schedule: The schedule that uses it.

    Attributes:
        listed: Folder that was listed last.
        fails: Whether the next call is not answered.
    """

    def __init__(self, kind: str, schedule: CopySchedule) -> None:
        super().__init__(kind, schedule.dice, schedule.network, slow=False)
        self._schedule = schedule
        self._named_ms: dict[str, int] = {}
        self._writers: dict[str, object] = {}
        self.listed = ""
        self.fails = False

    def items(self, path: str) -> list[Item]:
        """Lists a folder, and notes that."""
        found = super().items(path)
        self.listed = path
        return found

    def has_written(self, driver: object) -> bool:
        """Returns whether a driver has written a file of copies."""
        return any(one is driver for one in self._writers.values())

    def complete(self) -> list[PlayedCopy]:
        """Returns the complete copies, past all faults."""
        begin = f"{self._schedule.copies.folder.path}/"
        some = [name for name in self.content if name.startswith(begin)]
        found = [parsed(name.removeprefix(begin), self.content[name]) for name in some]
        return [one for one in found if one is not None]

    def remove(self, path: str) -> None:
        """Removes a file, and judges what is left."""
        before = self._kept()
        self._judge_age(path)
        self._note_named()
        super().remove(path)
        self._judge_copies(f"without {path}")
        (raw,) = self._schedule.world.ask(("HGETALL", self._schedule.root.meta))
        if path in {path_of(self._schedule.root.gen, file) for file in files_in(raw)}:
            self.problems.append(f"{path} was deleted, and the partition reads from it")
        # A driver whose query was rewound meanwhile removes copies of the new timeline, too.
        if self._schedule.is_log_unchanged() and len(self._kept()) < min(KEPT, len(before)):
            self.problems.append(f"of the copies {before} only {self._kept()} are left")

    def _judge_age(self, path: str) -> None:
        """A driver may be about to name a file, and a server may go back to an older state."""
        schedule, root = self._schedule, self._schedule.root
        if not path.endswith(".copy") or path not in self.content:
            return
        age_ms = schedule.now_ms - self._named_ms[path]
        if age_ms < HALF_MS:
            self.problems.append(f"{path} was deleted {age_ms} ms after a copy had named it")
        file = path.removeprefix(path_of(root.gen, ""))
        (row,) = schedule.world.ask(("HGET", keys.files(root.id), file))
        (time,) = schedule.world.ask(("TIME",))
        state, at_ms = row.decode().split(" ")[:2] if row else ("", "0")
        if row and (state != "d" or time_ms(time) - int(at_ms) < DAY_MS):
            self.problems.append(f"{path} was deleted, and its row was {row}")

    def _note_named(self) -> None:
        """Notes when files were named last, before a copy is removed."""
        for copy in self.complete():
            for file in copy.files:
                self._named_ms[path_of(self._schedule.root.gen, file)] = self._schedule.now_ms

    def _turn(self) -> None:
        if self.fails:
            self.fails = False
            raise TimeoutError
        try:
            super()._turn()
        except TimeoutError:
            if self._dice.one_in(_RETRIED):
                raise

    def _kept(self) -> set[int]:
        log = self._schedule.root.log
        return {one.version for one in self.complete() if log.get(one.version) == one.uid}

    def _store(self, path: str, raw: bytes) -> None:
        others = {file for one in self.complete() for file in one.files}
        super()._store(path, raw)
        writer = self._schedule.network.current
        if path.endswith(".copy"):
            self._named_ms[path] = self._schedule.now_ms
            self._writers[path] = self._schedule.driver_of(writer)
        elif path.startswith("/copies/"):
            self._judge_copies(f"with {path}")
            self._judge_named(path, others)

    def _judge_named(self, path: str, others: set[str]) -> None:
        """A copy names what other copies name, and what its own driver has written."""
        driver = self._schedule.driver_of(self._schedule.network.current)
        for copy in self.complete():
            if not path.endswith(copy.name):
                continue
            for file in copy.files - others:
                if self._writers.get(path_of(self._schedule.root.gen, file)) is not driver:
                    self.problems.append(f"copy {copy.name} names {file}, which no copy names")

    def _judge_copies(self, when: str) -> None:
        """Whatever a complete copy names is there, and whole."""
        node, problem_of = self._schedule.root, self._schedule.world.file_problem
        for copy in self.complete():
            for one in copy.segments:
                problem = one.place and problem_of(node, one, one.place)
                if problem:
                    self.problems.append(f"copy {copy.name} {when}: {one.ident}: {problem}")
