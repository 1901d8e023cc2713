"""The local file system, including mounts."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from redis_state.errors import ConfigError
from redis_state.files.folder import Item


class LocalFiles:
    """Local files without a library. fsspec has them too, but is an optional package."""

    renames = True

    def items(self, path: str) -> list[Item]:
        """Implements `Files.items`."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                is_folder = entry.is_dir()
                found.append(Item(entry.name, is_folder, 0 if is_folder else _size(entry)))
        return found

    def size(self, path: str) -> int:
        """Implements `Files.size`."""
        if Path(path).is_dir():
            raise IsADirectoryError(path)
        return Path(path).stat().st_size

    def open(self, path: str) -> BinaryIO:
        """Implements `Files.open`."""
        return Path(path).open("rb")

    def read(self, path: str) -> bytes:
        """Implements `Files.read`."""
        return Path(path).read_bytes()

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Implements `Files.read_ranges`."""
        found = []
        with Path(path).open("rb") as file:
            for offset, length in spans:
                file.seek(offset)
                found.append(file.read(length))
        return found

    def create(self, path: str, raw: bytes) -> None:
        """Implements `Files.create`."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())

    def create_open(self, path: str) -> BinaryIO:
        """Implements `Files.create_open`."""
        _make_folder(Path(path).parent)
        return io.BufferedWriter(_Lasting(path, "wb"))

    def replace(self, source: str, target: str) -> None:
        """Implements `Files.replace`."""
        Path(source).replace(target)
        _sync_folder(Path(target).parent)

    def remove_folder(self, path: str) -> None:
        """Implements `Files.remove_folder`."""
        shutil.rmtree(path)

    def rename(self, source: str, target: str) -> None:
        """Implements `Files.rename`."""
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(source).rename(target)

    def remove(self, path: str) -> None:
        """Implements `Files.remove`."""
        Path(path).unlink()

    def make_folder(self, path: str) -> None:
        """Implements `Files.make_folder`."""
        Path(path).mkdir(parents=True, exist_ok=True)

    def missing(self, path: str) -> str:
        """Implements `Files.missing`."""
        if Path(path).exists():
            return "it is not a folder"
        return "there is no such folder on this machine"

    def error(self, attempted: str, error: Exception) -> ConfigError:
        """Implements `Files.error`."""
        text = error.strerror if isinstance(error, OSError) else None
        return ConfigError(
            attempted,
            found=f"{type(error).__name__}: {text}" if text else type(error).__name__,
            advice="Check the rights and the disk, then run the command again.",
        )

    def spellings(self, shown: str) -> set[str]:
        """Implements `Files.spellings`, with and without symbolic links."""
        whole = Path(shown)
        return {
            f"file:{one}" for one in (whole, whole.resolve(), Path(*_without_dots(whole.parts)))
        }

    def spelling(self, shown: str) -> str:
        """Implements `Files.spelling`; Hadoop leaves symbolic links as they are."""
        return f"file:{Path(*_without_dots(Path(shown).parts))}"


class _Lasting(io.FileIO):
    """A file that is synced to disk, and its name too, before it is closed."""

    def close(self) -> None:
        was_open = not self.closed
        try:
            if was_open:
                os.fsync(self.fileno())
        finally:
            super().close()
        if was_open:
            _sync_folder(Path(str(self.name)).parent)


def _make_folder(path: Path) -> None:
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        _sync_folder(one.parent)


def _sync_folder(path: Path) -> None:
    """Syncs the names in a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        # A temporary file that was renamed since the listing.
        return 0


def _without_dots(parts: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    for part in parts:
        if part == ".." and len(kept) > 1:
            kept.pop()
        elif part != "..":
            kept.append(part)
    return kept
