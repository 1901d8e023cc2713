"""One schedule of copies: drivers that copy, sleep and delete, and partitions that are restored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from redis_state.backend.script import script
from redis_state.backend.transport import Transport
from redis_state.files import Folder
from tests.faults.oracle.copier import (
    KEPT,
    Copier,
    CopyFolder,
    PlayedCopy,
    files_in,
)
from tests.faults.oracle.copy_world import JudgedFiles
from tests.faults.oracle.file_schedule import FileEnding, FileSchedule
from tests.faults.oracle.file_world import path_of
from tests.faults.oracle.network import Actor
from tests.faults.oracle.pin_ending import RETAINED, PinEnding
from tests.faults.oracle.pin_keeps import Task
from tests.faults.oracle.pin_world import DAY_MS, Node
from tests.faults.oracle.seeds import COPY_EVERY

_BEGIN_MS = 1_700_000_000_000
_MINUTE_MS = 60_000
_ROUNDS = 4
_STEPS, _ACTS = 400, 150
_KILLS_EVERY = 300
_PHASES = ("knows the copies", "has its files", "writes its manifest", "has its manifest")
_SLEEPS = "copy"
_AWAKE = "copy, awake"


@dataclass(eq=False)
class Driver:
    """A driver that copies; an older one may go on beside the newest.

    Attributes:
        copier: Made with its first copy.
        actor: Its copy under way; a driver has one thread for them.
        looked: Number of drivers when it looked at the log.
    """

    run_id: str
    copier: Copier | None = None
    actor: Actor | None = None
    looked: int = 0


class CopySchedule(FileSchedule):
    """One checkpoint without pins, whose folder has copies of it, too."""

    files: JudgedFiles
    _root: Node

    def __init__(self, seed: int, server: Transport, url: str, counters: Counter[str]) -> None:
        self.now_ms = _BEGIN_MS
        self.drivers: list[Driver] = []
        super().__init__(seed, server, url, counters)
        plain = self.files
        self.files = JudgedFiles(plain.kind, self)
        self.world.files = self.files
        self.share = 0
        self.network.kills_every = _KILLS_EVERY
        self._frozen: Actor | None = None
        self._frozen_for = 0
        self._in_acts = seed // COPY_EVERY % 4 != 0
        self.steps = _ACTS if self._in_acts else _STEPS

    @property
    def root(self) -> Node:
        """The checkpoint."""
        return self._root

    @property
    def copies(self) -> CopyFolder:
        """Manifests of the copies."""
        folder = Folder(self.files, f"/copies/{self._root.gen}", "copies")  # type: ignore[arg-type]  # what is used of it
        return CopyFolder(folder)

    def end(self) -> None:
        """Judges what is left."""
        CopyEnding(self).run()

    # ---- what goes on --------------------------------------------------------------------------

    def _start_something(self) -> None:
        node, chance = self._root, self.dice.below(20)
        if self._frozen:
            chance = self.dice.choice([0, 0, 7, 7, 14, 14, 14])
        if chance < 7:
            for _ in range(self.dice.choice([1, 1, 2])):
                self.attempt(node)
        elif chance < 9:
            self.maintain(node, retained=0 if self.dice.one_in(2) else None)
        elif chance < 11:
            self.restart(node, self.dice.choice([0, 0, 0, 1, 2]))
            self.attempt(node)
        elif chance < 12:
            self.move(node)
        elif chance < 13:
            self.sweep(node)
        elif chance < 14:
            self.read(node)
        else:
            older = len(self.drivers) > 1 and not self._frozen and self.dice.one_in(3)
            self.make_copy(self.drivers[-2 if older else -1])

    def _accident(self, chance: int) -> None:
        if 60 <= chance < 72 and (self._in_acts or self.dice.one_in(4)):
            self._pass_by(self.dice.between(15, 100) * _MINUTE_MS)
        elif 72 <= chance < (74 if self._in_acts else 73):
            self._lose(self._root)
        elif self._in_acts and 76 <= chance < 82:
            self._freeze(self.dice.choice(_PHASES))
        elif self._in_acts and chance == 83 and not self._frozen:
            self._overtake()
        elif self._in_acts and chance == 82:
            self._go_back()
        elif 74 <= chance < 76 and any(task.of == _SLEEPS for task in self._at_work()):
            # The next driver goes on while a copy is under way.
            self.restart(self._root, self.dice.choice([0, 0, 1, 2]))
            self.attempt(self._root)
        else:
            super()._accident(chance)

    def step(self) -> None:
        """One exchange; or one act: somebody works to the end, or to the next phase of a copy."""
        actors = self.network.actors
        if not self._in_acts or len(actors) < 2 or not self.network.faults:
            super().step()
            return
        self._frozen_for -= 1
        if self._frozen_for <= 0:
            self._frozen = None
        actor = self.dice.choice([one for one in actors if one is not self._frozen])
        # While one sleeps the others get far.
        self._act(actor, until="" if self._frozen else None)

    def _act(self, actor: Actor, *, until: str | None) -> None:
        """An actor works alone: to a phase of its copy, to the next one, or to the end (empty)."""
        actors = self.network.actors
        others = [one for one in actors if one is not actor]
        actors[:], begun = [actor], self._phase_of(actor)
        while actor in actors and not self.problems:
            super().step()
            phase = self._phase_of(actor)
            if (until and phase == until) or (until is None and phase != begun):
                break
        actors += others

    def _freeze(self, phase: str) -> None:
        """The newest driver falls asleep amid a copy, and another one takes over."""
        driver = self.drivers[-1]
        if self._frozen or driver.actor in self.network.actors:
            return
        self.make_copy(driver)
        assert driver.actor is not None
        self._act(driver.actor, until=phase)
        if driver.actor in self.network.actors:
            self._frozen, self._frozen_for = driver.actor, self.dice.between(25, 70)
            self.restart(self._root, self.dice.choice([0, 0, 0, 1, 2]))
            self.attempt(self._root)

    def _overtake(self) -> None:
        """While a driver sleeps, its successor makes copies of later versions."""
        self._freeze(_PHASES[0])
        sleeper, self._frozen = self._frozen, None
        if sleeper is None:
            return
        for _ in range(KEPT + 1):
            for begin in (
                partial(self.attempt, self._root),
                partial(self.maintain, self._root, retained=0),
                partial(self.attempt, self._root),
                partial(self.make_copy, self.drivers[-1]),
            ):
                begin()
                newest = self.network.actors[-1]
                if newest is not sleeper:
                    self._act(newest, until="")
        if self.dice.one_in(2):
            self._pass_by(self.dice.between(15, 100) * _MINUTE_MS)
        if sleeper in self.network.actors:
            self._act(sleeper, until="")

    def _go_back(self) -> None:
        """A replica takes over that knows neither of a retention nor of a copy behind it."""
        node = self._root
        self.world.copy(node)
        self.maintain(node, retained=0)
        self._act(self.network.actors[-1], until="")
        driver = self.drivers[-1]
        if driver.actor not in self.network.actors:
            self.make_copy(driver)
            assert driver.actor is not None
            self._act(driver.actor, until="")
        self._fail_over(node)

    def _phase_of(self, actor: Actor) -> str:
        copiers = [one.copier for one in self.drivers if one.actor is actor]
        return copiers[0].phase if copiers and copiers[0] else ""

    def _pass_by(self, ms: int) -> None:
        if self._frozen in self.tasks and self.tasks[self._frozen].of == _AWAKE:
            self._frozen = None
        super()._pass_by(ms)
        self.now_ms += ms
        self.files.settle()

    def _is_waited_for(self, task: Task) -> bool:
        return task.of != _SLEEPS and super()._is_waited_for(task)

    def restart(self, node: Node, back: int) -> None:
        """A new driver copies, too."""
        super().restart(node, back)
        self.drivers.append(Driver(self.runs[node].run_id))

    def _copier(self, run_id: str) -> Copier:
        node = self._root
        return Copier(
            node.id,
            run_id,
            client=self.new_client,
            copies=self.copies,
            files=self._folder_of(node.gen),
            now_ms=lambda: self.now_ms,
            hold=lambda held: self._hold(run_id, held),
            is_current=lambda version, uid: node.log.get(version) == uid,
            grace_ms=DAY_MS,
        )

    # ---- work ----------------------------------------------------------------------------------

    def make_copy(self, driver: Driver, *, alone: bool = False) -> None:
        """A driver's thread makes a copy; it may sleep for hours between two steps."""
        if driver.actor in self.network.actors:
            return
        node, copier = self._root, driver.copier or self._copier(driver.run_id)
        driver.copier = copier

        def body() -> None:
            before = copier.made, copier.removed, copier.deleted
            try:
                copier.run(self.partition(node), node.format)
            finally:
                made, removed, deleted = before
                self.counters["copies made"] += copier.made - made
                self.counters["copies removed"] += copier.removed - removed
                self.counters["files of copies deleted"] += copier.deleted - deleted

        task = Task(node, _SLEEPS, driver.run_id, disturbed=node.disturbed, alone=alone)
        self.start(task, body)
        driver.actor = self.network.actors[-1]
        driver.actor.slow = not alone and self.dice.one_in(2)

    def driver_of(self, actor: Actor | None) -> object:
        """Returns the driver whose copy an actor makes; ``None`` for any other."""
        return next((one for one in self.drivers if actor and one.actor is actor), None)

    def is_log_unchanged(self) -> bool:
        """Returns whether no driver began after the one that acts looked at the log."""
        current = self.network.current
        return any(one.actor is current and one.looked == len(self.drivers) for one in self.drivers)

    def _hold(self, run_id: str, held: bool) -> None:
        for driver in self.drivers:
            if driver.run_id == run_id:
                driver.looked = len(self.drivers)
        for task in self.tasks.values():
            if task.run == run_id and task.of in (_SLEEPS, _AWAKE):
                task.of = _AWAKE if held else _SLEEPS

    def _lose(self, node: Node) -> None:
        """The partition is lost, and restored from the newest copy of its timeline, if any."""
        fitting = [one for one in self.files.complete() if node.log.get(one.version) == one.uid]
        if not fitting and not self.dice.one_in(8):
            return
        for actor, task in self.tasks.items():
            # Drivers only read of Redis what they copy.
            actor.killed |= task.of not in (_SLEEPS, _AWAKE)
        self.network.flush()
        self.watch.sent.clear()
        names = self.world.ask(("KEYS", f"{node.meta[:-2]}*"))[0]
        self.world.ask(*(("DEL", name) for name in sorted(names)))
        node.disturbed += 1
        node.copied = None
        self.counters["partitions lost"] += 1
        if fitting:
            self._restore(node, max(fitting, key=lambda one: one.version))
        self.resync(node)
        self.world.judge()

    def _restore(self, node: Node, copy: PlayedCopy) -> None:
        args = [str(copy.version), copy.uid, str(copy.floor), str(RETAINED), str(copy.format)]
        for one in copy.segments:
            args += [one.field, one.entry.text, one.place.text if one.place else ""]
        self.network.exchange([script("restore").by_text([node.meta], *args)])
        self.counters["partitions restored from a copy"] += 1


