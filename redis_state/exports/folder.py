"""The folder of an export, in any file system that a checkpoint may have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from redis_state import files
from redis_state.errors import ConfigError, NotFoundError, RedisStateError
from redis_state.rows.arrow_types import library

if TYPE_CHECKING:
    from typing_extensions import Self

_UNFINISHED = ".tmp"
_CHUNK_BYTES = 1 << 20
_MISSING = (FileNotFoundError, NotADirectoryError)
_ADVICE = (
    "Check the path, its rights and the free space, then run the command again: complete files "
    "are kept."
)


class ExportFolder:
    """Files by their paths relative to a folder.

    A small file appears whole, or not at all. So does a large one where the file system renames;
    elsewhere an interrupted write may leave a part of it.

    Args:
        place: A local path, or an address such as ``s3://bucket/exports/flights``.

    Raises:
        ConfigError: A package is missing, or there is no such file system.
    """

    def __init__(self, place: str | Path) -> None:
        library("opening a folder for Parquet files")
        self.name = _shown(str(place))
        try:
            found = files.folder_at(str(place))
        except (RedisStateError, ValueError) as error:
            raise _opening_error(self.name, error) from None
        self._files, self._root = found.files, found.path.rstrip("/")

    def __str__(self) -> str:
        return self.name

    def path(self, name: str) -> str:
        """Returns the path of a file for messages."""
        return f"{self.name.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Returns whether a file exists.

        Raises:
            ConfigError: The file system refuses the request.
            UnavailableError: The file system gives no answer; all methods raise this.
        """
        with self.told(f"looking for {self.path(name)}"):
            try:
                self._files.size(self._at(name))
            except (*_MISSING, IsADirectoryError):
                return False
        return True

    def names(self, under: str = "") -> list[str]:
        """Returns the paths of all files below a folder, with leftovers of interrupted writes.

        Raises:
            ConfigError: The files cannot be listed.
        """
        found: list[str] = []
        waiting = [under]
        with self.told(f"listing {self.path(under)}"):
            while waiting:
                folder = waiting.pop()
                try:
                    items = self._files.items(self._at(folder))
                except _MISSING:
                    continue
                for item in items:
                    name = f"{folder}/{item.name}" if folder else item.name
                    (waiting if item.is_folder else found).append(name)
        return sorted(found)

    def read(self, name: str, *, most: int) -> bytes:
        """Reads a small file.

        Raises:
            NotFoundError: There is no such file.
            ConfigError: The file cannot be read, or has more than `most` bytes.
        """
        what = f"reading {self.path(name)}"
        with self.opened(name) as source:
            found = bytes(source.read(most + 1))
        if len(found) > most:
            raise ConfigError(what, found=f"it has more than {most:,} bytes")
        return found

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file, and replaces an existing one.

        Raises:
            ConfigError: The file cannot be written.
        """
        with self.writing(name) as sink:
            sink.write(content)

    def writing(self, name: str) -> Sink:
        """Opens a file for writing; it appears when the block ends without an error.

        Raises:
            ConfigError: The file cannot be written; the methods of the sink raise this, too.
        """
        with self.told(f"writing {self.path(name)}"):
            return Sink(self, name, self._files.create_open(self._unfinished(name)))

    def finish(self, name: str) -> None:
        """Renames a written file to its final name."""
        if not self._files.renames:
            return
        with self.told(f"writing {self.path(name)}"):
            self._files.replace(self._unfinished(name), self._at(name))

    def give_up(self, name: str) -> None:
        """Removes the leftovers of an unfinished file."""
        with suppress(Exception):
            self._files.remove(self._unfinished(name))

    def remove(self, name: str) -> None:
        """Removes a file, if it exists.

        Raises:
            ConfigError: The file cannot be removed.
        """
        with self.told(f"removing {self.path(name)}"), suppress(*_MISSING):
            self._files.remove(self._at(name))

    def remove_folder(self, name: str) -> None:
        """Removes a folder with all of its content, if it exists."""
        with self.told(f"removing {self.path(name)}"), suppress(*_MISSING):
            self._files.remove_folder(self._at(name))

    def sha256(self, name: str) -> tuple[int, str]:
        """Returns length and SHA-256 of a file.

        Raises:
            NotFoundError: There is no such file.
            ConfigError: The file cannot be read.
        """
        digest, size = hashlib.sha256(), 0
        with self.opened(name) as source:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        return size, digest.hexdigest()

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Opens a file for random access.

        Raises:
            NotFoundError: There is no such file.
            ConfigError: The file cannot be read.
        """
        with (
            self.told(f"reading {self.path(name)}"),
            closing(self._files.open(self._at(name))) as source,
        ):
            yield source

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root or "/"

    def _unfinished(self, name: str) -> str:
        return self._at(name) + (_UNFINISHED if self._files.renames else "")

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Translates errors of the file system; their texts may contain secrets."""
        try:
            yield
        except RedisStateError:
            raise
        except _MISSING[0] as error:
            raise NotFoundError(
                what, found="there is no such file", advice="Check the path."
            ) from error
        except Exception as error:
            told = self._files.error(what, error)
            raise type(told)(what, found=told.found, advice=_ADVICE, kind=told.kind) from error


class Sink:
    """A file that is being written.

    Attributes:
        bytes: Bytes written so far.
    """

    def __init__(self, folder: ExportFolder, name: str, stream: BinaryIO) -> None:
        self.bytes = 0
        self.closed = False
        self._given_up = False
        self._folder = folder
        self._name = name
        self._stream = stream
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written so far."""
        return self._digest.hexdigest()

    def write(self, content: bytes) -> int:
        """Appends bytes; returns their number."""
        size = memoryview(content).nbytes
        if not self._given_up:
            self._stream.write(content)
            self._digest.update(content)
            self.bytes += size
        return size

    def tell(self) -> int:
        """Returns the position of the next write."""
        return self.bytes

    def flush(self) -> None:
        """Does nothing, since no bytes are buffered here."""

    def close(self) -> None:
        """Does nothing: the end of the block closes the file."""

    def give_up(self) -> None:
        """Removes the written bytes; ignores later writes."""
        self._given_up = True
        with suppress(Exception):
            self._stream.close()
        self._folder.give_up(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._folder.told(f"writing {self._folder.path(self._name)}"):
            try:
                self._stream.close()
                if isinstance(error, Exception):
                    raise error
            except Exception:
                self._folder.give_up(self._name)
                raise
        if error is None:
            self._folder.finish(self._name)
        else:
            self._folder.give_up(self._name)


def _shown(place: str) -> str:
    """Returns a place for messages, without the password or options that a URL may have."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        return place
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _opening_error(shown: str, error: Exception) -> ConfigError:
    """Builds an error without the library's text, which may contain a password."""
    what = f"opening {shown}"
    if isinstance(error, RedisStateError) and "package" in error.found:
        return ConfigError(what, found=error.found, advice=error.advice)
    return ConfigError(
        what,
        found="no driver of fsspec opens such a folder",
        advice="Write the address as s3a://bucket/folder, gs://bucket/folder, "
        "abfss://container@account.dfs.core.windows.net/folder or hdfs://namenode:8020/folder; for "
        "another scheme install the driver of fsspec for it.",
    )
