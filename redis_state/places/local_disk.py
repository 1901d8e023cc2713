"""Copies of segments of files on a disk of this machine, for all stores of a process.

The JVM has the same (`LocalDisk`). A copy is never authoritative: readers check each block, and
read the file if a copy is damaged or missing.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from redis_state.clock import SYSTEM, Clock
from redis_state.errors import RedisStateError
from redis_state.files import Folder
from redis_state.format.place import FilePlace
from redis_state.format.region import Span
from redis_state.places.disk_folder import DiskFolder
from redis_state.process import BackgroundThread, tell_after_fork

RANGE_BYTES = 8 << 20
"""Bytes of one read."""
KEPT_S = 60.0
"""Time for which a used copy stays, and for which a refused region is not tried again."""
_REFUSED_MAX = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegionId:
    """Identity of a region; names of files are never used again, so its bytes never change."""

    gen: str
    place: FilePlace


@dataclass(slots=True)
class _LocalCopy:
    """A copy, finished or under way.

    Attributes:
        path: ``None`` while the copy is under way.
        is_gone: True if the copy was removed, or given up.
    """

    id: RegionId
    used_s: float
    path: Path | None = field(default=None)
    is_gone: bool = False


class LocalDisk:
    """Copies of regions, made in the background; thread-safe.

    The least recently used copies make room for new ones, except those used in the last minute: on
    a disk that is too small some regions have a copy, and the others are read from their files.
    After a failed write the disk is not used any more. In a forked child the disk is off.

    Args:
        bytes_max: Most bytes of all copies, including those under way.
        parents: Folders; the one with the most free space is used.
        threaded: ``False`` if the caller itself calls `copy_all`.
    """

    def __init__(
        self,
        bytes_max: int,
        parents: Sequence[Path],
        *,
        clock: Clock = SYSTEM,
        threaded: bool = True,
    ) -> None:
        self.bytes_max = bytes_max
        self._parents = parents
        self._clock = clock
        self._begin()
        self._thread = BackgroundThread(
            "disk",
            self.copy_all,
            lambda: None,
            what="a local copy",
            # A reader must not start another thread while the disk is being closed.
            last=lambda: None,
            threaded=threaded,
        )
        tell_after_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # By their last use, the oldest first.
        self._copies: OrderedDict[RegionId, _LocalCopy] = OrderedDict()
        self._refused: OrderedDict[RegionId, float] = OrderedDict()
        self._wanted: deque[tuple[_LocalCopy, Folder]] = deque()
        self._held = 0
        self._is_off = False
        self._folder: DiskFolder | None = None
        self._parent = self._parents[0]
        # Held while the folder is made or removed.
        self._folder_lock = threading.Lock()

    def after_fork(self) -> None:
        """Forgets the copies of the parent, which still belong to it."""
        self._begin()
        self._is_off = True

    @property
    def used_bytes(self) -> int:
        """Bytes of all copies, including those under way."""
        with self._lock:
            return self._held

    def read(self, id_: RegionId, spans: Sequence[Span]) -> list[bytes] | None:
        """Reads ranges of a region, counted from its start; ``None`` without a copy."""
        with self._lock:
            copy = self._copies.get(id_)
            if copy is None or copy.path is None:
                return None
            copy.used_s = self._clock.monotonic_s()
            self._copies.move_to_end(id_)
            path = copy.path
        try:
            return _read(path, spans)
        except OSError as error:
            log.info("a local copy of %s cannot be read: %s", id_.place.file, error)
            self.drop(id_)
            return None

    def drop(self, id_: RegionId) -> None:
        """Removes a copy, and makes no new one for a minute."""
        with self._lock:
            self._refuse(id_)
            copy = self._copies.get(id_)
            path = None if copy is None else self._removed(copy)
        _delete(path)

    def want(self, id_: RegionId, folder: Folder) -> None:
        """Begins a copy of a region, unless there is one or its bytes find no room.

        Args:
            folder: Folder of the checkpoint's files.
        """
        with self._lock:
            if not self._may_copy(id_):
                return
            leaving = self._leaving(id_.place.bytes)
            if leaving is None:
                self._refuse(id_)
                return
            paths = [self._removed(one) for one in leaving]
            copy = _LocalCopy(id_, self._clock.monotonic_s())
            self._copies[id_] = copy
            self._held += id_.place.bytes
        for path in paths:
            _delete(path)
        # After the deletions, which make the room.
        self._wanted.append((copy, folder))
        try:
            self._thread.start()
        except RuntimeError as error:
            # No thread can be started, or the interpreter ends: readers use the file.
            log.info("no local copy of %s: %s", id_.place.file, error)
            self.drop(id_)
            with suppress(ValueError):
                self._wanted.remove((copy, folder))
        self._thread.wake()

    def copy_all(self) -> None:
        """Makes all requested copies; called by the thread of the disk."""
        while True:
            with self._lock:
                if not self._wanted:
                    return
                copy, folder = self._wanted.popleft()
            self._fill(copy, folder)

    def close(self) -> None:
        """Removes all copies, and the folder."""
        self._thread.stop(0)
        with self._lock:
            self._is_off = True
            for copy in list(self._copies.values()):
                self._removed(copy)
        with self._folder_lock:
            if self._folder is not None:
                self._folder.close()
                self._folder = None

    def _may_copy(self, id_: RegionId) -> bool:
        fits = id_.place.bytes <= self.bytes_max and id_ not in self._copies
        until_s = self._refused.get(id_)
        is_refused = until_s is not None and until_s > self._clock.monotonic_s()
        return not self._is_off and fits and not is_refused

    def _leaving(self, size: int) -> list[_LocalCopy] | None:
        """Returns the copies to remove for so many bytes; ``None`` if these are too few."""
        lacking = self._held + size - self.bytes_max
        late_s = self._clock.monotonic_s() - KEPT_S
        found: list[_LocalCopy] = []
        for copy in self._copies.values():
            if lacking <= 0 or copy.used_s > late_s:
                break
            if copy.path is not None:
                found.append(copy)
                lacking -= copy.id.place.bytes
        return found if lacking <= 0 else None

    def _removed(self, copy: _LocalCopy) -> Path | None:
        """Removes a copy from the map, and returns its file for the caller to delete."""
        copy.is_gone = True
        del self._copies[copy.id]
        self._held -= copy.id.place.bytes
        return copy.path

    def _refuse(self, id_: RegionId) -> None:
        self._refused.pop(id_, None)
        self._refused[id_] = self._clock.monotonic_s() + KEPT_S
        if len(self._refused) > _REFUSED_MAX:
            self._refused.popitem(last=False)

    def _fill(self, copy: _LocalCopy, folder: Folder) -> None:
        path, is_whole = None, False
        try:
            made = self._opened()
            if made is not None and self._is_wanted(copy):
                path = made.new_file()
                is_whole = self._write(copy, folder, path)
        except FileNotFoundError as error:
            # A program that cleans up removed the folder: the next copy makes another one.
            self._forget_folder()
            log.info("no local copy of %s: %s", copy.id.place.file, error)
        except OSError as error:
            self._turn_off(error)
        except RedisStateError as error:
            log.info("no local copy of %s: %s", copy.id.place.file, error)
        finally:
            self._end(copy, path, is_whole=is_whole)

    def _end(self, copy: _LocalCopy, path: Path | None, *, is_whole: bool) -> None:
        with self._lock:
            if is_whole and not copy.is_gone:
                copy.path = path
                # A new copy counts as used.
                copy.used_s = self._clock.monotonic_s()
                self._copies.move_to_end(copy.id)
                return
            if not copy.is_gone:
                self._refuse(copy.id)
                self._removed(copy)
        _delete(path)

    def _write(self, copy: _LocalCopy, folder: Folder, path: Path) -> bool:
        """Writes a copy; returns whether all of it was written."""
        place = copy.id.place
        with path.open("xb", buffering=0) as out:
            for at in range(0, place.bytes, RANGE_BYTES):
                length = min(RANGE_BYTES, place.bytes - at)
                if not self._is_wanted(copy):
                    return False
                raws = folder.read_ranges(place.file, [(place.offset + at, length)])
                if raws is None:
                    return False
                left = memoryview(raws[0])
                while left:
                    left = left[out.write(left) :]
        return True

    def _is_wanted(self, copy: _LocalCopy) -> bool:
        with self._lock:
            return not copy.is_gone

    def _opened(self) -> DiskFolder | None:
        """Returns the folder of this process, made at its first use; ``None`` if it is off."""
        with self._folder_lock:
            with self._lock:
                if self._is_off:
                    return None
            if self._folder is None:
                self._parent = _roomiest(self._parents)
                try:
                    self._folder = DiskFolder.open(self._parent)
                except OSError as error:
                    self._turn_off(error)
            return self._folder

    def _forget_folder(self) -> None:
        with self._folder_lock:
            if self._folder is not None and not self._folder.path.exists():
                self._folder.close()
                self._folder = None

    def _turn_off(self, error: OSError) -> None:
        with self._lock:
            is_first, self._is_off = not self._is_off, True
            paths = [self._removed(one) for one in list(self._copies.values())]
        for path in paths:
            _delete(path)
        if is_first:
            log.warning(
                "'localDisk' is off in this process from here on: the folder %s takes no files "
                "(%s). Segments are read from their files, which is slower and changes no result. "
                "Make the folder writable, free some space there, or give another one in "
                "'localDiskFolder'; then restart the process.",
                self._parent,
                error.strerror or error,
            )


def _roomiest(parents: Sequence[Path]) -> Path:
    return parents[0] if len(parents) == 1 else max(parents, key=_free)


def _free(parent: Path) -> int:
    try:
        return shutil.disk_usage(parent).free
    except OSError:
        return -1


def _read(path: Path, spans: Sequence[Span]) -> list[bytes]:
    found = []
    with path.open("rb", buffering=0) as file:
        for offset, length in spans:
            file.seek(offset)
            raw = file.read(length)
            if len(raw) != length:
                raise OSError(f"{path} is truncated")
            found.append(raw)
    return found


def _delete(path: Path | None) -> None:
    if path is not None:
        try:
            os.unlink(path)  # noqa: PTH108  # no stat before it
        except OSError as error:
            log.debug("a local copy stays: %s", error)
