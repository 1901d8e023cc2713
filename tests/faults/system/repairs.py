"""Repairs of a query with a processor: its logs, stores and partitions go back and forth."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from redis_state.batches.driver import PLACE
from redis_state.errors import RedisStateError
from redis_state.files import Folder
from redis_state.recovery.query_state import CountedStore
from tests.contract.query_scene import commands_in

if TYPE_CHECKING:
    from tests.faults.system.processors import Frame, Processors

_BACK_MAX = 3
_STEPS_MAX = 6
_CUT_AT_MAX = 6
_LOGS = ("offsets", "commits")


class _CutError(Exception):
    """A command is killed here."""


class Repairs:
    """Commands on the query of a `Processors`, which know nothing but its folder and Redis."""

    def __init__(self, query: Processors) -> None:
        self._query = query

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        """Repairs to choose from."""
        return self._rewind, self._rewind, self._lose, self._purge, self._bring_back

    def _command(self, *words: str) -> int:
        lab = self._query.play.lab
        status, said = lab.command(*words)
        lab.counters[f"{words[0]} of a processor"] += 1
        if status:
            self._query.wrong(f"{' '.join(words)}: {said}", "false errors")
        return status

    def _place(self) -> tuple[str, ...]:
        return "--checkpoint", str(self._query.folder), "--yes", "--force"

    def _back_to(self, batch: int) -> None:
        """The commit log ends with a batch; the offset log may have one more."""
        query = self._query
        query.logged = batch + 1
        planned = len(list((query.folder / "offsets").iterdir()))
        del query.entries[planned:]
        query.start()

    # ---- there and back ---------------------------------------------------------------------

    def _rewind(self) -> None:
        """The query is stopped and goes back; what was planned later is planned anew."""
        query = self._query
        oldest = max(query.oldest, query.logged - _BACK_MAX)
        if query.logged - 1 <= oldest:
            return
        to_batch = query.dice.between(oldest, query.logged - 1)
        words = ("rewind", *self._place(), "--to-batch", str(to_batch))
        if query.dice.one_in(3) and not self._cut_off(words, to_batch):
            query.play.lab.counters["rewinds cut off"] += 1
            if query.dice.one_in(2):
                self._follow_doctor()
                return
        entries = list(query.entries)
        if self._command(*words):
            return
        self._back_to(to_batch)
        if query.dice.one_in(3):
            self._undo(to_batch, entries)

    def _cut_off(self, words: Sequence[str], to_batch: int) -> bool:
        """Kill the command anywhere; whether it ended before."""
        query, before = self._query, self._logs()
        try:
            with _killed_at(query.dice.below(_CUT_AT_MAX)):
                query.play.lab.command(*words)
        except _CutError:
            pass
        else:
            return True
        newest = self._newest()
        if self._logs() != before and any(one != to_batch for one in newest):
            query.wrong(f"the logs go to {to_batch} before the stores, at {newest}", "false errors")
        return False

    def _logs(self) -> set[str]:
        folder = self._query.folder
        return {f"{log}/{one.name}" for log in _LOGS for one in (folder / log).iterdir()}

    def _newest(self) -> list[int]:
        """The newest batch of each store."""
        lab = self._query.play.lab
        found = [
            lab.redis("HGET", f"{{rs:{gen}}}:q", f"batch:{PLACE}") for gen in self._query.gens()
        ]
        return [int(one.split(b" ")[0]) for one in found if one]

    def _undo(self, to_batch: int, entries: list[Frame]) -> None:
        """Nothing has run since: the logs are put back; the stores follow by what doctor says."""
        query = self._query
        gone = sorted(query.folder.glob(f"rewound-to-{to_batch}.*"), key=_number_of)
        if not gone or len(entries) == len(query.entries):
            return
        for log in _LOGS:
            for one in list((gone[-1] / log).iterdir()) if (gone[-1] / log).is_dir() else []:
                one.rename(query.folder / log / one.name)
        query.entries[:] = entries
        query.play.lab.counters["rewinds undone"] += 1
        self._follow_doctor()

    # ---- losses -----------------------------------------------------------------------------

    def _lose(self) -> None:
        """A partition loses its newest versions; what doctor prints leads back to a start."""
        query = self._query
        gen, lab = query.gen(), query.play.lab
        if gen is None or query.logged - query.oldest < 4:
            return
        partition = query.dice.below(2)
        beginning = f"{{rs:{gen}:0:{partition}:".encode()
        names = [one for one in lab.key_names() if one.startswith(beginning)]
        meta = next((one for one in names if one.endswith(b":m")), None)
        if meta is None:
            return
        deltas = [one for one in lab.redis("HKEYS", meta) if one.startswith(b"d:")]
        deltas.sort(key=lambda one: int(one.split(b":")[1]))
        for one in deltas[-query.dice.between(1, 2) :]:
            lab.redis("UNLINK", meta[:-1] + one)
        self._follow_doctor()
        # Until then the manifest names what is lost.
        query.batch()

    def _follow_doctor(self) -> None:
        query, lab = self._query, self._query.play.lab
        for _ in range(_STEPS_MAX):
            status, said = lab.command("doctor", "--checkpoint", str(query.folder))
            if not status:
                lab.counters["losses mended by what doctor printed"] += 1
                break
            found = commands_in(said)
            for words in found:
                forced = [] if "--force" in words else ["--force"]
                status, told = lab.command(*_without_url(words), *forced)
                if status:
                    query.wrong(f"doctor printed {words}, which said: {told}", "false errors")
                    return
            if not found:
                query.wrong(f"doctor printed no way back: {said}", "false errors")
                return
        else:
            query.wrong("what doctor prints does not end", "false errors")
            return
        self._back_to(max(int(one.name) for one in (query.folder / "commits").iterdir()))

    def _bring_back(self) -> None:
        """Exported; it goes on or not, loses all, a partition or nothing, and is imported."""
        query = self._query
        # Between a rewind and the next batch readers have what was confirmed before.
        query.batch()
        gen, lab = query.gen(), query.play.lab
        if gen is None or query.logged - query.oldest < 2:
            return
        copy = query.folder.with_name(f"export {uuid.uuid4().hex[:8]}")
        if self._command("export", gen, "--to", str(copy)):
            return
        batch = json.loads((copy / "manifest.json").read_text())["batch"]
        for _ in range(query.dice.below(3)):
            query.batch()
        lost = query.dice.choice(([0, 1], [0], [1], []))
        for partition in lost:
            beginning = f"{{rs:{gen}:0:{partition}:".encode()
            names = [one for one in lab.key_names() if one.startswith(beginning)]
            lab.redis("UNLINK", *names)
        lab.counters[f"imports over {2 - len(lost)} partitions of 2"] += 1
        if not self._command("import", str(copy), *self._place()):
            if lost:
                query.oldest = batch
            self._back_to(batch)

    # ---- purges -----------------------------------------------------------------------------

    def _purge(self) -> None:
        """Purges the query: refused by name at a start within the day, restored by a recall."""
        query = self._query
        gens = query.gens()
        if not gens or not query.logged:
            return
        gen = query.dice.choice(gens)
        if self._command("purge", "--gen", gen, "--yes", "--force"):
            return
        frame = query.frame()
        ways: tuple[Callable[[], object], ...] = (
            query.driver.plan,
            lambda: query.task(frame, 0).run(),
        )
        if gen != query.gen():
            ways = (lambda: query.run_beside(frame),)
        for way in ways:
            try:
                way()
            except RedisStateError as error:
                if "purge" not in str(error):
                    query.wrong(f"a start after a purge: {error}", "false errors")
            else:
                query.wrong("a purged query was started", "wrong")
        self.recall()

    def recall(self) -> None:
        """All that was purged comes back."""
        query = self._query
        for gen in query.gens():
            if not query.play.lab.redis("HEXISTS", f"{{rs:{gen}}}:q", "purged"):
                continue
            if self._command("purge", "--gen", gen, "--recall"):
                return
            query.play.lab.counters["processors called back"] += 1
        query.start()


@contextmanager
def _killed_at(step: int) -> Iterator[None]:
    """The command dies before or behind this one of its steps that change anything."""
    left = step

    def fused(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            nonlocal left
            if left == 0:
                raise _CutError
            left -= 1
            done = real(*args, **given)
            if left == 0:
                raise _CutError
            left -= 1
            return done

        return call

    with (
        mock.patch.object(Folder, "move", fused(Folder.move)),
        mock.patch.object(CountedStore, "set_to", fused(CountedStore.set_to)),
    ):
        yield


def _number_of(path: Path) -> int:
    return int(path.suffix[1:])


def _without_url(words: list[str]) -> list[str]:
    """The lab gives its own."""
    at = words.index("--url") if "--url" in words else len(words)
    return words[:at] + words[at + 2 :]
