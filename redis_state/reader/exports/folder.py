"""A folder in any file system that pyarrow or fsspec knows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis_state.errors import ConfigError, NotFoundError
from redis_state.reader.arrow_types import library

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

_UNFINISHED = ".tmp"
_CHUNK_BYTES = 1 << 20


class Folder:
    """Files by their paths relative to a folder; a file appears whole, or not at all.

    Args:
        place: A local path, or a URL such as ``s3://bucket/exports/flights``.

    Raises:
        ConfigError: pyarrow is missing, or there is no such file system.
    """

    def __init__(self, place: str | Path) -> None:
        library("opening a folder for Parquet files")
        self.name = _shown(str(place))
        self._fs, self._root = _file_system(str(place))

    def __str__(self) -> str:
        return self.name

    def path(self, name: str) -> str:
        """A file's path as people are told it."""
        return f"{self.name.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is such a file.

        Raises:
            ConfigError: The file system does not say so.
        """
        from pyarrow.fs import FileType

        with self.told(f"looking for {self.path(name)}"):
            found = self._fs.get_file_info([self._at(name)])[0]
        return bool(found.type == FileType.File)

    def names(self, under: str = "") -> list[str]:
        """Paths of all files below a folder, those left by an interrupted write too.

        Raises:
            ConfigError: They cannot be listed.
        """
        from pyarrow.fs import FileSelector, FileType

        base = self._at(under) if under else self._root
        with self.told(f"listing {self.path(under)}"):
            wanted = FileSelector(base, allow_not_found=True, recursive=True)
            found = self._fs.get_file_info(wanted)
        root = self._root.rstrip("/") + "/"
        files = (one.path for one in found if one.type == FileType.File)
        return sorted(path.removeprefix(root).removeprefix("/") for path in files)

    def read(self, name: str, *, most: int) -> bytes:
        """A small file.

        Raises:
            NotFoundError: There is none.
            ConfigError: It cannot be read, or has more than `most` bytes.
        """
        what = f"reading {self.path(name)}"
        with self.told(what), self._fs.open_input_stream(self._at(name)) as source:
            found = bytes(source.read(most + 1))
        if len(found) > most:
            raise ConfigError(what, found=f"it has more than {most:,} bytes")
        return found

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, in place of one that is there.

        Raises:
            ConfigError: It cannot be written.
        """
        with self.writing(name) as sink:
            sink.write(content)

    def writing(self, name: str) -> Sink:
        """A file to be written; it appears when the block ends without an error.

        Raises:
            ConfigError: It cannot be written; so do the methods.
        """
        path = self._at(name)
        with self.told(f"writing {self.path(name)}"):
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
            stream = self._fs.open_output_stream(path + _UNFINISHED)
        return Sink(self, name, stream)

    def finish(self, name: str) -> None:
        """Give a file that was written its name."""
        path = self._at(name)
        with self.told(f"writing {self.path(name)}"):
            self._fs.move(path + _UNFINISHED, path)

    def give_up(self, name: str) -> None:
        """Remove what there is of a file that was not finished."""
        with suppress(OSError):
            self._fs.delete_file(self._at(name) + _UNFINISHED)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is none.

        Raises:
            ConfigError: It cannot be removed.
        """
        with self.told(f"removing {self.path(name)}"), suppress(FileNotFoundError):
            self._fs.delete_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it; one that is not there is none."""
        with self.told(f"removing {self.path(name)}"), suppress(FileNotFoundError):
            self._fs.delete_dir(self._at(name))

    def sha256(self, name: str) -> tuple[int, str]:
        """Length and SHA-256 of a file.

        Raises:
            NotFoundError: There is none.
            ConfigError: It cannot be read.
        """
        digest, size = hashlib.sha256(), 0
        with (
            self.told(f"reading {self.path(name)}"),
            self._fs.open_input_stream(self._at(name)) as source,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        return size, digest.hexdigest()

    @contextmanager
    def opened(self, name: str) -> Iterator[pa.NativeFile]:
        """A file for reading from any place of it.

        Raises:
            NotFoundError: There is none.
            ConfigError: It cannot be read.
        """
        with (
            self.told(f"reading {self.path(name)}"),
            self._fs.open_input_file(self._at(name)) as source,
        ):
            yield source

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Errors of the file system by their names."""
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(
                what, found="there is no such file", advice="Check the path."
            ) from error
        except OSError as error:
            raise ConfigError(
                what,
                found=_reason(error),
                advice="Check the path, its rights and the space there, and run it again: what is "
                "complete is kept.",
            ) from error


class Sink:
    """A file that is being written.

    Attributes:
        bytes: Written so far.
    """

    def __init__(self, folder: Folder, name: str, stream: Any) -> None:
        self.bytes = 0
        self.closed = False
        self._given_up = False
        self._folder = folder
        self._name = name
        self._stream = stream
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what was written so far."""
        return self._digest.hexdigest()

    def write(self, content: bytes) -> int:
        """Write on."""
        size = memoryview(content).nbytes
        if not self._given_up:
            self._stream.write(content)
            self._digest.update(content)
            self.bytes += size
        return size

    def tell(self) -> int:
        """Where the next bytes go."""
        return self.bytes

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """The end of the block closes it."""

    def give_up(self) -> None:
        """Remove what was written; what is still to come goes nowhere."""
        self._given_up = True
        with suppress(OSError):
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
                if isinstance(error, OSError):
                    raise error
            except OSError:
                self._folder.give_up(self._name)
                raise
        if error is None:
            self._folder.finish(self._name)
        else:
            self._folder.give_up(self._name)


def _shown(place: str) -> str:
    """A place as messages have it: a URL may hold a password, or options with one."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        return place
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _file_system(place: str) -> tuple[Any, str]:
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

    what = f"opening {_shown(place)}"
    if "://" not in place:
        return LocalFileSystem(), str(Path(place).absolute())
    try:
        file_system, root = FileSystem.from_uri(place)
    except (ArrowException, OSError, ValueError) as error:
        try:
            from fsspec.core import url_to_fs

            file_system, root = url_to_fs(place)
        except (ImportError, ValueError, OSError):
            raise ConfigError(
                what,
                found="neither pyarrow nor fsspec can open such a folder",
                advice="Check the URL, and install the package of fsspec for its scheme, such as "
                "s3fs, gcsfs or adlfs.",
            ) from error
        return PyFileSystem(FSSpecHandler(file_system)), root
    return file_system, root


def _reason(error: OSError) -> str:
    """What the system says, without a path or URL that may hold a secret."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
