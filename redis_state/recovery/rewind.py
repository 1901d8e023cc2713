"""Takes the newest batches out of a checkpoint's logs, so that Spark goes on after an older one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redis_state.errors import ConfigError, UsageError
from redis_state.files import Folder

LOGS = ("offsets", "commits")
# An entry, or the checksum that Hadoop keeps beside it in the local file system.
_ENTRY = re.compile(r"(\d+)|\.(\d+)\.crc")


@dataclass(frozen=True, slots=True)
class Rewind:
    """Files of Spark's logs that are newer than a batch, and where they go.

    Attributes:
        folder: A folder in the checkpoint; nothing is deleted. It may have files of this rewind
            already, if an earlier one was interrupted.
        files: Paths relative to the checkpoint, in the order in which they go.
    """

    checkpoint: Folder
    to_batch: int
    folder: str
    files: tuple[str, ...]

    def carry_out(self) -> None:
        """Move the files, the newest batch first, and of a batch its commit first.

        A move that is interrupted leaves what Spark itself leaves when it ends between two steps
        of a batch: a batch is planned and not committed, or committed and no later one planned.
        The same command goes on where it ended.

        Raises:
            ConfigError: A file cannot be moved; those before it were.
            UsageError: Another one moves them at this moment.
            UnavailableError: The file system gives no answer.
        """
        for name in self.files:
            self.checkpoint.move(name, f"{self.folder}/{name}")


def newest_commit(checkpoint: Folder) -> int | None:
    """The newest batch of the commit log; ``None`` if there is none.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    return max(committed_batches(checkpoint), default=None)


def committed_batches(checkpoint: Folder) -> set[int]:
    """The batches of the commit log.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    # A checksum that Hadoop left behind is not an entry.
    return {number for number, name in _entries(checkpoint, "commits") if name.isdecimal()}


def startable_batches(checkpoint: Folder) -> set[int]:
    """The committed batches after which Spark can go on.

    It reads the plan of the batch before, too (`MicroBatchExecution.populateStartOffsets`), which
    the logs do not have any more of the oldest one there.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    planned = {number for number, name in _entries(checkpoint, "offsets") if name.isdecimal()}
    return {one for one in committed_batches(checkpoint) if one == 0 or one - 1 in planned}


def plan_rewind(checkpoint: Folder, to_batch: int) -> Rewind:
    """What has to be moved so that a batch is the newest.

    Raises:
        UsageError: Spark cannot go on after that batch.
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    startable = startable_batches(checkpoint)
    if to_batch not in startable:
        known = f"{min(startable)} to {max(startable)}" if startable else "none"
        raise UsageError(
            f"rewinding to batch {to_batch}",
            found=f"the logs do not have that batch and the one before it (they have {known})",
            advice="Give one that is named by `redis-state doctor --checkpoint "
            f"{shlex.quote(str(checkpoint))}`.",
            where=str(checkpoint),
        )
    newer = [
        (-number, log, name.isdecimal(), f"{log}/{name}")
        for log in LOGS
        for number, name in _entries(checkpoint, log)
        if number > to_batch
    ]
    # "commits" is before "offsets", and a checksum before its file, which can be read without it.
    files = tuple(path for *_, path in sorted(newer))
    return Rewind(checkpoint, to_batch, _target(checkpoint, to_batch, files), files)


def _entries(checkpoint: Folder, log: str) -> Iterator[tuple[int, str]]:
    """Number and name of each file of a log; temporary files of Spark are none of it."""
    items = (checkpoint / log).items()
    if items is None:
        # An object store has no empty folders: a query without a commit has none for them.
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
    """The folder of a rewind that was interrupted, else a new one."""
    number = 1
    while (checkpoint / f"rewound-to-{to_batch}.{number}").items() is not None:
        number += 1
    newest = f"rewound-to-{to_batch}.{number - 1}"
    if number > 1 and files and _goes_on(checkpoint, newest, files):
        return newest
    return f"rewound-to-{to_batch}.{number}"


def _goes_on(checkpoint: Folder, folder: str, files: Sequence[str]) -> bool:
    """Whether a folder is of a rewind that has still to move these files.

    The last file ends a rewind. One that had ended has it, and what is in its place now was written
    later, at another time, which an entry of the offset log holds.
    """
    for name in files:
        moved = checkpoint.read(f"{folder}/{name}")
        if moved is not None and moved != checkpoint.read(name):
            return False
    return True
