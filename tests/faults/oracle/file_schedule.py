"""One schedule of pins whose history lies in files: movers, readers, sweeps and deletions."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

from redis_state import keys
from redis_state.backend.script import script
from redis_state.backend.transport import Transport
from redis_state.errors import Kind, RedisStateError
from redis_state.files import Folder
from redis_state.format.entry import parse_segment, segments_in
from redis_state.maintain import files, history, hot_run
from redis_state.places import Places, moving, reading, room
from redis_state.places.room import bound_of
from redis_state.protocol import Opened, SegmentGoneError
from redis_state.store.checkpoint_link import LinkedPartition
from redis_state.store.local.loading import Loader
from redis_state.store.local.version import LocalVersion
from tests.faults.oracle.file_world import KINDS, FileWorld, SimFiles, path_of
from tests.faults.oracle.pin_ending import PinEnding
from tests.faults.oracle.pin_keeps import Task
from tests.faults.oracle.pin_schedule import PinSchedule
from tests.faults.oracle.pin_world import DAY_MS, Node, World
from tests.faults.oracle.seeds import FILE_EVERY

_SURVIVE = ("fork", "move", "sweep")
"""Work that may sleep for days."""

_REPEATED_MAX = 4

_SHARES = (1_400, 3_000)
"""Least and largest share of a bounded partition: room for a few of its segments."""

_HOT_RUNS_SHARE = 4
"""Factor of a share that has room for a hot run, too."""

PLACES = Places("sim:", grace_ms=DAY_MS, deletes=True)


class FileSchedule(PinSchedule):
    """Runs on a server that holds nothing else, beside a folder that nobody else has."""

    world: FileWorld

    def __init__(self, seed: int, server: Transport, url: str, counters: Counter[str]) -> None:
        super().__init__(seed, server, url, counters)
        self._deleted: Node | None = None
        number = seed // FILE_EVERY
        self.share = self.dice.between(*_SHARES) if number // 2 % 2 else 0
        self._has_hot_runs = bool(self.share) and number // 4 % 2 == 1
        if self._has_hot_runs:
            self.share *= _HOT_RUNS_SHARE
            self.steps *= 2
        self.files = SimFiles(
            KINDS[number % len(KINDS)],
            self.dice,
            self.network,
            slow=number // len(KINDS) % 2 == 1,
        )
        self.world.files = self.files

    def new_world(self, server: Transport) -> World:
        """Returns the world that the rules are about."""
        return FileWorld(server)

    def run(self) -> None:
        """Until everybody is done, or something went wrong."""
        with ExitStack() as stack:
            # Every checkpoint has the same folder, without an entry in its query.
            for module in (history, reading, room):
                stack.enter_context(mock.patch.object(module, "places_of", return_value=PLACES))
            stack.enter_context(mock.patch.object(room, "check_folder"))
            stack.enter_context(mock.patch.object(LinkedPartition, "share", self._share))
            stack.enter_context(mock.patch.object(Places, "folder_of", self._folder_of))
            stack.enter_context(mock.patch.object(history, "check_folder"))
            stack.enter_context(mock.patch.object(history, "SEGMENTS_MIN", 1))
            # These shares have room for a few rows.
            stack.enter_context(mock.patch.object(hot_run, "HOT_RUN_PART", 1))
            load = Loader._load

            def judged(loader: Loader, opened: Opened, start: LocalVersion | None) -> LocalVersion:
                self.counters["loads by a hot run"] += any(one.over for one in opened.segments)
                return load(loader, opened, start)

            stack.enter_context(mock.patch.object(Loader, "_load", judged))
            read = reading.SegmentFiles._read

            def counted(*args: Any) -> Any:
                found = read(*args)
                self.counters["segments read from files"] += found is not None
                return found

            stack.enter_context(mock.patch.object(reading.SegmentFiles, "_read", counted))
            super().run()
        self.counters["files that closed slowly"] += self.files.slow_closes

    def _share(self) -> int:
        return self.share

    def _folder_of(self, gen: str) -> Folder:
        return Folder(self.files, f"/{gen}", gen)  # type: ignore[arg-type]  # what is used of it

    def end(self) -> None:
        """Judges the folder, and brings everything back before the end of a schedule of pins."""
        FileEnding(self).run()

    # ---- what goes on --------------------------------------------------------------------------

    def _start_something(self) -> None:
        live = self._live()
        if live and self._has_hot_runs and self.dice.below(4):
            self._start_merging(self.dice.choice(live[:2]))
            return
        chance = self.dice.below(20)
        if not live or chance >= 12:
            super()._start_something()
            return
        node = self.dice.choice(live)
        if chance < 6:
            self.move(node)
        elif chance < 7:
            self.sweep(node)
        elif chance < 10:
            self.read(node)
        else:
            self.bring_back(node)

    def _accident(self, chance: int) -> None:
        deleted, self._deleted = self._deleted, None
        if deleted is not None and deleted.copied and self.dice.one_in(2):
            self._fail_over(deleted)
        node = self.dice.choice(self.world.nodes)
        if node.life == "live":
            if 20 <= chance < 28 and self.world.minute(node):
                self.counters["moved keys expired"] += 1
            elif 28 <= chance < 40:
                self._repeat(node)
            elif 40 <= chance < 44:
                self.world.copy(node)
            elif 48 <= chance < 52:
                self._damage_run(node)
        if 44 <= chance < 48 and any(task.of == "move" for task in self._at_work()):
            self._pass_by(26 * 3_600_000)
        super()._accident(chance)

    def _repeat(self, node: Node) -> None:
        """A commit or a snapshot arrives again, long after its segment has left for a file."""
        placed = [one.ident for one in node.seen.named.values() if one.place is not None]
        known = [one for one in placed if keys.segment(node.id, one) in self.watch.sent]
        if not known:
            return
        self.counters["late calls of moved segments"] += 1
        all_ran = self.watch.sent[keys.segment(node.id, self.dice.choice(known))]
        for ran in all_ran[-_REPEATED_MAX:]:
            self.network.exchange([script(ran.name).by_text(ran.keys, *ran.args)])

    def _damage_run(self, node: Node) -> None:
        """Bytes of a hot run change, which no version needs."""
        for field, value in node.seen.fields.items():
            if field[:2] != "r:":
                continue
            key = keys.segment(node.id, parse_segment(field, value).ident)
            (blocks,) = self.world.ask(("HGETALL", key))
            for name, raw in blocks.items():
                self.world.ask(("HSET", key, name, raw[:-1] + bytes([raw[-1] ^ 1])))
            self.counters["hot runs damaged"] += bool(blocks)

    def _is_waited_for(self, task: Task) -> bool:
        return task.of not in _SURVIVE

    def _pass_by(self, ms: int) -> None:
        super()._pass_by(ms)
        for node in self._live():
            self.sweep(node)

    def _failed(self, task: Task, error: RedisStateError) -> None:
        at = task.at
        is_judged = at.life in ("live", "purged") and at.disturbed == task.disturbed
        if error.kind is Kind.NO_ROOM and not task.alone:
            # Staged blocks of others may take the room for a minute.
            self.counters["no room"] += 1
            return
        if is_judged and error.kind in (Kind.FILE_LOST, Kind.FORMAT) and not self._is_purged(error):
            self.problems.append(f"{task.of} of {at.name}: {error}")
            return
        super()._failed(task, error)

    @staticmethod
    def _is_purged(error: RedisStateError) -> bool:
        return "purged" in str(error)

    # ---- work ----------------------------------------------------------------------------------

    def move(self, node: Node, *, alone: bool = False) -> None:
        """A mover, which may sleep at each step."""

        def body() -> None:
            moved = history.move_history(self.new_client(), node.id)
            self.counters["segments moved"] += moved.segments

        self.start(Task(node, "move", disturbed=node.disturbed, alone=alone), body)
        self.network.actors[-1].slow = not alone and self.dice.one_in(3)

    def _start_merging(self, node: Node) -> None:
        """Work that makes hot runs, or ends them."""
        chance = self.dice.below(16)
        if chance < 8:
            self.attempt(node)
        elif chance < 12:
            self.merge(node)
        elif chance < 14:
            self.maintain(node, retained=0)
        elif chance < 15:
            self.move(node)
        else:
            self.restart(node, self.dice.choice([0, 1, 2]))
            self.attempt(node)

    def merge(self, node: Node) -> None:
        """A hot run, by a process that may sleep between its look and its run."""

        runs = self.dice.one_in(2)

        def body() -> None:
            partition = self.partition(node)
            bound = bound_of(partition.client, node.id)
            opened = partition.open("", None, hot_runs=runs)
            stands = len(opened.segments) > 1 and opened.segments[-1].stands
            if bound is not None and stands:
                added = hot_run.add_hot_run(partition, opened, bound)
                self.counters["hot runs"] += added is not None

        self.start(Task(node, "run", disturbed=node.disturbed), body)
        self.network.actors[-1].slow = self.dice.one_in(3)

    def sweep(self, node: Node, *, alone: bool = False) -> None:
        """A sweep that deletes, too."""

        def body() -> None:
            swept = files.sweep_files(
                self.new_client(),
                node.id,
                PLACES,
                guard=lambda _id: "",
                delete=True,
                unknown_too=True,
            )
            self.counters["files condemned"] += swept.condemned
            self.counters["files deleted"] += swept.deleted
            if swept.deleted:
                self._deleted = node

        self.start(Task(node, "sweep", disturbed=node.disturbed, alone=alone), body)

    def bring_back(self, node: Node, *, alone: bool = False) -> None:
        """Brings one segment back, or all of them alone."""
        some = [one for one in node.seen.all if one.place is not None]
        if not some:
            return
        chosen = some if alone else [self.dice.choice(some)]

        def body() -> None:
            client = self.new_client()
            for one in chosen:
                back = moving.bring_back(client, node.id, one)
                self.counters["segments brought back"] += back

        self.start(Task(node, "bringing back", disturbed=node.disturbed, alone=alone), body)

    def read(self, node: Node) -> None:
        """A reader without memory at any version that is kept."""
        opened, floor = node.seen.number("o"), max(1, node.seen.number("w"))
        if opened < floor:
            return
        version = self.dice.between(floor, opened)

        def body() -> None:
            partition = self.partition(node)
            try:
                found = partition.open("", version)
            except RedisStateError as error:
                if error.kind not in (Kind.STATE_LOST, Kind.VERSION_EXPIRED):
                    raise
                return  # retention or a rewind was faster
            try:
                blocks = partition.fetch_whole([one for one in found.segments if one.entry.blocks])
            except SegmentGoneError as error:
                self._judge_gone(node, error)
                return
            self.counters["older versions read"] += bool(blocks)

        self.start(Task(node, "read", disturbed=node.disturbed), body)

    def _judge_gone(self, node: Node, error: SegmentGoneError) -> None:
        """A read never ends because of a move: only where nothing names the segment any more."""
        (raw,) = self.world.ask(("HGETALL", node.meta))
        if node.life == "live" and any(one == error.segment for one in segments_in(raw)):
            self.problems.append(f"{node.name}: a read of {error.segment.ident} ended at a move")


class FileEnding(PinEnding):
    """Final checks of a schedule with files."""

    _schedule: FileSchedule

    def run(self) -> None:
        """After the grace the folder has what manifests name, and nothing else."""
        self._quiet()
        for _ in range(2):
            for node in self._living():
                self._alone(partial(self._schedule.move, node, alone=True))
                self._alone(partial(self._schedule.sweep, node, alone=True))
            if self._world.problems:
                return
            self._world.pass_by(DAY_MS + DAY_MS // 2)
            self._world.judge()
        for node in self._living():
            self._alone(partial(self._schedule.sweep, node, alone=True))
        self._judge_folder()
        self._schedule.share = 0
        for node in self._living():
            # Nothing comes back above a share.
            self._world.ask(script("bound").by_text([node.meta], "0"))
            self._alone(partial(self._schedule.bring_back, node, alone=True))
        super().run()

    def _judge_folder(self) -> None:
        if self._world.problems:
            return
        self._world.look()
        for node in self._living():
            named = {one.place.file for one in node.seen.all if one.place is not None}
            begin = path_of(node.gen, "")
            there = {
                name.removeprefix(begin)
                for name in self._schedule.files.content
                if name.startswith(begin)
            }
            rows = set(self._schedule.world.rows.get(node.gen, {}))
            if there != named or rows != named:
                self._world.problems.append(
                    f"{node.name}: in the end {len(there - named)} files and "
                    f"{len(rows - named)} rows are left, {len(named - there)} are missing"
                )
