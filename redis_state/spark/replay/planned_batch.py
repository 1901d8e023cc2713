"""The plan of a batch in Spark's logs, and whether its sources still have what it read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from redis_state.errors import ConfigError, NotFoundError, UsageError
from redis_state.files import Folder, folder_at
from redis_state.recovery.rewind import committed_batches, planned_batches

_SOURCES = "sources"
_COMPACT = ".compact"
_MISSING_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One batch of a query's logs.

    Attributes:
        plan: Its entry in the offset log, which Spark carries out as it stands.
    """

    checkpoint: Folder
    number: int
    plan: bytes

    def copy_to(self, target: Folder) -> None:
        """Adds the plan of the batch, and the logs of the sources, to a fork of the batch before.

        Raises:
            ConfigError: A file cannot be read or written.
        """
        for name, raw in self._source_entries():
            _create(target, name, raw)
        _create(target, f"offsets/{self.number}", self.plan)

    def check_sources(self) -> None:
        """Checks that files which the batch read are still there.

        Only Spark knows what other sources can still serve; it asks them when the batch begins.

        Raises:
            NotFoundError: A file is gone.
        """
        what = f"replaying batch {self.number}"
        gone = [path for path in self._files() if not _is_there(path)]
        if gone:
            shown = ", ".join(gone[:_MISSING_SHOWN])
            raise NotFoundError(
                what,
                found=f"{len(gone)} files that the batch read are gone: {shown}",
                advice="Put the files back, or replay a batch whose files are still there.",
                where=str(self.checkpoint),
            )

    def _files(self) -> Iterator[str]:
        """Yields the files that the batch read, as far as the logs of file sources name them."""
        before = self.checkpoint.read(f"offsets/{self.number - 1}")
        ends = _ends(self.plan)
        begins = _ends(before) if before is not None else {}
        for source, end in ends.items():
            begin = begins.get(source, -1)
            for entry in _logged_files(self.checkpoint / _SOURCES / str(source), begin, end):
                yield entry

    def _source_entries(self) -> Iterator[tuple[str, bytes]]:
        sources = self.checkpoint / _SOURCES
        for source in sources.items() or ():
            for item in (sources / source.name).items() or ():
                raw = sources.read(f"{source.name}/{item.name}")
                if raw is not None and not item.is_folder and not item.name.startswith("."):
                    yield f"{_SOURCES}/{source.name}/{item.name}", raw


def planned_batch(checkpoint: Folder, number: int) -> PlannedBatch:
    """Returns a batch that the query has committed.

    Raises:
        UsageError: Spark's logs do not have the batch, or it was not committed.
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    plan = checkpoint.read(f"offsets/{number}")
    known = committed_batches(checkpoint) & planned_batches(checkpoint)
    if plan is None or number not in known:
        first, last = min(known, default=None), max(known, default=None)
        raise UsageError(
            f"replaying batch {number}",
            found="Spark's logs do not have this batch, or it was not committed",
            advice=(
                "Choose one of the batches "
                f"{first} to {last}; Spark keeps as many as `spark.sql.streaming.minBatchesToRetain`."
                if known
                else "The query has committed no batch yet."
            ),
            where=str(checkpoint),
        )
    return PlannedBatch(checkpoint, number, plan)


def _ends(plan: bytes) -> dict[int, int]:
    """Returns the last entry of each file source's log that a plan names, by source."""
    found: dict[int, int] = {}
    for source, line in enumerate(plan.decode("utf-8", "replace").splitlines()[2:]):
        try:
            offset = json.loads(line)
        except ValueError:
            continue
        if isinstance(offset, Mapping) and isinstance(offset.get("logOffset"), int):
            found[source] = offset["logOffset"]
    return found


def _logged_files(log: Folder, begin: int, end: int) -> Iterator[str]:
    """Yields the files of the entries above `begin`, up to `end`, of a file source's log."""
    names = {item.name for item in log.items() or ()}
    for number in range(begin + 1, end + 1):
        name = str(number) if str(number) in names else f"{number}{_COMPACT}"
        raw = log.read(name) if name in names else None
        for line in (raw or b"").decode("utf-8", "replace").splitlines()[1:]:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            # A compacted entry has those of all batches before it, too.
            if isinstance(entry, Mapping) and entry.get("batchId", number) == number:
                path = entry.get("path")
                if isinstance(path, str):
                    yield path


def _is_there(path: str) -> bool:
    parent, _, name = path.rpartition("/")
    try:
        return folder_at(parent).has(name)
    except ConfigError:
        # No library for this file system: Spark will find out.
        return True


def _create(target: Folder, name: str, raw: bytes) -> None:
    if not target.has(name):
        target.create(name, raw)
