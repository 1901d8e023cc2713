"""The plan of a batch in Spark's logs, and a check that its input still exists."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from redis_state.errors import ConfigError, NotFoundError, UsageError
from redis_state.files import Folder, folder_at
from redis_state.forks.logs import (
    last_file_entry,
    offsets_of,
    source_files,
    without_gen,
)
from redis_state.recovery.rewind import committed_batches, planned_batches

_COMPACT = ".compact"
_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch in the logs of a query.

    Attributes:
        plan: Its entry in the offset log, which Spark runs unchanged.
        offsets: The offset at which the batch ends, by the folder name of each source.
    """

    checkpoint: Folder
    number: int
    plan: bytes
    offsets: Mapping[str, str]

    def copy_to(self, target: Folder) -> None:
        """Adds the plan of the batch, and the logs of its sources, to a fork of the batch before.

        Raises:
            ConfigError: A file cannot be read or written.
        """
        if self.number == 0:
            target.write("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        for name in source_files(self.checkpoint, self.offsets):
            target.write(name, self.checkpoint.read(name) or b"")
        name = f"offsets/{self.number}"
        target.write(name, without_gen(self.checkpoint, name, self.plan))

    def check_sources(self) -> None:
        """Checks that the files which the batch read still exist.

        Other sources are checked by Spark alone, when the batch begins.

        Raises:
            NotFoundError: A file is gone.
        """
        gone = [path for path in self._files() if not _is_there(path)]
        if gone:
            more = f" and {len(gone) - _SHOWN_MAX} more" if len(gone) > _SHOWN_MAX else ""
            raise NotFoundError(
                f"replaying batch {self.number}",
                found=f"files that the batch read are gone: {', '.join(gone[:_SHOWN_MAX])}{more}",
                advice="Restore them, or replay a batch whose files still exist.",
                where=str(self.checkpoint),
            )

    def _files(self) -> Iterator[str]:
        """Yields the files that the batch read, as far as the logs of file sources name them."""
        before: Mapping[str, str] = {}
        name = f"offsets/{self.number - 1}"
        if (raw := self.checkpoint.read(name)) is not None:
            before = offsets_of(self.checkpoint, name, raw)
        for source, offset in self.offsets.items():
            end = last_file_entry(offset)
            if end is not None:
                begin = last_file_entry(before.get(source, "-"))
                log = self.checkpoint / "sources" / source
                yield from _logged_files(log, -1 if begin is None else begin, end)


def planned_batch(checkpoint: Folder, number: int) -> PlannedBatch:
    """Returns a batch that the query has committed.

    Raises:
        UsageError: Spark's logs do not have the batch, or it was not committed.
        ConfigError: The folder is not a checkpoint, or cannot be read.
        FormatError: The entry was not written by Spark.
    """
    name = f"offsets/{number}"
    plan = checkpoint.read(name)
    known = committed_batches(checkpoint) & planned_batches(checkpoint)
    if plan is None or number not in known:
        raise UsageError(
            f"replaying batch {number}",
            found="Spark's logs do not have this batch, or it was not committed",
            advice=(
                f"Choose one of the batches {min(known)} to {max(known)}. Spark keeps as many as "
                "`spark.sql.streaming.minBatchesToRetain` says."
                if known
                else "The query has committed no batch yet."
            ),
            where=str(checkpoint),
        )
    return PlannedBatch(checkpoint, number, plan, offsets_of(checkpoint, name, plan))


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
            # A compacted entry also has the files of all batches before it.
            if isinstance(entry, Mapping) and entry.get("batchId", number) == number:
                path = entry.get("path")
                if isinstance(path, str):
                    yield path


def _is_there(path: str) -> bool:
    parent, _, name = path.rpartition("/")
    try:
        return folder_at(parent).has(name)
    except ConfigError:
        # No library for this file system: Spark checks the file when it reads it.
        return True
