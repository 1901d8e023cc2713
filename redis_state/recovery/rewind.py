"""Takes the newest batches out of a checkpoint's logs, so that Spark goes on after an older one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from redis_state.errors import ConfigError, UsageError

LOGS = ("offsets", "commits")
_ENTRY = re.compile(r"\.?(\d+)(?:\.crc)?")


@dataclass(frozen=True, slots=True)
class Rewind:
    """Files of Spark's logs that are newer than a batch, and where they go.

    Attributes:
        folder: A new folder in the checkpoint; nothing is deleted.
        files: Paths relative to the checkpoint.
    """

    checkpoint: Path
    to_batch: int
    folder: str
    files: tuple[str, ...]

    def carry_out(self) -> None:
        """Move the files, commits first: a move that is interrupted leaves what Spark can read.

        Raises:
            ConfigError: A file cannot be moved; those before it were.
        """
        for name in self.files:
            target = self.checkpoint / self.folder / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                (self.checkpoint / name).rename(target)
            except OSError as error:
                raise ConfigError(
                    f"moving {name}",
                    found=type(error).__name__,
                    advice="Make the checkpoint writable and run the command again.",
                    where=str(self.checkpoint),
                ) from error


def newest_commit(checkpoint: Path) -> int | None:
    """The newest batch of the commit log; ``None`` if there is none.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    return max(committed_batches(checkpoint), default=None)


def committed_batches(checkpoint: Path) -> set[int]:
    """The batches of the commit log.

    Raises:
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    # A checksum that Hadoop left behind is not an entry.
    return {int(path.name) for path in _entries(checkpoint, "commits") if path.name.isdecimal()}


def plan_rewind(checkpoint: Path, to_batch: int) -> Rewind:
    """What has to be moved so that a batch is the newest.

    Raises:
        UsageError: The commit log does not have that batch.
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    committed = committed_batches(checkpoint)
    if to_batch not in committed:
        known = f"{min(committed)} to {max(committed)}" if committed else "none"
        raise UsageError(
            f"rewinding to batch {to_batch}",
            found=f"the commit log does not have that batch (it has {known})",
            advice="Give one that `redis-state doctor` names.",
            where=str(checkpoint),
        )
    newer = [
        path
        for log in reversed(LOGS)
        for path in sorted(_entries(checkpoint, log), key=_number, reverse=True)
        if _number(path) > to_batch
    ]
    files = tuple(str(path.relative_to(checkpoint)) for path in newer)
    return Rewind(checkpoint, to_batch, _fresh_folder(checkpoint, to_batch), files)


def _entries(checkpoint: Path, log: str) -> list[Path]:
    try:
        return [path for path in (checkpoint / log).iterdir() if _ENTRY.fullmatch(path.name)]
    except OSError as error:
        raise ConfigError(
            f"reading the checkpoint's {log}",
            found=type(error).__name__,
            advice="Give the checkpoint folder of a query, which Spark has written to.",
            where=str(checkpoint),
        ) from error


def _number(path: Path) -> int:
    found = _ENTRY.fullmatch(path.name)
    return int(found[1]) if found else -1


def _fresh_folder(checkpoint: Path, to_batch: int) -> str:
    number = 1
    while (checkpoint / f"rewound-to-{to_batch}.{number}").exists():
        number += 1
    return f"rewound-to-{to_batch}.{number}"
