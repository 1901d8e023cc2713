"""Actors around a query: state readers in both languages, heartbeats, time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import redis_state
from redis_state.backend.client import Client
from redis_state.places.settings import FOLDER_IN_CHECKPOINT
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
_REQUESTS = 4
"""Requests of a reader, between two of which the query goes on."""


class People:
    """Actions other than those of the drivers and tasks of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._play = schedule
        self._readers: list[tuple[str, str]] = []
        self._count = 0
        self._left: Path | None = None

    def act(self, which: int) -> None:
        """Acts as one of those who look after a server."""
        looking_after = self._play.administrators
        acts = (
            *(looking_after.maintain, looking_after.vanished, looking_after.refused),
            *(self._time, self._python_reader, self._time, looking_after.refused),
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
        version = max(play.world.oldest, newest - play.dice.below(2))
        self._readers.append((process, slot))
        play.lab.counters["state readers"] += 1
        self._read(process, slot, version, partition)

    def close_readers(self) -> None:
        """All of them."""
        for process, slot in self._readers:
            self._play.lab.jvm.run(process, "close", slot, thread="reader")
        self._readers = []

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
        """Reads a version, or the newest confirmed one, from a process without Spark."""
        play, newest, gen = self._play, len(self._play.world.logged), self.gen()
        if not newest or gen is None:
            return
        version = None if play.dice.one_in(3) else newest - play.dice.below(2)
        if version is None and play.world.unwritten:
            version = newest
        version = version and max(version, play.world.oldest)
        uids = play.world.logged[version - 1] if version and play.format == 2 else None
        with redis_state.connect(play.lab.url) as reader:
            if gen not in [info.gen for info in reader.queries()]:
                return
            found = reader.query(gen).operator().items(version, uids=uids)
            got = sorted((key["k"], value["v"]) for key, value in found)
        play.lab.counters["reads by Python"] += 1
        newer = range(newest + 1) if version is None else (version,)
        known = [[play.world.rows(of, number) for of in newer] for number in range(PARTITIONS)]
        if got not in [sorted([*a.items(), *b.items()]) for a in known[0] for b in known[1]]:
            play.lab.counters["wrong"] += 1
            play.world.problem(f"Python's reader got {got} as version {version}, not of {known}")

    def latest_reader(self) -> None:
        """Reads what was published last; the query goes on, or back, between two requests."""
        play, gen = self._play, self.gen()
        if not play.world.logged or gen is None:
            return
        with redis_state.connect(play.lab.url) as reader:
            if gen not in [info.gen for info in reader.queries()]:
                return
            operator = reader.query(gen).operator()
            with _before_request(play.dice.below(_REQUESTS), play.go_on):
                found = list(operator.items(at="latest"))
        got = sorted((key["k"], value["v"]) for key, value in found)
        play.lab.counters["reads of what was published last"] += 1
        if play.world.problems:
            return
        known = [sorted([*a.items(), *b.items()]) for a, b in play.world.versions()]
        if got not in known:
            play.lab.counters["wrong"] += 1
            play.world.problem(f"Python's reader got {got} as the latest version, not of {known}")

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
        if not job.batches_done or not loaded or partition in play.work.hidden:
            return
        play.lab.counters["signs of life looked at"] += 1
        raw = play.lab.redis("GET", f"{{rs:{gen}}}:i:0:{partition}:{_STORE_HASH}")
        shown = json.loads(raw)["run"] if raw else None
        if shown != job.run_id:
            play.lab.counters["not shown as alive"] += 1
            play.world.problem(f"{slot} is loaded in {loaded}, and {shown} is shown")

    def _time(self) -> None:
        """Time goes by; whoever lives goes on reporting meanwhile."""
        if not self._play.held:
            self.idle(self._play.dice.choice(_JUMPS_MS))

    def let_months_pass(self) -> None:
        """The longest time that goes by at once."""
        self.idle(max(_JUMPS_MS))

    def idle(self, by_ms: int) -> None:
        """Advances the time without any sign of use."""
        play = self._play
        play.lab.counters["time went by"] += 1
        play.idle_for_long |= by_ms > _DAY_MS
        play.is_forgotten |= by_ms >= _DAY_MS and not play.world.logged
        self.let_pass(by_ms)

    def let_pass(self, by_ms: int) -> None:
        """Twice so long that who is dead is shown no more, and then all at once."""
        self._play.python.idle_ms += by_ms + 2 * _BEAT_MS
        for _ in range(2):
            self._play.lab.jump(_BEAT_MS)
            self.beat()
        self._play.lab.jump(by_ms, without=b"}:i:")

    def is_shown(self) -> bool:
        """Returns whether a living run serves a partition; otherwise the run shows no sign of life.

        Before its first batch is done the registry may not know yet which partitions it has.
        """
        play = self._play
        sure = [job.name for job in play.jobs if job.alive and job.batches_done]
        alive = {f"{name}/{number}" for name in sure for number in range(PARTITIONS)}
        return any(slot in alive for _, slot in play.work.writing)

    def gen(self) -> str | None:
        """The checkpoint's, if its marker is there."""
        marker = self._play.folder / "state" / "_redis_state"
        try:
            return str(json.loads(marker.read_text())["gen"])
        except (OSError, ValueError):
            return None

    # ---- the end ----------------------------------------------------------------------------

    def before_the_end(self) -> None:
        """The folder may be moved, now that nobody works in it."""
        play = self._play
        self.close_readers()
        if play.dice.one_in(4) and self.gen() and not play.work.tasks:
            for process, slot in list(play.work.providers):
                play.lab.jvm.run(process, "close", slot)
            play.work.providers.clear()
            play.work.writing.clear()
            target = play.folder.parent / "moved"
            play.folder.rename(target)
            self._left = play.folder
            play.folder, play.adopt = target, True
            play.lab.counters["folders moved"] += 1

    def reach_moved_files(self) -> bool:
        """Makes files of the moved folder reachable where Redis says; returns false if they are."""
        if self._left is None or (self._left / FOLDER_IN_CHECKPOINT).exists():
            return False
        (self._left / FOLDER_IN_CHECKPOINT).parent.mkdir(parents=True)
        (self._left / FOLDER_IN_CHECKPOINT).symlink_to(self._play.folder / FOLDER_IN_CHECKPOINT)
        self._play.lab.counters["files of moved folders reached"] += 1
        return True

    def look_at_everything(self) -> None:
        """A process that has nothing cached reads every version that has to be there."""
        play = self._play
        process = play.lab.take_process()
        play.processes.append(process)
        newest = len(play.world.logged)
        older = max(play.world.oldest, newest - play.dice.between(1, 2))
        wanted = [(newest, number) for number in range(PARTITIONS)]
        for version, partition in [*wanted, (older, play.dice.below(PARTITIONS))]:
            self._count += 1
            slot = f"last-{self._count}/{partition}"
            self._readers.append((process, slot))
            self._read(process, slot, version, partition)
        self.close_readers()
        gen = self.gen()
        metas = [name for name in play.lab.key_names() if name.endswith(b":m")]
        others = {play.python.gen(), *(play.processors.gens() if play.processors else ())}
        others |= play.forks.gens if play.forks is not None else set()
        gens = {name.split(b":")[1].decode() for name in metas} - others
        if gens != {gen}:
            play.lab.counters["second identities"] += 1
            play.world.problem(f"the marker names {gen}, state is kept of {gens}")
        self.beat()
        self._python_reader()
        play.administrators.maintain()
        play.python.look()


@contextmanager
def _before_request(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Calls `act` once, before this request of any client; the requests of `act` do not count."""
    call, left = Client.call, number

    def counted(client: Client, *args: Any, **given: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            act()
        return call(client, *args, **given)

    with mock.patch.object(Client, "call", counted):
        yield
