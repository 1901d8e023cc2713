"""Splits a pipeline for the nodes of a cluster, and follows redirections."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

from redis_state.backend.script import Command
from redis_state.backend.transport import NoServerError, error_word, message_of
from redis_state.url import Address

_KEYLESS = frozenset(
    {
        "MULTI",
        "EXEC",
        "ASKING",
        "WAIT",
        "WAITAOF",
        "INFO",
        "ROLE",
        "PING",
        "TIME",
        "DBSIZE",
        "SCAN",
        "CONFIG",
        "CLUSTER",
        "SCRIPT",
        "ACL",
        "COMMAND",
    }
)
_SCRIPTS = frozenset({"EVAL", "EVALSHA"})
# These concern the command or transaction before them, so they follow it to its node, whenever it
# is sent.
_WAITS = frozenset({"WAIT", "WAITAOF"})
_BEHIND_EXEC = _WAITS | {"CONFIG"}


@dataclass(frozen=True, slots=True)
class Together:
    """Commands for one node and connection: one, or all from `MULTI` to `EXEC`, with its waits.

    Attributes:
        at: Position of the first command in the pipeline.
        slot: ``None`` if any node can answer.
    """

    commands: tuple[Command, ...]
    at: int
    slot: int | None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Target of a redirection; `ask` limits it to this one request."""

    slot: int
    to: Address
    ask: bool


def split(commands: Sequence[Command]) -> list[Together]:
    """Splits a pipeline into parts, in its order.

    A command without a key goes to the node of the command before it.
    """
    found: list[Together] = []
    slot: int | None = None
    at = 0
    while at < len(commands):
        end, behind = at + 1, _WAITS
        if commands[at][0] == "MULTI":
            end = next((n for n in range(at, len(commands)) if commands[n][0] == "EXEC"), at) + 1
            behind = _BEHIND_EXEC
        while end < len(commands) and commands[end][0] in behind:
            end += 1
        part = tuple(commands[at:end])
        slot = next((one for one in map(slot_of, part) if one is not None), slot)
        found.append(Together(part, at, slot))
        at = end
    return found


def slot_of(command: Command) -> int | None:
    """Returns the slot of a command's first key; ``None`` without a key."""
    key = key_of(command)
    if key is None:
        return None
    return key_slot(key.encode() if isinstance(key, str) else key)


def key_of(command: Command) -> str | bytes | None:
    """Returns a command's first key; ``None`` without a key."""
    if command[0] in _SCRIPTS:
        return command[3] if int(command[2]) else None
    return None if command[0] in _KEYLESS or len(command) < 2 else command[1]


def redirect(replies: Sequence[Any], source: Address) -> Redirect | None:
    """Returns the first redirection among the replies.

    Args:
        source: The node that answered. Its host is used if the reply has none, because a node may
            not know its own host.
    """
    for reply in replies:
        if error_word(reply) in ("ASK", "MOVED"):
            word, slot, node = message_of(reply).split(" ")[:3]
            host, _, port = node.rpartition(":")
            return Redirect(int(slot), Address(host or source.host, int(port)), word == "ASK")
    return None


def owners(reply: Any, source: Address) -> dict[int, Address]:
    """Parses the master of each slot from the reply to `CLUSTER SLOTS`.

    Raises:
        NoServerError: The reply is malformed.
    """
    table: dict[int, Address] = {}
    try:
        for first, last, (host, port, *_), *_ in reply:
            name = host.decode() if isinstance(host, bytes) else host
            owner = Address(source.host if name in (None, "", "?") else name, int(port))
            table.update(dict.fromkeys(range(int(first), int(last) + 1), owner))
    except (TypeError, ValueError):
        raise NoServerError(f"{source} did not answer with a table of slots") from None
    return table


def texts_of(commands: Sequence[Command]) -> dict[str, str | bytes]:
    """Returns the scripts in a pipeline by their hash."""
    found: dict[str, str | bytes] = {}
    for name, *arguments in commands:
        if name == "EVAL":
            text = arguments[0]
            raw = text.encode() if isinstance(text, str) else text
            found[hashlib.sha1(raw, usedforsecurity=False).hexdigest()] = text
    return found


def taught(part: Together, texts: Mapping[str, str | bytes]) -> Together:
    """Replaces hashes by texts: another node got the text, so this one may not know the script."""
    commands = tuple(
        ("EVAL", texts[str(one[1])], *one[2:])
        if one[0] == "EVALSHA" and str(one[1]) in texts
        else one
        for one in part.commands
    )
    return Together(commands, part.at, part.slot)
