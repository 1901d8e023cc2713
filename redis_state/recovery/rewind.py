"""Rewinds a checkpoint's logs, so that Spark continues after an older batch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redis_state.errors import ConfigError, UsageError
from redis_state.files import Folder

LOGS = ("offsets", "commits")
# An entry, or the checksum file that Hadoop writes in the local file system.
_ENTRY = re.compile(r"(\d+)|\.(\d+)\.crc")


@dataclass(frozen=True, slots=True)
class Rewind:
    """Files of Spark's logs that are newer than a batch, and their target folder.

    Attributes:
        folder: Folder in the checkpoint; nothing is deleted. The folder may already have files, if
            this rewind was interrupted before.
        files: Paths relative to the checkpoint, in the order of the moves.
    """

    checkpoint: Folder
    to_batch: int
    folder: str
    files: tuple[str, ...]

    def carry_out(self) -> None:
        """Moves the files, the newest batch first, and the commit of a batch before its offsets.

        An interrupted move leaves the logs as Spark does when it ends between two steps of a batch.
        A batch is then planned and not committed, or committed without a later plan. The same
        command continues an interrupted move.

        Raises:
            ConfigError: A file cannot be moved; earlier files were moved.
            UsageError: Another process is moving the files.
            UnavailableError: The file system does not answer.
        """
        for name in self.files:
            self.checkpoint.move(name, f"{self.folder}/{name}")


def newest_commit(checkpoint: Folder) -> int | None:
    """Returns the newest batch of the commit log; ``None`` if the log is empty.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    return max(committed_batches(checkpoint), default=None)


def committed_batches(checkpoint: Folder) -> set[int]:
    """Returns the batches of the commit log.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    # A checksum file without its entry is not a batch.
    return {number for number, name in _entries(checkpoint, "commits") if name.isdecimal()}


def planned_batches(checkpoint: Folder) -> set[int]:
    """Returns the batches of the offset log.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    return {number for number, name in _entries(checkpoint, "offsets") if name.isdecimal()}


def startable_batches(checkpoint: Folder) -> set[int]:
    """Returns the committed batches after which Spark can continue.

    Spark also reads the plan of the batch before (`MicroBatchExecution.populateStartOffsets`). For
    the oldest batch in the logs, that plan is gone.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    planned = planned_batches(checkpoint)
    return {one for one in committed_batches(checkpoint) if one == 0 or one - 1 in planned}


def plan_rewind(checkpoint: Folder, to_batch: int) -> Rewind:
    """Plans the moves that make a batch the newest.

    Raises:
        UsageError: Spark cannot continue after that batch.
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    startable = startable_batches(checkpoint)
    if to_batch not in startable:
        known = f"{min(startable)} to {max(startable)}" if startable else "none"
        raise UsageError(
            f"rewinding to batch {to_batch}",
            found=f"the logs lack that batch or the one before it (they have {known})",
            advice=(
                "Choose a batch that is listed by `redis-state doctor --checkpoint "
                f"{shlex.quote(str(checkpoint))}`."
            ),
            where=str(checkpoint),
        )
    newer = [
        (-number, log, name.isdecimal(), f"{log}/{name}")
        for log in LOGS
        for number, name in _entries(checkpoint, log)
        if number > to_batch
    ]
    # "commits" sorts before "offsets", and a checksum before its file, which is readable without
    # it.
    files = tuple(path for *_, path in sorted(newer))
    return Rewind(checkpoint, to_batch, _target(checkpoint, to_batch, files), files)


def _entries(checkpoint: Folder, log: str) -> Iterator[tuple[int, str]]:
    """Yields number and name of each file of a log, without Spark's temporary files."""
    items = (checkpoint / log).items()
    if items is None:
        # An object store has no empty folders, so a query without a commit has no such folder.
        if not any((checkpoint / other).items() for other in LOGS if other != log):
            raise ConfigError(
                f"reading the checkpoint's {log}",
                found=(checkpoint / log).missing(),
                advice="Give the checkpoint folder of a query, which Spark has written to.",
                where=str(checkpoint),
            )
        return
    for item in items:
        found = _ENTRY.fullmatch(item.name)
        if found and not item.is_folder:
            yield int(found[1] or found[2]), item.name


def _target(checkpoint: Folder, to_batch: int, files: Sequence[str]) -> str:
    """Returns the folder of an interrupted rewind, else a new one."""
    number = 1
    while (checkpoint / f"rewound-to-{to_batch}.{number}").items() is not None:
        number += 1
    newest = f"rewound-to-{to_batch}.{number - 1}"
    if number > 1 and files and _goes_on(checkpoint, newest, files):
        return newest
    return f"rewound-to-{to_batch}.{number}"


def _goes_on(checkpoint: Folder, folder: str, files: Sequence[str]) -> bool:
    """Returns whether a folder belongs to an interrupted rewind of these files.

    The last file ends a rewind. A completed rewind has that file. The file now in its place was
    written later, and so differs: an entry of the offset log holds the time.
    """
    for name in files:
        moved = checkpoint.read(f"{folder}/{name}")
        if moved is not None and moved != checkpoint.read(name):
            return False
    return True
