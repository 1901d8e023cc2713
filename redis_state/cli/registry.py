"""The list of commands. A command is a module of this package with `add_to`; it is added here."""

from __future__ import annotations

from redis_state.cli import (
    acl,
    completion,
    conf,
    demo,
    doctor,
    get,
    maintain,
    options_doc,
    purge,
    queries,
    restore,
    rewind,
    sql,
)
from redis_state.cli.command import Command

COMMANDS: tuple[Command, ...] = (
    conf,
    acl,
    queries,
    get,
    sql,
    maintain,
    doctor,
    rewind,
    restore,
    purge,
    demo,
    completion,
    options_doc,
)
