"""Folder of this process on a local disk, with a lock that ends with the process.

The JVM has the same (`DiskFolder`), with the same names and locks, so that both may share a parent
folder. The next process removes the folder of a killed one.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import uuid
from contextlib import suppress
from itertools import count
from pathlib import Path

from redis_state.process import process_id

if sys.platform != "win32":
    import fcntl

PREFIX = "redis-state-disk-"
LOCK = "lock"
_TRIES_MAX = 8


class DiskFolder:
    """A folder for copies, which only the user of this process may enter.

    The lock is that of POSIX for whole files: it belongs to this process alone, also after a fork,
    and ends when the process closes any descriptor of its file.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._numbers = count(1)

    def new_file(self) -> Path:
        """Returns a new name in the folder."""
        return self.path / f"{next(self._numbers)}.seg"

    def close(self) -> None:
        """Removes the folder."""
        _remove(self.path)
        with suppress(OSError):
            os.close(self._lock)

    @classmethod
    def open(cls, parent: Path) -> DiskFolder:
        """Makes a folder for this process, and removes those of processes that have ended.

        Args:
            parent: Created if it is missing.

        Raises:
            OSError: The parent does not accept files or locks.
        """
        parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES_MAX):
            made = cls._made(parent)
            if made is not None:
                with suppress(OSError):
                    _sweep(parent, made.path)
                return made
        raise OSError(errno.EAGAIN, "no folder with a lock can be made", str(parent))

    @classmethod
    def _made(cls, parent: Path) -> DiskFolder | None:
        """Makes a folder; ``None`` if a process that removes leftovers was faster than the lock."""
        path = parent / f"{_own()}{uuid.uuid4().hex}"
        try:
            path.mkdir(mode=0o700)
            lock = os.open(path / LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except (FileNotFoundError, FileExistsError):
            return None
        try:
            if _is_locked(lock) and (path / LOCK).exists():
                return cls(path, lock)
        except OSError:
            os.close(lock)
            _remove(path)
            raise
        os.close(lock)
        return None


def _own() -> str:
    """Returns the prefix of the names of this process's folders."""
    return f"{PREFIX}{os.getpid()}-{process_id()}-"


def _is_locked(lock: int) -> bool:
    """Locks a file; returns false if another process has locked it."""
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "this system has no locks that end with their process")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _sweep(parent: Path, own: Path) -> None:
    owner = own.stat().st_uid
    for other in parent.glob(f"{PREFIX}*"):
        # Closing a lock file of this process would release its lock.
        if other.name.startswith(_own()):
            continue
        with suppress(OSError):
            found = other.lstat()
            # A folder of another user, or a link, may lead anywhere.
            if stat.S_ISDIR(found.st_mode) and found.st_uid == owner:
                _remove_left(other)


def _remove_left(folder: Path) -> None:
    """Removes a folder whose process has ended; if it still lives, the loss only costs reads."""
    lock = folder / LOCK
    try:
        if not stat.S_ISREG(lock.lstat().st_mode):
            return
        descriptor = os.open(lock, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        _remove(folder)
        return
    try:
        if _is_locked(descriptor):
            _remove(folder)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Removes a folder with its files, the lock last; never raises."""
    with suppress(OSError):
        for file in sorted(folder.iterdir(), key=lambda one: one.name == LOCK):
            # Its process may be removing a copy right now; the other files still have to go.
            with suppress(OSError):
                file.unlink()
        folder.rmdir()
