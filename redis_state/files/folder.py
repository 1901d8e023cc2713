"""A folder of a file system, and what a file system has to offer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from redis_state.errors import ConfigError, RedisStateError, UsageError

READ_BYTES_MAX = 64 << 20
"""What `Folder.read` takes into memory unless it is told otherwise; above every file of a log."""


@dataclass(frozen=True, slots=True)
class Item:
    """What a listing names.

    Attributes:
        size: In bytes; 0 of a folder.
    """

    name: str
    is_folder: bool
    size: int


class Files(Protocol):
    """A file system. Paths are its own, with slashes between names.

    Steps raise `FileNotFoundError` for what is not there, and whatever else their library raises.

    Attributes:
        renames: Whether `rename` is one step that others see whole or not at all.
    """

    renames: bool

    def items(self, path: str) -> list[Item]:
        """What a folder holds, as it is now: nothing is taken from a cache."""

    def size(self, path: str) -> int:
        """The bytes of a file."""

    def open(self, path: str) -> BinaryIO:
        """To be read, from any place of it."""

    def read(self, path: str) -> bytes:
        """A whole file."""

    def create(self, path: str, raw: bytes) -> None:
        """Write a file that is not there, and the folders above it.

        Raises:
            FileExistsError: It is there.
        """

    def create_open(self, path: str) -> BinaryIO:
        """To be written from front to back, in place of a file that is there.

        Makes the folders above it. What was written lasts when it is closed.
        """

    def replace(self, source: str, target: str) -> None:
        """Move a file to where one may be; only of a file system that renames."""

    def remove_folder(self, path: str) -> None:
        """Delete a folder with all that is in it."""

    def rename(self, source: str, target: str) -> None:
        """Move a file to where none is, and make the folders above that."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def missing(self, path: str) -> str:
        """What to say of a folder that is not there, as a clause."""

    def error(self, attempted: str, error: Exception) -> RedisStateError:
        """The error of ours that says what a library meant."""

    def spellings(self, shown: str) -> set[str]:
        """Every way in which Hadoop may spell a path of users, with its scheme."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that may be there.

    Attributes:
        path: As the file system takes it.
        shown: As the user gave it; what `str` is, too.
    """

    files: Files
    path: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    def __truediv__(self, name: str) -> Folder:
        """What lies in it, which may be a file."""
        return Folder(self.files, f"{self.path.rstrip('/')}/{name}", f"{self.shown}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def items(self) -> list[Item] | None:
        """What it holds; ``None`` if it is not there.

        In an object store a folder is there if it holds something.

        Raises:
            ConfigError: It cannot be read.
            UnavailableError: The file system gives no answer.
        """
        with self._told(f"listing {self}"):
            try:
                return self.files.items(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def has(self, name: str) -> bool:
        """Whether it holds a file of this name.

        Raises:
            ConfigError: It cannot be read.
            UnavailableError: The file system gives no answer.
        """
        one = self / name
        with self._told(f"looking for {one}"):
            try:
                self.files.size(one.path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return False
        return True

    def read(self, name: str, *, most: int = READ_BYTES_MAX) -> bytes | None:
        """A file as a whole; ``None`` if it is not there.

        Args:
            most: A larger one is refused, in bytes.

        Raises:
            ConfigError: It cannot be read, or is larger.
            UnavailableError: The file system gives no answer.
        """
        one = self / name
        what = f"reading {one}"
        with self._told(what):
            try:
                size = self.files.size(one.path)
                if size > most:
                    raise ConfigError(what, found=f"it has {size:,} bytes, more than {most:,}")
                raw = self.files.read(one.path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if len(raw) != size:
            raise ConfigError(
                what,
                found=f"it has {size:,} bytes, and {len(raw):,} were given out",
                advice="Another process writes it, or the file system gave out an error in its "
                "place. Stop the query, then run the command again.",
            )
        return raw

    def open(self, name: str) -> OpenedFile | None:
        """A file, to be read from front to back; ``None`` if it is not there.

        Raises:
            ConfigError: It cannot be read.
            UnavailableError: The file system gives no answer.
        """
        one = self / name
        with self._told(f"reading {one}"):
            try:
                return OpenedFile(one, self.files.open(one.path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def move(self, source: str, target: str) -> None:
        """Move a small file to another place in this folder; a kill at any step does no harm.

        Where the file system renames, that is one step. Elsewhere the file is written at its new
        place unless one is there, read back, and only then deleted at its old place: after a kill
        it may be at both. A file that is at both, with the same bytes, is deleted at its old place.

        Args:
            source: A path in this folder.
            target: Another one.

        Raises:
            UsageError: The target is there with other bytes, or the source is gone: another
                command is at work.
            ConfigError: The file system refused a step.
            UnavailableError: It gives no answer.
        """
        raw = self.read(source)
        if raw is None:
            raise _at_work(self, source, "it is gone")
        there = self.read(target)
        if there is not None and there != raw:
            raise _at_work(self, source, f"{target} is there with other bytes")
        old, new = self / source, self / target
        what = f"moving {old} to {target}"
        with self._told(what):
            if there is None and self.files.renames:
                self.files.rename(old.path, new.path)
                return
            if there is None:
                # Another command may have been first; what is there then is looked at below.
                with suppress(FileExistsError):
                    self.files.create(new.path, raw)
        if self.read(target) != raw:
            raise ConfigError(
                what,
                found="what can be read there is not what was written",
                advice="Nothing was deleted. Check the file system, then run the command again.",
            )
        with self._told(f"deleting {old}, which is at {target} now"):
            self.files.remove(old.path)

    def missing(self) -> str:
        """What to say of it if it is not there, as a clause.

        Raises:
            ConfigError: It may not be looked at.
            UnavailableError: The file system gives no answer.
        """
        with self._told(f"looking for {self}"):
            return self.files.missing(self.path)

    def spellings(self) -> set[str]:
        """Every way in which Hadoop may spell it, with its scheme; docs/format.md, section 9."""
        return self.files.spellings(self.shown)

    @contextmanager
    def _told(self, attempted: str) -> Iterator[None]:
        """What a library raises becomes an error of ours."""
        try:
            yield
        except RedisStateError:
            raise
        except Exception as error:
            raise self.files.error(attempted, error) from error


class OpenedFile:
    """A file that is read from front to back."""

    def __init__(self, place: Folder, file: BinaryIO) -> None:
        self._place = place
        self._file = file

    def read(self, length: int) -> bytes:
        """The next bytes, fewer at the end of the file.

        Raises:
            ConfigError: The file cannot be read.
            UnavailableError: The file system gives no answer.
        """
        place = self._place
        found = bytearray()
        with place._told(f"reading {place}"):
            while len(found) < length:
                piece = self._file.read(length - len(found))
                if not piece:
                    break
                found += piece
        return bytes(found)

    def close(self) -> None:
        """Give it back."""
        self._file.close()


def _at_work(folder: Folder, source: str, found: str) -> UsageError:
    return UsageError(
        f"moving {source}",
        found=found,
        advice="Another command, or the query, is at work in this folder. End it, then run the "
        "command again.",
        where=str(folder),
    )
