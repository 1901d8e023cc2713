"""Drives `PartitionActor`, which does to a partition of a Python store what it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.jvm import ROOT, java_command


class JvmActor:
    """The JVM's side: stored keys and values as bytes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *words: str | bytes | int | None) -> str:
        """Sends a command and returns its answer.

        Raises:
            AssertionError: It answers an error.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(" ".join(map(_word, words)) + "\n")
        stdin.flush()
        status, _, rest = stdout.readline().rstrip("\n").partition(" ")
        assert status == "ok", rest
        return rest

    def rows(self, low: bytes | None = None, high: bytes | None = None) -> dict[bytes, bytes]:
        """Stored keys and values of a range of encoded keys, in the order in which they come."""
        pairs = [pair.split("=") for pair in self.tell("scan", low, high).split(",") if pair]
        return {_bytes(key): _bytes(value) for key, value in pairs}

    def get(self, key: bytes) -> bytes | None:
        found = self.tell("get", key)
        return None if found == "-" else _bytes(found)


@contextmanager
def jvm_actor(
    url: str, gen: str, schema: str, *, lists: bool, folder: Path | None = None
) -> Iterator[JvmActor]:
    """A JVM on the partition 0 of operator 0 of a checkpoint, until the block ends.

    Args:
        folder: Folder of files, of all checkpoints.
    """
    command = java_command("core", None, heap="512m")
    command += ["org.redisstate.core.store.PartitionActor", url, gen, schema, str(lists).lower()]
    command += [str(folder)] if folder else []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield JvmActor(process)
        finally:
            process.kill()


def _word(word: str | bytes | int | None) -> str:
    if isinstance(word, bytes):
        return word.hex() or "empty"
    return "-" if word is None else str(word)


def _bytes(text: str) -> bytes:
    return b"" if text == "empty" else bytes.fromhex(text)
