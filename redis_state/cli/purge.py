"""`redis-state purge`: remove every key of a checkpoint."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.purge import Purged, purge
from redis_state.cli.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.marker import gen_of
from redis_state.errors import ConfigError

if TYPE_CHECKING:
    from redis_state.cli.registry import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "purge",
        help="remove every key of a checkpoint",
        description="Remove the state of a query that will not run again: every key of its "
        "checkpoint, and no other. The checkpoint's files stay.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--checkpoint", metavar="PATH", help="a checkpoint in the local file system")
    which.add_argument("--gen", help="the checkpoint's id, as `redis-state queries` prints it")
    parser.add_argument("--dry-run", action="store_true", help="count only, change nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Purge, after asking."""
    config = config_of(arguments)
    gen: str = arguments.gen if arguments.checkpoint is None else gen_of(arguments.checkpoint)
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        if arguments.dry_run or not arguments.yes:
            found = _purge(client, gen, tenant, dry_run=True)
            _report(gen, found, dry_run=True)
            if arguments.dry_run:
                return 0
            if not found.keys and not found.listed:
                return 0
            _ask()
        found = _purge(client, gen, tenant, dry_run=False)
    _report(gen, found, dry_run=False)
    return 0


def _purge(client: Client, gen: str, tenant: str, *, dry_run: bool) -> Purged:
    line = ProgressLine()
    try:
        return purge(client, gen, tenant=tenant, dry_run=dry_run, progress=line)
    finally:
        line.end()


def _report(gen: str, found: Purged, *, dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    print(
        f"checkpoint {gen}: {verb} {found.keys} keys "
        f"({found.partitions} partitions, {found.segments} segments, {found.strays} strays)"
    )
    if found.live_instances:
        print(
            f"warning: {found.live_instances} stores reported within the last minute; "
            "stop the query first, or it will write keys again",
            file=sys.stderr,
        )


def _ask() -> None:
    if not sys.stdin.isatty():
        raise ConfigError(
            "purging a checkpoint",
            found="nobody can be asked",
            advice="Give --yes to remove the keys without being asked, or --dry-run to count them.",
        )
    print("Remove them? This cannot be undone. [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(
            "purging a checkpoint", found="the answer was not yes", advice="Nothing was changed."
        )
