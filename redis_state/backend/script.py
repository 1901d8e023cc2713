"""The Lua scripts, shared with the JVM adapter: text, hash, and the commands that run them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import takewhile

from redis_state.errors import InternalError

Command = tuple[str | bytes, ...]
"""A command and its arguments."""

_INCLUDE = "--#include "


@dataclass(frozen=True, slots=True)
class Script:
    """Script of one atomic step.

    Attributes:
        sha: The server's name of the script; equal in the JVM adapter.
    """

    text: str
    sha: str

    def by_hash(self, keys: Sequence[str], *args: str | bytes) -> Command:
        """Returns the command for a server that knows the script."""
        return ("EVALSHA", self.sha, str(len(keys)), *keys, *args)

    def by_text(self, keys: Sequence[str], *args: str | bytes) -> Command:
        """Returns the command for any server, which then knows the script."""
        return ("EVAL", self.text, str(len(keys)), *keys, *args)

    def call(self, keys: Sequence[str], *args: str | bytes) -> ScriptCall:
        """Returns the call for a transaction: by hash, or by text if the server asks for it."""
        return ScriptCall(self, tuple(keys), args)

    def many(self, calls: Sequence[tuple[str, Sequence[str | bytes]]]) -> list[Command]:
        """Returns a command per key for one pipeline; the first sends the script's text."""
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
        """The command for a server that knows the script."""
        return self.script.by_hash(self.keys, *self.args)

    @property
    def by_text(self) -> Command:
        """The command for any server."""
        return self.script.by_text(self.keys, *self.args)


@cache
def script(name: str) -> Script:
    """Loads a script by name.

    Raises:
        InternalError: The installation lacks the script.
    """
    text = _read(name)
    head = takewhile(lambda line: line.startswith(_INCLUDE), text.split("\n"))
    text = "".join(_read(line.removeprefix(_INCLUDE).strip()) for line in head) + text
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_UNDECLARED = (
    "bound",
    "acquire",
    "place",
    "publish",
    "purge",
    "recall",
    "renew",
    "restore",
    "retain",
    "hotrun",
    "snapshot",
    "stage",
    "unplace",
)


def touches_undeclared_keys(command: Command) -> bool:
    """Returns whether a command runs a script that uses keys which only the manifest names.

    While a slot moves, such a key may not have arrived at the target node, and would seem absent.
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
