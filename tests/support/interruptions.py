"""A folder whose file system ends the program between two steps, as a kill does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis_state.files import Folder

CHANGING = ("create", "rename", "remove", "replace", "make_folder")


class Interrupted(BaseException):
    """Nothing catches it, as nothing catches a kill."""


class _Files:
    def __init__(self, files: Any, at: int, *, after: bool) -> None:
        self._files = files
        self._left = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name == "create_open" and not self._files.renames:
            return lambda path: _File(found(path), self._counted)
        return self._counted(found) if name in CHANGING else found

    def _counted(self, step: Any) -> Any:
        def run(*arguments: Any) -> None:
            if self._left == 0 and not self._after:
                raise Interrupted
            step(*arguments)
            if self._left == 0:
                raise Interrupted
            self._left -= 1

        return run


class _File:
    """A new file, which appears when it is closed."""

    def __init__(self, file: Any, counted: Callable[[Any], Any]) -> None:
        self._file = file
        self.close = counted(file.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def interrupting(folder: Folder, *, at: int, after: bool = True) -> Folder:
    """Wraps the folder so that the step with this number is the last one.

    Args:
        at: Counts the steps that change something, from 0.
        after: Whether that step is still done.
    """
    files: Any = _Files(folder.files, at, after=after)
    return Folder(files, folder.path, folder.shown)