class CopyEnding(FileEnding):
    """Final checks of a schedule of copies."""

    _schedule: CopySchedule

    def run(self) -> None:
        """After some days the folder has what copies and the manifest name, and nothing else."""
        self._quiet()
        schedule, (node,) = self._schedule, self._world.nodes
        schedule.resync(node)
        for _ in range(_ROUNDS):
            self._alone(partial(schedule.attempt, node, alone=True))
            self._alone(partial(schedule.attempt, node, alone=True))
            self._alone(partial(schedule.make_copy, schedule.drivers[-1], alone=True))
            self._alone(partial(schedule.sweep, node, alone=True))
            if self._world.problems or schedule.files.problems:
                break
            self._world.pass_by(2 * DAY_MS)
            schedule.now_ms += 2 * DAY_MS
            schedule.files.settle()
        self._world.problems += schedule.files.problems
        self._judge_left(node)
        self._alone(partial(schedule.bring_back, node, alone=True))
        for name in list(schedule.files.content):
            if not name.endswith(".seg"):
                del schedule.files.content[name]
        PinEnding.run(self)

    def _judge_left(self, node: Node) -> None:
        if self._world.problems:
            return
        if len(self._schedule.files.complete()) != KEPT:
            self._world.problems.append(f"{node.name}: not {KEPT} copies are left")
            return
        files, now_ms = self._schedule.files, self._schedule.now_ms
        (raw,) = self._world.ask(("HGETALL", node.meta))
        named = set(files_in(raw)).union(*(one.files for one in files.complete()))
        newest = max(files.complete(), key=lambda one: one.version)
        # The last copy that named them was removed just before.
        named |= {file for file, ms in newest.unneeded.items() if now_ms - ms <= 2 * DAY_MS}
        begin = path_of(node.gen, "")
        there = {name.removeprefix(begin) for name in files.content if name.startswith(begin)}
        copies = {name for name in there if name.endswith(".copy")}
        if left := copies - named:
            self._world.problems.append(f"{node.name}: {len(left)} files of copies are left")
