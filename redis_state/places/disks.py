"""The local disk of this process, set up by the first store that has the option."""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
from pathlib import Path

from redis_state.clock import Clock
from redis_state.config import Config
from redis_state.places.local_disk import LocalDisk
from redis_state.process import tell_after_fork

_SPARK_FOLDERS = "SPARK_LOCAL_DIRS"


class DiskUse:
    """Use of the process's disk by one owner."""

    def __init__(self, disks: ProcessDisk, disk: LocalDisk) -> None:
        self._disks: ProcessDisk | None = disks
        self.disk = disk

    def end(self) -> None:
        """Ends the use; the last one removes all copies, and the folder."""
        disks, self._disks = self._disks, None
        if disks is not None:
            disks.release(self.disk)


class ProcessDisk:
    """The disk, and the number of its users; thread-safe. A forked child starts without both."""

    def __init__(self) -> None:
        self.after_fork()
        tell_after_fork(self)
        atexit.register(self.close)

    def after_fork(self) -> None:
        """Forgets the disk of the parent, and its users."""
        self._lock = threading.Lock()
        self._disk: LocalDisk | None = None
        self._users = 0

    def use(self, config: Config, clock: Clock) -> DiskUse | None:
        """Begins a use; ``None`` if the options set no disk.

        Bytes and folder are those of the first user.
        """
        if config.local_disk is None:
            return None
        with self._lock:
            if self._disk is None:
                self._disk = LocalDisk(config.local_disk, _parents(config), clock=clock)
            self._users += 1
            return DiskUse(self, self._disk)

    def release(self, disk: LocalDisk) -> None:
        """Ends a use of the present disk; ignores a use of the parent process."""
        with self._lock:
            if disk is not self._disk:
                return
            self._users -= 1
            if self._users:
                return
            self._disk = None
        disk.close()

    def close(self) -> None:
        """Closes the disk, at the end of the process."""
        with self._lock:
            disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()


def _parents(config: Config) -> list[Path]:
    """Returns the folders to choose from: by default those of Spark, or the temporary one."""
    if config.local_disk_folder is not None:
        return [Path(config.local_disk_folder)]
    of_spark = [one for one in os.environ.get(_SPARK_FOLDERS, "").split(",") if one]
    return [Path(one) for one in of_spark or [tempfile.gettempdir()]]


process_disk = ProcessDisk()
