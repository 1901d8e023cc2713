"""The list of commands. A command is a module of this package with `add_to`; it is added here."""

from __future__ import annotations

from redis_state.cli import (
    acl,
    completion,
    conf,
    dashboard,
    demo,
    doctor,
    exporter,
    get,
    maintain,
    options_doc,
    purge,
    queries,
    restore,
    rewind,
    scan,
    show,
    size,
    skew,
    sql,
    top,
    why_growing,
)
from redis_state.cli.command import Command

COMMANDS: tuple[Command, ...] = (
    conf,
    acl,
    queries,
    show,
    get,
    scan,
    sql,
    size,
    skew,
    why_growing,
    top,
    exporter,
    maintain,
    dashboard,
    doctor,
    rewind,
    restore,
    purge,
    demo,
    completion,
    options_doc,
)
