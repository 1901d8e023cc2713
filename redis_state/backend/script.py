"""The Lua scripts, which the JVM adapter shares: text, hash, and the commands that run them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from redis_state.errors import InternalError

Command = tuple[str | bytes, ...]
"""A command and its arguments."""

_INCLUDE = "--#include "


@dataclass(frozen=True, slots=True)
class Script:
    """One atomic step.

    Attributes:
        sha: What the server knows it by; the same as in the JVM adapter.
    """

    text: str
    sha: str

    def by_hash(self, keys: Sequence[str], *args: str | bytes) -> Command:
        """Runs it where the server knows it."""
        return ("EVALSHA", self.sha, str(len(keys)), *keys, *args)

    def by_text(self, keys: Sequence[str], *args: str | bytes) -> Command:
        """Runs it on any server, which knows it from then on."""
        return ("EVAL", self.text, str(len(keys)), *keys, *args)

    def call(self, keys: Sequence[str], *args: str | bytes) -> ScriptCall:
        """Runs it in a transaction: by hash, and once more by text where the server asks for it."""
        return ScriptCall(self, tuple(keys), args)

    def many(self, calls: Sequence[tuple[str, Sequence[str | bytes]]]) -> list[Command]:
        """Runs it once for each key of one pipeline: the first makes it known to the server."""
        return [
            (self.by_hash if index else self.by_text)([key], *args)
            for index, (key, args) in enumerate(calls)
        ]


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script with its arguments, to be sent by hash or by text."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes, ...]

    @property
    def by_hash(self) -> Command:
        """Runs where the server knows the script."""
        return self.script.by_hash(self.keys, *self.args)

    @property
    def by_text(self) -> Command:
        """Runs on any server."""
        return self.script.by_text(self.keys, *self.args)


@cache
def script(name: str) -> Script:
    """The script of this name.

    Raises:
        InternalError: The installation holds none.
    """
    text = _read(name)
    first = text.split("\n", 1)[0]
    if first.startswith(_INCLUDE):
        text = _read(first.removeprefix(_INCLUDE).strip()) + text
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_UNDECLARED = ("acquire", "publish", "purge", "recall", "renew", "restore", "retain")


def touches_undeclared_keys(command: Command) -> bool:
    """Whether a command runs a script that touches keys which only the manifest names.

    On the node to which a half-moved slot goes, such a key that has not come yet looks absent.
    """
    if command[0] not in ("EVAL", "EVALSHA"):
        return False
    return any(command[1] in (one.sha, one.text) for one in map(script, _UNDECLARED))


def _read(name: str) -> str:
    file = resources.files("redis_state.backend").joinpath("scripts") / f"{name}.lua"
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise InternalError("reading a script", found=f"there is no {name}.lua") from error
