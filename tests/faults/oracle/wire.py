"""Scripts of a pipeline, and the answer of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import redis

from redis_state.backend.script import Command, script

# Text that scripts include.
_INCLUDED = ("binding", "lineage", "pins", "room", "runs")


@dataclass(slots=True)
class Ran:
    """One script that a server ran.

    Attributes:
        word: The first word of its answer; the message if it was an error.
        outcome: The same, with the reason if it is a refusal.
        reply: All words of the answer; empty if it was an error.
    """

    name: str
    keys: Sequence[Any]
    args: Sequence[Any]
    word: str
    outcome: str
    reply: Sequence[str]


def scripts_in(commands: Sequence[Command], replies: Sequence[Any]) -> Iterator[Ran]:
    """The scripts of a pipeline, those of a transaction with the results of its EXEC."""
    if commands[0] == ("MULTI",):
        if not isinstance(replies[-1], list):
            return
        commands, replies = commands[1:-1], replies[-1]
    for command, reply in zip(commands, replies, strict=True):
        # The look at what a server has sends commands without arguments.
        if len(command) < 3 or command[0] not in ("EVALSHA", "EVAL"):
            continue
        if isinstance(reply, redis.exceptions.NoScriptError):
            continue
        word = reply[0].decode() if isinstance(reply, list) else str(reply)
        why = reply[1].decode() if word == "FENCED" else ""
        outcome = f"FENCED {why}" if why.isalpha() else word
        end = 3 + int(command[2])
        words = [one.decode() for one in reply] if isinstance(reply, list) else []
        yield Ran(_name(_text(command[1])), command[3:end], command[end:], word, outcome, words)


def forget_scripts() -> None:
    """The texts of the scripts are others from now on."""
    script.cache_clear()
    _name.cache_clear()


@cache
def _name(text_or_sha: str) -> str:
    folder = resources.files("redis_state.backend").joinpath("scripts")
    for file in folder.iterdir():
        name = file.name.removesuffix(".lua")
        if name not in _INCLUDED and text_or_sha in (script(name).text, script(name).sha):
            return name
    return "?"


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode("latin-1")
