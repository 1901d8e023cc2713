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
from redis_state.errors import RedisStateError, StateError, UsageError
from tests.contract.query_scene import commands_in
from tests.contract.stream_support import Driver, Task
from tests.faults.oracle.dice import Dice

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_PARTITIONS = 2
_RETAINED = 20
_BACK_MAX = 3
_STEPS_MAX = 6


@dataclass(frozen=True)
class Frame:
    """What Spark planned for a batch of one run.

    Attributes:
        text: What the batch adds to each partition that has rows in it.
        rows: The partitions that have.
    """

    name: str
    planned: str
    text: str
    rows: frozenset[int]

    def added(self, partition: int) -> str:
        """What the batch adds to a partition."""
        return self.text if partition in self.rows else "-"


class Processors:
    """The logs of its folder say what each partition has to hold.

    Attributes:
        folder: The checkpoint.
    """

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self._play = schedule
        self._dice = Dice(seed)
        self._config = options.parse({"url": schedule.lab.url, "versionsToRetain": str(_RETAINED)})
        self._client = Client(self._config)
        self._count = 0
        self._begin()

    def _begin(self) -> None:
        """A query of another name, with a new folder."""
        self._count += 1
        self._id = str(uuid.uuid4())
        self.folder = Path(self._play.folder).with_name(f"processors {self._count}")
        for log in ("offsets", "commits"):
            (self.folder / log).mkdir(parents=True)
        (self.folder / "metadata").write_text(json.dumps({"id": self._id}))
        self._driver = Driver(self._client, self._config, partitions=_PARTITIONS)
        # Frames that a driver may have kept, of all batches and starts; entries of the offset log.
        self._kept: list[Frame] = []
        self._entries: list[Frame] = []
        self._logged = 0
        # What an import brought back has no version before it.
        self._oldest = 0
        self._planned = 0
        self._start()

    def _start(self) -> None:
        """The program calls, and the query starts; a call alone disturbs nobody."""
        if self._dice.one_in(4):
            self._driver.plan()
        self._plan = self._driver.plan()
        self._run = str(uuid.uuid4())
        self._frames: dict[int, Frame] = {}
        self._jumps = self._play.lab.jumps
        self._play.lab.counters["starts of a processor"] += 1

    def gen(self) -> str | None:
        """The checkpoint's id, as its name has it."""
        found = self._play.lab.redis(
            "HGET", keys.names(tenant=""), keys.name_field(self._driver.name)
        )
        return found.decode() if found else None

    def act(self) -> None:
        """The next thing that happens to it."""
        steps: tuple[Callable[[], None], ...] = (
            *(self._batch, self._batch, self._batch, self._batch, self._stale, self._cut),
            *(self._start, self._rewind, self._lose, self._purge, self._bring_back),
        )
        step = self._dice.choice(steps)
        try:
            if self._jumps != self._play.lab.jumps:
                # Numbers in memory are those of before.
                self._start()
            step()
        except StateError as error:
            if "purge" not in str(error):
                self._wrong(f"{step.__name__}: {error}", "false lost")
                return
            # Nobody had used it for a month.
            self._recall()

    # ---- batches ----------------------------------------------------------------------------

    def _frame(self) -> Frame:
        """The frame of the next batch in this run; its entry is written if there is none."""
        at = self._logged
        if at == len(self._entries):
            self._planned += 1
            rows = [one for one in range(_PARTITIONS) if not self._dice.one_in(3)]
            # The clock of the driver stands and steps back.
            planned = str(1000 + self._dice.below(4) + 10 * self._planned)
            text = f"b{at}/{self._planned}"
            self._entries.append(Frame("", planned, text, frozenset(rows)))
            (self.folder / "offsets" / str(at)).write_text(planned)
        if at not in self._frames:
            entry = self._entries[at]
            made = Frame(uuid.uuid4().hex[:16], entry.planned, entry.text, entry.rows)
            self._frames[at] = made
        return self._frames[at]

    def _task(self, frame: Frame, partition: int) -> Task:
        return self._driver.task(
            self._plan,
            self._run,
            self._logged,
            partition=partition,
            query=self._id,
            planned=frame.planned,
            frame=frame.name,
            text=frame.added(partition),
        )

    def _evaluate(self, frame: Frame, partitions: range = range(_PARTITIONS)) -> None:
        for partition in partitions:
            read = (self._task(frame, partition).run().read or b"").decode()
            wanted = "".join(f"{one.added(partition)} " for one in self._entries[: self._logged])
            self._play.lab.counters["loads compared"] += 1
            if read != wanted:
                self._wrong(f"partition {partition} reads as {read!r}, not {wanted!r}", "wrong")
        # What no task has shown is not known (docs/format.md, section 9).
        if partitions and frame not in self._kept:
            self._kept.append(frame)

    def _batch(self) -> None:
        """A batch, evaluated once or twice, and logged."""
        frame = self._frame()
        for _ in range(self._dice.between(1, 2)):
            self._evaluate(frame)
        (self.folder / "commits" / str(self._logged)).write_text("v1")
        self._logged += 1
        self._play.lab.counters["batches of processors"] += 1

    def _cut(self) -> None:
        """The driver dies amid a batch; the next start runs it again, as it was planned or anew."""
        self._evaluate(self._frame(), range(self._dice.between(0, 1)))
        if self._dice.one_in(3) and len(self._entries) > self._logged:
            (self.folder / "offsets" / str(self._logged)).unlink()
            del self._entries[self._logged]
        self._start()

    def _stale(self) -> None:
        """The function of foreachBatch evaluates a frame of another batch or start."""
        own = self._frame()
        stale = [one for one in self._kept if one != own]
        if not stale:
            return
        frame = self._dice.choice(stale)
        if self._dice.one_in(2):
            self._evaluate(own)
        for partition in range(_PARTITIONS):
            try:
                self._task(frame, partition).run()
            except UsageError as error:
                if "the DataFrame is the one of" not in str(error):
                    self._wrong(f"a stale frame: {error}", "false errors")
            else:
                self._wrong(f"a stale frame was let in, of {frame.text}", "wrong")
        self._play.lab.counters["stale frames refused"] += 1
        self._batch()

    # ---- those who repair it ----------------------------------------------------------------

    def _command(self, *words: str) -> tuple[int, str]:
        status, said = self._play.lab.command(*words)
        self._play.lab.counters[f"{words[0]} of a processor"] += 1
        if status:
            self._wrong(f"{' '.join(words)}: {said}", "false errors")
        return status, said

    def _rewind(self) -> None:
        """The query is stopped and goes back; what was planned later is planned anew."""
        oldest = max(self._oldest, self._logged - _BACK_MAX)
        if self._logged - 1 <= oldest:
            return
        to_batch = self._dice.between(oldest, self._logged - 1)
        place = ("--checkpoint", str(self.folder), "--yes", "--force")
        if not self._command("rewind", *place, "--to-batch", str(to_batch))[0]:
            self._back_to(to_batch)

    def _back_to(self, batch: int) -> None:
        self._logged = batch + 1
        del self._entries[batch + 1 :]
        self._start()

    def _lose(self) -> None:
        """A partition loses its newest versions; what doctor prints leads back to a start."""
        gen = self.gen()
        if gen is None or self._logged - self._oldest < 4:
            return
        partition = self._dice.below(_PARTITIONS)
        meta = next(
            (one for one in self._play.lab.key_names() if one.endswith(b":m") and
             one.startswith(f"{{rs:{gen}:0:{partition}:".encode())), None,
        )  # fmt: skip
        if meta is None:
            return
        fields = self._play.lab.redis("HKEYS", meta)
        deltas = [one for one in fields if one.startswith(b"d:")]
        deltas.sort(key=lambda one: int(one.split(b":")[1]))
        for one in deltas[-self._dice.between(1, 2) :]:
            self._play.lab.redis("UNLINK", meta[:-1] + one)
        self._follow_doctor()
        # Until then the manifest names what is lost.
        self._batch()

    def _follow_doctor(self) -> None:
        lab = self._play.lab
        for _ in range(_STEPS_MAX):
            status, said = lab.command("doctor", "--checkpoint", str(self.folder))
            if not status:
                lab.counters["losses mended by what doctor printed"] += 1
                break
            found = commands_in(said)
            for words in found:
                forced = [] if "--force" in words else ["--force"]
                status, told = lab.command(*_without_url(words), *forced)
                if status:
                    self._wrong(f"doctor printed {words}, which said: {told}", "false errors")
                    return
            if not found:
                self._wrong(f"doctor printed no way back: {said}", "false errors")
                return
        else:
            self._wrong("what doctor prints does not end", "false errors")
            return
        newest = max(int(one.name) for one in (self.folder / "commits").iterdir())
        self._back_to(newest)

    def _purge(self) -> None:
        """It is purged; a start within the day is refused by name, and a recall brings it back."""
        gen = self.gen()
        if gen is None or not self._logged:
            return
        if self._command("purge", "--gen", gen, "--yes", "--force")[0]:
            return
        for again in (self._driver.plan, lambda: self._task(self._frame(), 0).run()):
            try:
                again()
            except RedisStateError as error:
                if "purge" not in str(error):
                    self._wrong(f"a start after a purge: {error}", "false errors")
            else:
                self._wrong("a purged query was started", "wrong")
        self._recall()

    def _recall(self) -> None:
        gen = self.gen()
        if gen is None or self._command("purge", "--gen", gen, "--recall")[0]:
            return
        self._play.lab.counters["processors called back"] += 1
        self._start()

    def _bring_back(self) -> None:
        """Exported; then it loses a partition or all of them, goes on or not, and is imported."""
        # Between a rewind and the next batch readers have what was confirmed before.
        self._batch()
        gen, lab = self.gen(), self._play.lab
        if gen is None or self._logged - self._oldest < 2:
            return
        copy = self.folder.with_name(f"export {uuid.uuid4().hex[:8]}")
        if self._command("export", gen, "--to", str(copy))[0]:
            return
        batch = json.loads((copy / "manifest.json").read_text())["batch"]
        lost = range(_PARTITIONS) if self._dice.one_in(2) else [self._dice.below(_PARTITIONS)]
        for partition in lost:
            beginning = f"{{rs:{gen}:0:{partition}:".encode()
            names = [one for one in lab.key_names() if one.startswith(beginning)]
            lab.redis("UNLINK", *names)
        place = ("--checkpoint", str(self.folder), "--yes", "--force")
        if not self._command("import", str(copy), *place)[0]:
            self._oldest = batch
            self._back_to(batch)

    # ---- the end ----------------------------------------------------------------------------

    def server_lost_all(self) -> None:
        """No empty start: the next batch is told of the loss. Then it begins anew."""
        if self._logged:
            try:
                self._start()
                self._evaluate(self._frame())
            except StateError:
                self._play.lab.counters["losses told to a processor"] += 1
            else:
                self._wrong("a batch went on from nothing", "wrong")
        self._begin()

    def in_peace(self) -> None:
        """A start that is alone has to work, from what the logs say."""
        try:
            self._start()
            for _ in range(2):
                self._batch()
        except StateError as error:
            if "purge" not in str(error):
                raise
            self._recall()
            self._batch()

    def close(self) -> None:
        """Its process ends."""
        self._client.close()

    def _wrong(self, text: str, counter: str) -> None:
        self._play.lab.counters[counter] += 1
        self._play.world.problem(f"processor {self._count}: {text}")


def _without_url(words: list[str]) -> list[str]:
    """The lab gives its own."""
    at = words.index("--url") if "--url" in words else len(words)
    return words[:at] + words[at + 2 :]
