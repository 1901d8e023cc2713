"""Registered commands. A command is a module with `add_to`, listed here in its group."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.cli.command import CommandModule
from redis_state.cli.follow import changes, top
from redis_state.cli.look import (
    diff,
    get,
    history,
    hot,
    queries,
    scan,
    show,
    size,
    skew,
    sql,
    why_growing,
    why_slow,
)
from redis_state.cli.move import bootstrap, export, import_, migrate, rescale
from redis_state.cli.operate import (
    acl,
    dashboard,
    doctor,
    exporter,
    fork,
    keep,
    maintain,
    places,
    purge,
    replay,
    restore,
    rewind,
)
from redis_state.cli.other import completion, conf, demo, options_doc, plan


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands that `--help` lists together.

    Attributes:
        name: Name of the package that holds the commands.
        purpose: What the commands are for.
        commands: The modules, in the order of `--help`.
    """

    name: str
    purpose: str
    commands: tuple[CommandModule, ...]

    @property
    def title(self) -> str:
        """Heading of the group in `--help`."""
        return f"{self.name} ({self.purpose})"


GROUPS = (
    CommandGroup(
        "look",
        "read state and figures, once",
        (queries, show, get, scan, diff, history, sql, size, skew, hot, why_growing, why_slow),
    ),
    CommandGroup("follow", "watch what changes", (changes, top)),
    CommandGroup(
        "operate",
        "watch, maintain and repair",
        (
            *(acl, exporter, dashboard, maintain, doctor, rewind, restore),
            *(keep, fork, replay, places, purge),
        ),
    ),
    CommandGroup(
        "move",
        "to other places, providers and numbers of partitions",
        (export, import_, migrate, rescale, bootstrap),
    ),
    CommandGroup("other", "set up, and try out", (conf, plan, demo, completion, options_doc)),
)
