"""A small disk of its own for a folder, which a test fills, makes read-only or takes away."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIMIT_S = 30


class SmallDisk:
    """A file system in memory, mounted on a folder; only root may mount one."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder, self._size = folder, size

    def mount(self) -> None:
        """Mounts the disk for the first time: it is empty."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.folder))

    def change(self, option: str) -> None:
        """Changes an option of the mount: `ro`, `rw` or a new `size=`."""
        _run("mount", "-o", f"remount,{option}", str(self.folder))

    def move(self, to: Path) -> None:
        """Mounts the disk, with what it holds, on another folder: this one is empty then."""
        to.mkdir(parents=True, exist_ok=True)
        _run("mount", "--move", str(self.folder), str(to))
        self.folder = to

    def unmount(self) -> None:
        _run("umount", "--lazy", str(self.folder))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Mounts a disk on a folder until the block ends.

    Args:
        size: As mount(8) has it, for example ``4m``.
    """
    disk = SmallDisk(folder, size)
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
