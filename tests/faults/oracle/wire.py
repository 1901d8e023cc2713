"""What scripts a pipeline ran and what each of them answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import redis

from redis_state.backend.script import Command, script

_REPLY_WORDS = 3


@dataclass(frozen=True, slots=True)
class Ran:
    """One script that a server ran.

    Attributes:
        reply: The first words of its answer; the message alone if it was an error.
    """

    name: str
    keys: Sequence[Any]
    args: Sequence[Any]
    reply: tuple[str, ...]


def scripts_in(commands: Sequence[Command], replies: Sequence[Any]) -> Iterator[Ran]:
    """The scripts of a pipeline, those of a transaction with the results of its EXEC."""
    if commands[0] == ("MULTI",):
        if not isinstance(replies[-1], list):
            return
        commands, replies = commands[1:-1], replies[-1]
    for command, reply in zip(commands, replies, strict=True):
        if command[0] not in ("EVAL", "EVALSHA"):
            continue
        count = int(command[2])
        if isinstance(reply, redis.exceptions.NoScriptError):
            continue
        first = reply[:_REPLY_WORDS] if isinstance(reply, list) else [str(reply)]
        answer = tuple(map(_text, first))
        yield Ran(_name(_text(command[1])), command[3 : 3 + count], command[3 + count :], answer)


def forget_scripts() -> None:
    """The texts of the scripts are others from now on."""
    script.cache_clear()
    _name.cache_clear()


@cache
def _name(text_or_sha: str) -> str:
    folder = resources.files("redis_state.backend").joinpath("scripts")
    for file in folder.iterdir():
        name = file.name.removesuffix(".lua")
        if name != "lineage" and text_or_sha in (script(name).text, script(name).sha):
            return name
    return "?"


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode("latin-1")
