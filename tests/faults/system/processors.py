"""A query with a processor on the same server: its folder, its starts, and those who repair it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import StateError, UsageError
from tests.contract.query_scene import Batches
from tests.contract.stream_support import Driver, Task
from tests.faults.oracle.dice import Dice
from tests.faults.system.repairs import Repairs

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_PARTITIONS = 2
_RETAINED = 20


@dataclass(frozen=True)
class Frame:
    """Plan of Spark for one batch of one run.

    Attributes:
        text: Text that the batch adds to each partition with rows.
        rows: Numbers of the partitions with rows.
    """

    name: str
    planned: str
    text: str
    rows: frozenset[int]

    def added(self, partition: int) -> str:
        """Returns the text that the batch adds to a partition."""
        return self.text if partition in self.rows else "-"


class Processors:
    """The logs of its folder say what each partition has to hold.

    Attributes:
        folder: The checkpoint.
        beside: A store that the function of foreachBatch writes in the same query, if it does.
        entries: The offset log.
        logged: Number of batches in the commit log.
        oldest: Before it there is no version: an import brought back a single one.
    """

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.play = schedule
        self.dice = Dice(seed)
        self._config = options.parse({"url": schedule.lab.url, "versionsToRetain": str(_RETAINED)})
        self._client = Client(self._config)
        self._count = 0
        self._repairs = Repairs(self)
        self._begin()

    def _begin(self) -> None:
        """A query of another name, with a new folder."""
        self._count += 1
        self._id = str(uuid.uuid4())
        self.folder = Path(self.play.folder).with_name(f"processors {self._count}")
        for log in ("offsets", "commits"):
            (self.folder / log).mkdir(parents=True)
        (self.folder / "metadata").write_text(json.dumps({"id": self._id}))
        self.driver = Driver(self._client, self._config, partitions=_PARTITIONS)
        self.beside: Batches | None = None
        if self.dice.one_in(2):
            self.beside = Batches(self._client, self._config, _PARTITIONS, query=self._id)
        # Frames that a driver may have kept, of all batches and starts.
        self._kept: list[Frame] = []
        self.entries: list[Frame] = []
        self.logged = 0
        self.oldest = 0
        self._planned = 0
        self.start()

    def start(self) -> None:
        """The program calls, and the query starts; a call alone disturbs nobody."""
        if self.dice.one_in(4):
            self.driver.plan()
        self._plan = self.driver.plan()
        self._run = str(uuid.uuid4())
        self._frames: dict[int, Frame] = {}
        self._jumps = self.play.lab.jumps
        self.play.lab.counters["starts of a processor"] += 1

    def gen(self) -> str | None:
        """The checkpoint's id, as its name has it."""
        return self._gen_of(self.driver.name)

    def _gen_of(self, name: str) -> str | None:
        found = self.play.lab.redis("HGET", keys.names(tenant=""), keys.name_field(name))
        return found.decode() if found else None

    def gens(self) -> list[str]:
        """The ids of all its checkpoints that there are."""
        names = [self.driver.name, *([self.beside.name] if self.beside is not None else [])]
        return [gen for name in names if (gen := self._gen_of(name)) is not None]

    def act(self) -> None:
        """The next thing that happens to it."""
        steps: tuple[Callable[[], None], ...] = (
            *(self.batch, self.batch, self.batch, self.batch, self._stale, self._cut),
            *(self.start, *self._repairs.steps),
        )
        step = self.dice.choice(steps)
        try:
            if self._jumps != self.play.lab.jumps:
                # Numbers in memory are those of before.
                self.start()
            step()
        except StateError as error:
            if "purge" not in str(error):
                self.wrong(f"{step.__name__}: {error}", "false lost")
                return
            # Nobody had used it for a month.
            self._repairs.recall()

    # ---- batches ----------------------------------------------------------------------------

    def frame(self) -> Frame:
        """The frame of the next batch in this run; its entry is written if there is none."""
        at = self.logged
        if at == len(self.entries):
            self._planned += 1
            rows = [one for one in range(_PARTITIONS) if not self.dice.one_in(3)]
            # The clock of the driver stands and steps back.
            planned = str(1000 + self.dice.below(4) + 10 * self._planned)
            text = f"b{at}/{self._planned}"
            self.entries.append(Frame("", planned, text, frozenset(rows)))
            (self.folder / "offsets" / str(at)).write_text(planned)
        if at not in self._frames:
            entry = self.entries[at]
            made = Frame(uuid.uuid4().hex[:16], entry.planned, entry.text, entry.rows)
            self._frames[at] = made
        return self._frames[at]

    def task(self, frame: Frame, partition: int) -> Task:
        return self.driver.task(
            self._plan,
            self._run,
            self.logged,
            partition=partition,
            query=self._id,
            planned=frame.planned,
            frame=frame.name,
            text=frame.added(partition),
        )

    def _evaluate(self, frame: Frame, partitions: range = range(_PARTITIONS)) -> None:
        for partition in partitions:
            read = (self.task(frame, partition).run().read or b"").decode()
            wanted = "".join(f"{one.added(partition)} " for one in self.entries[: self.logged])
            self.play.lab.counters["loads compared"] += 1
            if read != wanted:
                self.wrong(f"partition {partition} reads as {read!r}, not {wanted!r}", "wrong")
        # What no task has shown is not known (docs/format.md, section 9).
        if partitions and frame not in self._kept:
            self._kept.append(frame)

    def batch(self) -> None:
        """A batch, evaluated once or twice, and logged."""
        frame = self.frame()
        for _ in range(self.dice.between(1, 2)):
            self._evaluate(frame)
        self.run_beside(frame)
        (self.folder / "commits" / str(self.logged)).write_text("v1")
        self.logged += 1
        self.play.lab.counters["batches of processors"] += 1

    def run_beside(self, frame: Frame) -> None:
        """Writes the batch into the other store, as the function of foreachBatch does."""
        if self.beside is None:
            return
        self.beside.run(self.logged, frame.planned, lambda _: frame.text)
        wanted = "".join(f"{one.text} " for one in self.entries[: self.logged + 1])
        self.play.lab.counters["loads compared"] += 1
        if set(self.beside.written.values()) != {wanted}:
            self.wrong(f"the store beside it has {self.beside.written}, not {wanted!r}", "wrong")

    def _cut(self) -> None:
        """The driver dies amid a batch; the next start runs it again, as it was planned or anew."""
        frame = self.frame()
        partitions = self.dice.between(0, _PARTITIONS if self.beside is not None else 1)
        self._evaluate(frame, range(partitions))
        if partitions == _PARTITIONS and self.dice.one_in(2):
            self.run_beside(frame)
        if self.dice.one_in(3) and len(self.entries) > self.logged:
            (self.folder / "offsets" / str(self.logged)).unlink()
            del self.entries[self.logged]
        self.start()

    def _stale(self) -> None:
        """The function of foreachBatch evaluates a frame of another batch or start."""
        own = self.frame()
        stale = [one for one in self._kept if one != own]
        if not stale:
            return
        frame = self.dice.choice(stale)
        if self.dice.one_in(2):
            self._evaluate(own)
        for partition in range(_PARTITIONS):
            try:
                self.task(frame, partition).run()
            except UsageError as error:
                if "the DataFrame belongs to" not in str(error):
                    self.wrong(f"a stale frame: {error}", "false errors")
            else:
                self.wrong(f"a stale frame was let in, of {frame.text}", "wrong")
        self.play.lab.counters["stale frames refused"] += 1
        self.batch()

    # ---- the end ----------------------------------------------------------------------------

    def server_lost_all(self) -> None:
        """No empty start: the next batch is told of the loss. Then it begins anew."""
        if self.logged:
            try:
                self.start()
                self._evaluate(self.frame())
            except StateError as error:
                self.play.told_loss("a processor", error)
            else:
                self.wrong("a batch went on from nothing", "wrong")
            # The start has entered the name anew.
            for gen in self.gens():
                status, said = self.play.lab.command("purge", "--gen", gen, "--yes", "--now")
                if status:
                    self.wrong(f"purge: {said}", "false errors")
        self._begin()

    def in_peace(self) -> None:
        """A start that is alone has to work, from what the logs say."""
        try:
            self.start()
            for _ in range(2):
                self.batch()
        except StateError as error:
            if "purge" not in str(error):
                raise
            self._repairs.recall()
            self.batch()

    def close(self) -> None:
        """Its process ends."""
        self._client.close()

    def wrong(self, text: str, counter: str) -> None:
        self.play.lab.counters[counter] += 1
        self.play.world.problem(f"processor {self._count}: {text}")
