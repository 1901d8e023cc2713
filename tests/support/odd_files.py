"""A file system in memory with the faults of object stores, which fsspec opens as `odd://`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractFileSystem

from redis_state.clock import Clock

ADDRESS = "odd://store/segments"


@dataclass
class OddWorld:
    """Content and faults of the file system, which has no rename.

    Attributes:
        late_s: Time for which a new file is not found.
        listed_s: Time for which a new file is not listed.
        cuts: Number of uploads that lose their last bytes, without an error.
        closing: Called in the middle of a close, while half of the file is there.
        content: Bytes of every file.
    """

    clock: Clock
    late_s: float = 0
    listed_s: float = 0
    cuts: int = 0
    closing: Callable[[], object] = lambda: None
    content: dict[str, bytes] = field(default_factory=dict)
    _written_s: dict[str, float] = field(default_factory=dict)

    def store(self, path: str, raw: bytes) -> None:
        """Stores a file at once."""
        self.content[path] = raw
        self._written_s.setdefault(path, self.clock.monotonic_s())

    def close(self, path: str, raw: bytes) -> None:
        """Ends an upload."""
        closing, self.closing = self.closing, lambda: None
        self.store(path, raw[: len(raw) // 2])
        closing()
        if self.cuts:
            self.cuts -= 1
            raw = raw[:-20]
        self.store(path, raw)

    def found(self, path: str) -> bytes:
        """Returns a file.

        Raises:
            FileNotFoundError: It is not there, or not yet.
        """
        if path not in self.content or self._age_s(path) < self.late_s:
            raise FileNotFoundError(path)
        return self.content[path]

    def listed(self, path: str) -> list[str]:
        """Returns the paths below a folder that a listing shows."""
        begin = f"{path}/"
        return [
            one
            for one in self.content
            if one.startswith(begin) and self._age_s(one) >= max(self.late_s, self.listed_s)
        ]

    def _age_s(self, path: str) -> float:
        return self.clock.monotonic_s() - self._written_s[path]


class OddFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Handle of the one `OddWorld` that is open."""

    protocol = "odd"
    cachable = False
    world: ClassVar[OddWorld]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("odd://").strip("/")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        children = {one[len(path) + 1 :].partition("/")[0] for one in self.world.listed(path)}
        if not children:
            raise FileNotFoundError(path)
        found = [self._described(f"{path}/{name}") for name in sorted(children)]
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        self.world.found(path)
        return self._described(path)

    def _described(self, path: str) -> dict[str, Any]:
        raw = self.world.content.get(path)
        kind = "directory" if raw is None else "file"
        return {"name": path, "type": kind, "size": len(raw or b"")}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        if mode == "rb":
            return io.BytesIO(self.world.found(path))
        return _Upload(self.world, path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        if mode == "create" and path in self.world.content:
            raise FileExistsError(path)
        self.world.store(path, value)

    def _rm(self, path: str) -> None:
        self.world.found(path)
        del self.world.content[path]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: a folder is there with its first file."""

    def mv(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("this file system has no rename")


class _Upload(io.BytesIO):
    def __init__(self, world: OddWorld, path: str) -> None:
        super().__init__()
        self._world, self._path = world, path

    def close(self) -> None:
        if not self.closed:
            raw = self.getvalue()
            super().close()
            self._world.close(self._path, raw)


@contextmanager
def odd_files(clock: Clock) -> Iterator[OddWorld]:
    """Opens an empty file system at `ADDRESS`."""
    fsspec.register_implementation("odd", OddFileSystem, clobber=True)
    OddFileSystem.world = OddWorld(clock)
    yield OddFileSystem.world
