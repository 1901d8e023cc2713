"""Folders of a file system, and the interface of a file system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from redis_state.errors import ConfigError, RedisStateError, UsageError

_ASIDE = ".redis_state"
READ_BYTES_MAX = 64 << 20
"""Default limit of `Folder.read`; above the size of every file of a log."""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a listing.

    Attributes:
        size: In bytes; 0 for a folder.
    """

    name: str
    is_folder: bool
    size: int


class Files(Protocol):
    """A file system. Paths are its own, with slashes between names.

    Methods raise `FileNotFoundError` for a missing file, and any other error of their library.

    Attributes:
        renames: True if `rename` is atomic.
    """

    renames: bool

    def items(self, path: str) -> list[Item]:
        """Lists a folder as it is now, without a cache."""

    def size(self, path: str) -> int:
        """Returns the bytes of a file."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, with random access."""

    def read(self, path: str) -> bytes:
        """Reads a whole file."""

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads ranges of a file, each an offset and a length; a range may be cut by the end."""

    def create(self, path: str, raw: bytes) -> None:
        """Creates a file, and the folders above it.

        Raises:
            FileExistsError: The file exists.
        """

    def create_open(self, path: str) -> BinaryIO:
        """Opens a file for sequential writing, and replaces an existing file.

        Creates the folders above it. The content is durable once the file is closed.
        """

    def replace(self, source: str, target: str) -> None:
        """Moves a file onto an existing or new file; only for file systems that rename."""

    def remove_folder(self, path: str) -> None:
        """Deletes a folder with its content."""

    def rename(self, source: str, target: str) -> None:
        """Moves a file to a new place, and creates the folders above it."""

    def remove(self, path: str) -> None:
        """Deletes a file."""

    def make_folder(self, path: str) -> None:
        """Creates a folder and those above it; does nothing in a file system without folders."""

    def missing(self, path: str) -> str:
        """Returns a clause for messages that explains why a folder is missing."""

    def error(self, attempted: str, error: Exception) -> RedisStateError:
        """Converts an error of the library to one of redis-state."""

    def spellings(self, shown: str) -> set[str]:
        """Returns all spellings that Hadoop may use for a user's path, with scheme."""

    def spelling(self, shown: str) -> str:
        """Returns the spelling that Hadoop uses for a path as the user wrote it, with scheme."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that may not exist.

    Every access raises `ConfigError` if the file system refuses it, and `UnavailableError` if the
    file system does not answer.

    Attributes:
        path: Path in the file system.
        shown: The path as the user wrote it; also the result of `str`.
    """

    files: Files
    path: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    def __truediv__(self, name: str) -> Folder:
        """Returns the child of this name, which may be a file."""
        return Folder(self.files, f"{self.path.rstrip('/')}/{name}", f"{self.shown}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def items(self) -> list[Item] | None:
        """Lists the folder; ``None`` if it does not exist.

        In an object store a folder exists if it is not empty.
        """
        with self._told(f"listing {self}"):
            try:
                return self.files.items(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def has(self, name: str) -> bool:
        """Returns whether the folder has a file of this name."""
        one = self / name
        with self._told(f"looking for {one}"):
            try:
                self.files.size(one.path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return False
        return True

    def read(self, name: str, *, most: int = READ_BYTES_MAX) -> bytes | None:
        """Reads a whole file; ``None`` if it does not exist.

        Args:
            most: Largest accepted size in bytes.

        Raises:
            ConfigError: The file cannot be read, or is larger.
            UnavailableError: The file system does not answer.
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
                found=f"it has {size:,} bytes, but {len(raw):,} were read",
                advice=(
                    "Another process writes it, or the file system returned an error in its "
                    "place. Stop the query, then run the command again."
                ),
            )
        return raw

    def open(self, name: str) -> OpenedFile | None:
        """Opens a file for sequential reading; ``None`` if it does not exist."""
        one = self / name
        with self._told(f"reading {one}"):
            try:
                return OpenedFile(one, self.files.open(one.path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Reads ranges of a file, each an offset and a length.

        Returns:
            ``None`` if the file does not exist, or ends within a range.
        """
        one = self / name
        with self._told(f"reading {one}"):
            try:
                found = self.files.read_ranges(one.path, spans)
            except (FileNotFoundError, NotADirectoryError):
                return None
        fits = all(len(raw) == length for raw, (_, length) in zip(found, spans, strict=True))
        return found if fits else None

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Writes a file under a name that was never used; it is durable afterwards.

        An error of the iteration is no error of the file system, and passes.
        """
        one = self / name
        what = f"writing {one}"
        with self._told(what):
            file = self.files.create_open(one.path)
        try:
            for piece in pieces:
                with self._told(what):
                    file.write(piece)
        finally:
            with self._told(what):
                file.close()

    def remove_file(self, name: str) -> None:
        """Removes a file; does nothing if it does not exist."""
        one = self / name
        with self._told(f"removing {one}"), suppress(FileNotFoundError, NotADirectoryError):
            self.files.remove(one.path)

    def create(self, name: str, raw: bytes) -> bool:
        """Creates a small file; returns false if it exists, and leaves that alone."""
        one = self / name
        with self._told(f"creating {one}"):
            try:
                self.files.create(one.path, raw)
            except FileExistsError:
                return False
        return True

    def write(self, name: str, raw: bytes) -> None:
        """Writes a small file, which appears whole, and replaces an existing one."""
        one = self / name
        above, _, last = name.rpartition("/")
        aside = (self / above if above else self) / f".{last}{_ASIDE}"
        written = aside if self.files.renames else one
        with self._told(f"writing {one}"):
            with closing(self.files.create_open(written.path)) as file:
                file.write(raw)
            if self.files.renames:
                self.files.replace(aside.path, one.path)

    def make(self) -> None:
        """Creates the folder and those above it, unless the file system has no folders."""
        with self._told(f"creating {self}"):
            self.files.make_folder(self.path)

    def remove(self) -> None:
        """Removes the folder and all in it; does nothing if it does not exist."""
        with self._told(f"removing {self}"), suppress(FileNotFoundError):
            self.files.remove_folder(self.path)

    def move(self, source: str, target: str) -> None:
        """Moves a small file within this folder; a kill at any step does no harm.

        Uses one atomic rename if the file system has it. Otherwise creates the file at the target
        unless it exists, reads it back, and only then deletes the source. After a kill the file may
        be at both places. The next call then deletes the source, if the bytes are equal.

        Args:
            source: A path in this folder.
            target: Another path in this folder.

        Raises:
            UsageError: The target exists with other bytes, or the source is gone: another command
                is running.
            ConfigError: The file system refused a step.
            UnavailableError: The file system does not answer.
        """
        raw = self.read(source)
        if raw is None:
            raise _at_work(self, source, "it is gone")
        there = self.read(target)
        if there is not None and there != raw:
            raise _at_work(self, source, f"{target} exists with other bytes")
        old, new = self / source, self / target
        what = f"moving {old} to {target}"
        with self._told(what):
            if there is None and self.files.renames:
                self.files.rename(old.path, new.path)
                return
            if there is None:
                # If another command created the file first, its content is compared below.
                with suppress(FileExistsError):
                    self.files.create(new.path, raw)
        if self.read(target) != raw:
            raise ConfigError(
                what,
                found="the bytes read differ from those written",
                advice="Nothing was deleted. Check the file system, then run the command again.",
            )
        with self._told(f"deleting {old}, which is at {target} now"):
            self.files.remove(old.path)

    def missing(self) -> str:
        """Returns a clause for messages that explains why the folder is missing.

        Raises:
            ConfigError: Access is denied.
            UnavailableError: The file system does not answer.
        """
        with self._told(f"looking for {self}"):
            return self.files.missing(self.path)

    def spellings(self) -> set[str]:
        """Returns all spellings that Hadoop may use, with scheme (docs/format.md, section 9)."""
        return self.files.spellings(self.shown)

    def spelling(self) -> str:
        """Returns the spelling that Hadoop uses for the address as it is written, with scheme."""
        return self.files.spelling(self.shown)

    @contextmanager
    def _told(self, attempted: str) -> Iterator[None]:
        """Converts errors of the library to those of redis-state."""
        try:
            yield
        except RedisStateError:
            raise
        except Exception as error:
            raise self.files.error(attempted, error) from error


class OpenedFile:
    """A file that is read sequentially; errors are those of `Folder`."""

    def __init__(self, place: Folder, file: BinaryIO) -> None:
        self._place = place
        self._file = file

    def read(self, length: int) -> bytes:
        """Reads the next bytes; fewer at the end of the file."""
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
        """Closes the file."""
        self._file.close()


def _at_work(folder: Folder, source: str, found: str) -> UsageError:
    return UsageError(
        f"moving {source}",
        found=found,
        advice=(
            "Another command or the query uses this folder. Stop it, then run the command again."
        ),
        where=str(folder),
    )
