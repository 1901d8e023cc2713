"""The list of commands. A command is a module of this package with `add_to`; it is added here."""

from __future__ import annotations

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
)
from redis_state.cli.move import bootstrap, export, import_, migrate, rescale
from redis_state.cli.operate import (
    acl,
    dashboard,
    doctor,
    exporter,
    maintain,
    purge,
    restore,
    rewind,
)
from redis_state.cli.other import completion, conf, demo, options_doc

COMMANDS: tuple[CommandModule, ...] = (
    conf,
    acl,
    queries,
    show,
    get,
    scan,
    diff,
    history,
    changes,
    sql,
    size,
    skew,
    hot,
    why_growing,
    top,
    exporter,
    maintain,
    dashboard,
    doctor,
    rewind,
    restore,
    export,
    import_,
    migrate,
    rescale,
    bootstrap,
    purge,
    demo,
    completion,
    options_doc,
)
