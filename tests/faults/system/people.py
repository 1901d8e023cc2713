"""Those around a query: state readers, heartbeats, maintenance, administrators, time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import redis_state
from tests.faults.system.jvm import SaidError
from tests.faults.system.world import PARTITIONS, Job, parsed

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_BEAT_MS = 50_000
_JUMPS_MS = (40_000, _HOUR_MS, _DAY_MS, 31 * _DAY_MS)
_STORE_HASH = "37a8eec1ce19687d"
_READERS_MAX = 3


class People:
    """What happens beside the drivers and tasks of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._play = schedule
        self._readers: list[tuple[str, str]] = []
        self._count = 0

    def act(self, which: int) -> None:
        """One of those who look after a server."""
        acts = (
            *(self._maintain, self._vanished, self._purge, self._time, self._python_reader),
            *(self._time, self._purge),
        )
        acts[which % len(acts)]()

    def killed(self, process: str) -> None:
        """A process is no more."""
        self._readers = [one for one in self._readers if one[0] != process]

    # ---- readers ----------------------------------------------------------------------------

    def state_reader(self) -> None:
        """Spark's own, in a process of the query: it reads a version, and closes then or later."""
        play = self._play
        newest = len(play.world.logged)
        if self._readers and (len(self._readers) >= _READERS_MAX or play.dice.one_in(2)):
            process, slot = self._readers.pop(play.dice.below(len(self._readers)))
            if play.is_free(process):
                play.lab.jvm.run(process, "close", slot, thread="reader")
            else:
                self._readers.append((process, slot))
            return
        free = [name for name in play.processes if play.is_free(name)]
        if not newest or not free or not play.jobs[0].query_id:
            return
        process, partition = play.dice.choice(free), play.dice.below(PARTITIONS)
        self._count += 1
        slot = f"reader-{self._count}/{partition}"
        version = max(1, newest - play.dice.below(2))
        self._readers.append((process, slot))
        play.lab.counters["state readers"] += 1
        self._read(process, slot, version, partition)

    def _read(self, process: str, slot: str, version: int, partition: int) -> None:
        play = self._play
        job = play.jobs[0]
        run = f"{play.dice.below(1 << 32):08x}-0000-4000-8000-{self._count:012x}"
        play.work.init_provider(process, slot, run, job, partition)
        uid = play.world.uid(version, partition) if play.format == 2 else "-"
        try:
            said = play.lab.jvm.run(process, "read", slot, version, uid, thread="reader")
        except SaidError as error:
            play.lab.counters["false lost"] += 1
            play.world.problem(f"reader of version {version}: {error}")
            return
        play.lab.counters["loads compared"] += 1
        if parsed(said) != play.world.rows(version, partition):
            play.lab.counters["wrong"] += 1
            wanted = play.world.rows(version, partition)
            play.world.problem(f"a reader got {parsed(said)} as version {version}, not {wanted}")

    def _python_reader(self) -> None:
        """From another process, without Spark: the newest version that the query has confirmed."""
        play = self._play
        if len(play.world.logged) > 0 and (gen := self.gen()):
            with redis_state.connect(play.lab.url) as reader:
                if gen in [info.gen for info in reader.queries()]:
                    play.lab.counters["reads by Python"] += 1
                    reader.query(gen)

    # ---- time and signs of life -------------------------------------------------------------

    def beat(self) -> None:
        """Every process reports; who serves a partition of a living query is shown then."""
        play = self._play
        for process in play.processes:
            if play.is_free(process):
                play.lab.jvm.run(process, "beat", thread="heart")
        gen = self.gen()
        alive = [job for job in play.jobs if job.alive]
        if len(alive) != 1 or alive[0].disputed or gen is None:
            return
        job = alive[0]
        for partition in range(PARTITIONS):
            self._check_shown(job, gen, partition)

    def _check_shown(self, job: Job, gen: str, partition: int) -> None:
        play = self._play
        slot = f"{job.name}/{partition}"
        loaded = [name for name, one in play.work.writing if one == slot and play.is_free(name)]
        if not job.batches_done or not loaded:
            return
        play.lab.counters["signs of life looked at"] += 1
        raw = play.lab.redis("GET", f"{{rs:{gen}}}:i:0:{partition}:{_STORE_HASH}")
        shown = json.loads(raw)["run"] if raw else None
        if shown != job.run_id:
            play.lab.counters["not shown as alive"] += 1
            play.world.problem(f"{slot} is loaded in {loaded}, and {shown} is shown")

    def _time(self) -> None:
        """Time goes by; whoever lives goes on reporting meanwhile."""
        play = self._play
        if play.held:
            return
        by_ms = play.dice.choice(_JUMPS_MS[: None if self._is_shown() else 2])
        play.lab.counters["time went by"] += 1
        play.idle_for_long |= by_ms > _DAY_MS
        self._pass(by_ms)

    def _pass(self, by_ms: int) -> None:
        """Twice so long that who is dead is shown no more, and then all at once."""
        for _ in range(2):
            self._play.lab.jump(_BEAT_MS)
            self.beat()
        self._play.lab.jump(by_ms, without=b"}:i:")

    def _is_shown(self) -> bool:
        """Whether a living run serves a partition: without that it shows no sign of life.

        Before its first batch is done the registry may not know yet which partitions it has.
        """
        play = self._play
        sure = [job.name for job in play.jobs if job.alive and job.batches_done]
        alive = {f"{name}/{number}" for name in sure for number in range(PARTITIONS)}
        return any(slot in alive for _, slot in play.work.writing)

    # ---- those who look after a server ------------------------------------------------------

    def gen(self) -> str | None:
        """The checkpoint's, if its marker is there."""
        marker = self._play.folder / "state" / "_redis_state"
        try:
            return str(json.loads(marker.read_text())["gen"])
        except (OSError, ValueError):
            return None

    def _maintain(self) -> None:
        play = self._play
        status, said = play.lab.command("maintain", "--once", "--deep", "--orphans")
        play.lab.counters["maintenance by Python"] += 1
        if status:
            play.lab.counters["problems of maintain"] += 1
            play.world.problem(f"maintain: {said}")

    def _vanished(self) -> None:
        """Twice, with time between, as a service does. The query was in use all the time."""
        play = self._play
        if play.held or play.idle_for_long:
            return
        for _ in range(2):
            status, said = play.lab.command(
                "maintain", "--once", "--vanished-after", "30d", "--yes"
            )
            if status:
                play.world.problem(f"maintain --vanished-after: {said}")
            self._pass(_HOUR_MS)
        play.lab.counters["searches for vanished checkpoints"] += 1

    def _purge(self) -> None:
        """Somebody takes the wrong checkpoint: it is in use."""
        play = self._play
        gen = self.gen()
        if gen is None or not self._is_shown() or not play.lab.redis("EXISTS", f"{{rs:{gen}}}:q"):
            return
        status, said = play.lab.command("purge", "--gen", gen, "--yes")
        play.lab.counters["purges of a query in use"] += 1
        if not status:
            play.lab.counters["purged in use"] += 1
            play.world.problem(f"a query in use was purged: {said}")

    # ---- the end ----------------------------------------------------------------------------

    def before_the_end(self) -> None:
        """The folder may be moved, now that nobody works in it."""
        play = self._play
        for process, slot in self._readers:
            play.lab.jvm.run(process, "close", slot, thread="reader")
        self._readers = []
        if play.dice.one_in(4) and self.gen() and not play.work.tasks:
            for process, slot in list(play.work.providers):
                play.lab.jvm.run(process, "close", slot)
            play.work.providers.clear()
            play.work.writing.clear()
            target = play.folder.parent / "moved"
            play.folder.rename(target)
            play.folder, play.adopt = target, True
            play.lab.counters["folders moved"] += 1

    def look_at_everything(self) -> None:
        """A process that has nothing cached reads every version that has to be there."""
        play = self._play
        process = play.lab.take_process()
        play.processes.append(process)
        newest = len(play.world.logged)
        older = max(1, newest - play.dice.between(1, 2))
        wanted = [(newest, number) for number in range(PARTITIONS)]
        for version, partition in [*wanted, (older, play.dice.below(PARTITIONS))]:
            self._count += 1
            slot = f"last-{self._count}/{partition}"
            self._read(process, slot, version, partition)
            play.lab.jvm.run(process, "close", slot)
        gen = self.gen()
        metas = [name for name in play.lab.key_names() if name.endswith(b":m")]
        gens = {name.split(b":")[1].decode() for name in metas}
        if gens != {gen}:
            play.lab.counters["second identities"] += 1
            play.world.problem(f"the marker names {gen}, state is kept of {gens}")
        self.beat()
        self._maintain()

    def clear_away(self) -> None:
        """The query is given up: no key of it stays."""
        play = self._play
        for process, slot in self._readers:
            play.lab.jvm.run(process, "close", slot, thread="reader")
        if (gen := self.gen()) is None:
            return
        status, said = play.lab.command("purge", "--gen", gen, "--yes")
        if status:
            status, said = play.lab.command("purge", "--gen", gen, "--yes", "--force")
        if status:
            play.world.problem(f"purge: {said}")
        play.lab.jump(2 * _DAY_MS)
        left = play.lab.key_names()
        if left:
            play.lab.counters["keys left"] += 1
            play.world.problem(f"keys left: {left}")
